// Where the pictures of a run go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace diptych {

// One path per picture. "a.png" is itself for one picture, else a-000.png, a-001.png, ...; a
// pattern such as "a-%03d.png" is filled in; a folder gets 0000.png, 0001.png, ... Throws
// InputError for another extension, a bad pattern, and a folder that is missing or not writable.
std::vector<std::filesystem::path> plan_outputs(const std::filesystem::path& output,
                                                std::int64_t count);

}  // namespace diptych
