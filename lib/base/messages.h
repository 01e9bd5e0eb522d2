// Parts of messages: any text on one line of a terminal, numbers with their nouns, and how far a
// word is from the one that was meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace diptych {

// Control characters, line separators and bytes that are not UTF-8 as \xNN, so that no name of a
// file can break a line or drive the terminal. `kept`: control characters that stay as they are.
std::string printable(std::string_view text, std::string_view kept = "");

// The characters that begin in the first 60 bytes, and "..." where there are more.
std::string shortened(std::string_view text);

// "1 tensor", "2 tensors"; `many` where it is not `one` with an s.
std::string counted(std::size_t count, std::string_view one, std::string_view many = "");

// Levenshtein distance in bytes, where a swap of two neighbours counts one.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace diptych
