// How much host memory this process can still have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace diptych {

// Bytes that the system (proc/meminfo) and the control group (versions 1 and 2) can still give,
// what they would give back of their file caches included; nothing where the system does not tell.
// `root`: where proc and sys lie.
std::optional<std::int64_t> available_host_memory(const std::filesystem::path& root = "/");

}  // namespace diptych
