#include "lib/config/words.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/messages.h"

namespace diptych {

std::string in_quotes(std::string_view text) {
  return fmt::format("'{}'", printable(shortened(text)));
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
