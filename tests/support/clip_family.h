// A family whose tasks read and make clips, for tests of what is general.
#pragma once

#include "lib/config/family_fields.h"

namespace diptych::test {

inline constexpr FieldDefault kShortDefaults[] = {{"video_frames", "5"}};

struct ClipSettings {
  std::int64_t resolution = 1;
};
inline const Field kClipFields[] = {
    {"resolution", Scope::picture, "--resolution", "N", "of films, which others call a size",
     WholeSlot{[](Options& options) -> std::int64_t& {
                 return options.run.own.get<ClipSettings>().resolution;
               },
               1, 9}},
};

inline constexpr TaskIdle kReadsNone[] = {{"resolution", "is of what is read"}};

inline const FamilyConfig& clip_family() {
  static const FamilyConfig config = {
      .name = "cinema",
      .released_model = "Cinema-1B",
      .owns = [](const std::filesystem::path& folder) { return folder.filename() == "cinema"; },
      .tasks =
          {{.name = "t2i", .help = "paint from text"},
           {.name = "t2v", .help = "film a text", .makes = MediaKind::clip, .idle = kReadsNone},
           {.name = "image_edit",
            .help = "edit a picture",
            .reads = {.pictures = kOne},
            .size_of_input = true},
           {.name = "i2v",
            .help = "film a picture",
            .reads = {.pictures = kOne},
            .makes = MediaKind::clip,
            .defaults = kShortDefaults},
           {.name = "video_edit",
            .help = "edit a video",
            .reads = {.clips = kOne},
            .makes = MediaKind::clip,
            .size_of_input = true,
            .frames_of_input = true,
            .sampling_key = "edit_sampling_params"},
           {.name = "x2t_image",
            .help = "answer about a picture",
            .reads = {.pictures = kOne},
            .makes = MediaKind::text},
           {.name = "x2t_video",
            .help = "answer about a video",
            .reads = {.clips = kOne},
            .makes = MediaKind::text},
           {.name = "blend",
            .help = "blend pictures into a video",
            .reads = {.pictures = {2, 3}, .clips = kOne},
            .makes = MediaKind::clip}},
      .defaults = {{"width", "64"},
                   {"height", "48"},
                   {"steps", "4"},
                   {"max_tokens", "16"},
                   {"video_frames", "9"}},
      .limits = {{.field = "video_frames", .high = 121}},
      .stages = {{YamlPlace::painting, "paints"}},
      .fields = with_common_fields(kClipFields),
      .unused = {"cfg_img_scale", "think", "think_output", "max_think_tokens"},
  };
  return config;
}

}  // namespace diptych::test
