// Where the results of a run go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace diptych {

// One path per result; `extension`: ".png" or ".txt", the only one taken. "a.png" is itself for one
// picture, else a-000.png, a-001.png, ...; a pattern such as "a-%03d.png" is filled in; a folder
// gets 0000.png, 0001.png, ... Throws InputError for another extension, a bad pattern, and a folder
// that is missing or not writable.
std::vector<std::filesystem::path> plan_outputs(const std::filesystem::path& output,
                                                std::int64_t count, std::string_view extension);

}  // namespace diptych
