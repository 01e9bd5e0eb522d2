// Folders of PNG frames.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace diptych {

// "frame_00012.png"
std::string frame_name(std::int64_t frame);
bool is_frame_name(const std::filesystem::path& name);

// The PNG files in a folder, frame_2 before frame_10.
std::vector<std::filesystem::path> list_frames(const std::filesystem::path& folder);

}  // namespace diptych
