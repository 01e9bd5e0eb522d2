// Text out of files and pipes. A signal ends the wait for a pipe's writer (Interrupted).
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace diptych {

// The bytes of a file; of a pipe or a device at most 1 GiB. Throws InputError, which names it,
// where it is missing, a folder, larger, or cannot be read.
std::string read_text_file(const std::filesystem::path& path);

// Its first bytes, at most so many.
std::string read_text_start(const std::filesystem::path& path, std::size_t bytes);

// The same of what is open; nothing where it cannot be read: errno says why.
std::optional<std::string> read_text_start(int descriptor, std::size_t bytes);

}  // namespace diptych
