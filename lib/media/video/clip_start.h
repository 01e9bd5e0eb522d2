// What the first bytes of a file say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace diptych {

// A container of video by its signature: MP4 and its like, Matroska, AVI, Ogg, FLV, ASF, MPEG.
bool begins_as_video(std::span<const std::uint8_t> bytes);
// A name that files of video have, such as "a.mkv".
bool named_as_video(const std::filesystem::path& path);
bool is_animated_webp(std::span<const std::uint8_t> bytes);  // the first 21 bytes are enough

inline constexpr std::size_t kStartBytes = 4'096;  // that these functions look at

}  // namespace diptych
