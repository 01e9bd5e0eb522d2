// A whole file in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace diptych {

// Throws InputError naming the file for one that is missing, no regular file, not readable, or over
// 1 GiB.
std::vector<std::uint8_t> read_file_bytes(const std::filesystem::path& path);

}  // namespace diptych
