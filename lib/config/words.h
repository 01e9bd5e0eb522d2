// Words in messages: what was written, shown on one line, and the known name nearest to it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace diptych {

// 'text' in quotes; control characters and invalid UTF-8 are shown as \xNN, long texts are cut.
std::string in_quotes(std::string_view text);

// The known word with the smallest edit distance, where at most a third of it (at least one letter)
// differs; empty where none is near.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

// " (did you mean 'shift'? known: shift, steps)", the first part only where a name is near.
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace diptych
