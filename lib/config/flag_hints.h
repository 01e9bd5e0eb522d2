// Flags of other programs that are none of ours, and what to do instead. Those that mean the same
// as one of ours are its aliases (Field::aliases).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lib/config/family_config.h"

namespace diptych {

struct FlagHint {
  std::string_view flags, text;  // "-y,--overwrite", "not needed: ..."
};
std::span<const FlagHint> flag_hints();

// What to say of "--lora" or "-y"; "" where nothing is known of the flag, as of those of videos
// without families.
std::string flag_hint(std::string_view flag, std::span<const FamilyConfig* const> families);

// "no model of this version makes videos (NAME: pictures and texts)", or which ones do and by which
// task; `results` as kind_name() has them.
std::string who_makes(std::string_view results, std::span<const FamilyConfig* const> families);

// Whether a task of this name makes videos in other programs.
bool is_video_task(std::string_view task);
// Whether files with this extension (".mp4") are videos.
bool is_video_extension(std::string_view extension);

inline constexpr std::string_view kVideos = "videos";

}  // namespace diptych
