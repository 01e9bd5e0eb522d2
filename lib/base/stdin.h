// Stdin as a file: what "-" stands for where a picture or a list is read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace diptych {

inline constexpr std::string_view kStdin = "-";  // also stdout's name, where a file is written

// Reads stdin to its end and puts what it held in its place, as a file that can be opened as often
// as wanted. Returns that file's path, "/dev/stdin". Throws InputError where stdin is a terminal,
// cannot be read, or holds more than `most_bytes`.
std::filesystem::path hold_stdin(std::size_t most_bytes);

// The file itself, or what hold_stdin() returns for "-": a picture.
std::filesystem::path file_or_stdin(const std::filesystem::path& file);

}  // namespace diptych
