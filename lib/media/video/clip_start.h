// What the first bytes of a file say, and what its container says of its length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

namespace diptych {

// A container of video by its signature: MP4 and its like, Matroska, AVI, Ogg, FLV, ASF, MPEG.
bool begins_as_video(std::span<const std::uint8_t> bytes);
// A name that files of video have, such as "a.mkv".
bool named_as_video(const std::filesystem::path& path);
bool is_animated_webp(std::span<const std::uint8_t> bytes);  // the first 21 bytes are enough

// Bytes of the whole file as Matroska's segment or AVI's RIFF header state it; nothing for others
// and where they leave it open.
std::optional<std::uint64_t> stated_file_bytes(std::span<const std::uint8_t> bytes);

inline constexpr std::size_t kStartBytes = 4'096;  // that these functions look at

}  // namespace diptych
