// A clip as a folder of PNG files: what these are called, and where such a folder may lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace diptych {

// "frame_00012.png"
std::string frame_name(std::int64_t frame);
bool is_frame_name(const std::filesystem::path& name);

// Throws InputError where something stands at `path` that a new folder of frames may not replace: a
// file, or a folder with anything but frames.
void require_place_for_frames(const std::filesystem::path& path);

}  // namespace diptych
