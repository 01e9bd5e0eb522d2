// How far the frames of two clips are apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace diptych {

struct FramesGap {
  bool same_shape = true;  // else the rest is of the frames before they part
  std::int64_t frames = 0, frames_differ = 0, first = -1;  // first: index of one that differs
  std::int64_t pixels = 0, pixels_differ = 0, max_level = 0;
};

// Reads both, frame by frame. Throws as ClipReader.
FramesGap compare_frames(const std::filesystem::path& then, const std::filesystem::path& now);

// Adds "frames", "frames_differ", "pixels", "pixels_differ" and "max_level".
void add_gap(nlohmann::ordered_json& json, const FramesGap& gap);
// "differs: 3 of 49 frames, from frame 5 on; 120 of 9000 pixels, by at most 2 levels"
std::string gap_text(const FramesGap& gap);

}  // namespace diptych
