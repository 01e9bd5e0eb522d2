#include "lib/config/words.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/utf8.h"

namespace diptych {
namespace {

// Levenshtein distance, and a swap of two neighbours counts one.
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

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 60;
  std::string shown = "'";
  for (std::size_t i = 0; i < text.size();) {
    if (i >= kMaxBytes) return shown + "...'";
    const Utf8Character character = utf8_at(text, i);
    const bool control = character.code_point < 0x20 ||
                         (character.code_point >= 0x7F && character.code_point < 0xA0) ||
                         character.code_point == 0x2028 || character.code_point == 0x2029;
    if (character.valid && !control) {
      shown += text.substr(i, character.length);
    } else {
      for (const char byte : text.substr(i, character.length)) {
        shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(byte));
      }
    }
    i += character.length;
  }
  return shown + "'";
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  constexpr std::size_t kLongest = 64;  // longer ones are no slip of the hand
  std::string_view best;
  if (word.size() > kLongest) return best;
  std::size_t least = word.size();
  for (const std::string_view candidate : known) {
    const std::size_t allowed = std::max<std::size_t>(1, candidate.size() / 3);
    const std::size_t distance = edit_distance(word, candidate);
    if (distance <= allowed && distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view near = nearest_word(word, known);
  const std::string all = fmt::format("known: {}", fmt::join(known, ", "));
  return near.empty() ? fmt::format(" ({})", all)
                      : fmt::format(" (did you mean '{}'? {})", near, all);
}

}  // namespace diptych
