#include "lib/tensor/tensor_names.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych {
namespace {

// Levenshtein distance, one row of the table at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string shown_name(std::string_view name) {
  constexpr std::size_t kMaxBytes = 120;
  std::string shown = "\"";
  for (const char c : name.substr(0, kMaxBytes)) {
    if (c >= 0x20 && c < 0x7F) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
    }
  }
  return shown + (name.size() > kMaxBytes ? "...\"" : "\"");
}

std::string shown_shape(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void NearestName::offer(std::string_view candidate) {
  const std::size_t longer = std::max(candidate.size(), wanted_.size());
  const std::size_t shorter = std::min(candidate.size(), wanted_.size());
  if (longer - shorter >= limit_) return;  // the distance is at least the difference in length
  const std::size_t distance = edit_distance(wanted_, candidate);
  if (distance >= limit_) return;
  limit_ = distance;
  best_ = candidate;
}

}  // namespace diptych
