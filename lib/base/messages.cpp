#include "lib/base/messages.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "lib/base/utf8.h"

namespace diptych {
namespace {

// C0, DEL, C1, and the two separators that Unicode calls line and paragraph.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    const std::string_view bytes = text.substr(i, character.length);
    i += character.length;
    const bool plain = character.valid && !is_control(character.code_point);
    if (plain || kept.find(bytes) != std::string_view::npos) {
      shown += bytes;
      continue;
    }
    for (const char byte : bytes)
      shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(byte));
  }
  return shown;
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kMostBytes = 60;
  std::size_t end = 0;
  while (end < std::min(text.size(), kMostBytes)) end += utf8_at(text, end).length;
  return fmt::format("{}{}", text.substr(0, end), end < text.size() ? "..." : "");
}

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> older(b.size() + 1), old(b.size() + 1), row(b.size() + 1);
  std::iota(old.begin(), old.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({old[j] + 1, row[j - 1] + 1, old[j - 1] + change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], older[j - 2] + 1);
    }
    older.swap(old);
    old.swap(row);
  }
  return old[b.size()];
}

}  // namespace diptych
