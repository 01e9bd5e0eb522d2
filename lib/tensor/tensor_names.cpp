#include "lib/tensor/tensor_names.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/messages.h"

namespace diptych {

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
