// Folders of PNG frames.
#pragma once

#include <filesystem>
#include <vector>

namespace diptych {

// The PNG files in a folder, frame_2 before frame_10. Throws InputError for one that is a
// link to nowhere, and std::filesystem::filesystem_error where the folder cannot be read.
std::vector<std::filesystem::path> list_frames(const std::filesystem::path& folder);

}  // namespace diptych
