// The kinds of clips behind ClipReader.
#pragma once

#include <filesystem>
#include <memory>

#include "lib/media/video/clip_read.h"

namespace diptych {

class ClipReader::Source {
 public:
  virtual ~Source() = default;
  const ClipFacts& facts() const { return facts_; }
  // To the next frame, the first at first; false behind the last one.
  virtual bool advance() = 0;
  virtual ClipFrame frame() = 0;  // the one that advance() has come to

 protected:
  ClipFacts facts_;
};

// Each throws as ClipReader for what is not of its kind or broken.
std::unique_ptr<ClipReader::Source> open_libav_clip(const std::filesystem::path& path,
                                                    const ClipLimits& limits);
std::unique_ptr<ClipReader::Source> open_webp_clip(const std::filesystem::path& path,
                                                   const ClipLimits& limits);
std::unique_ptr<ClipReader::Source> open_frame_folder(const std::filesystem::path& path,
                                                      const ClipLimits& limits);

// As decord counts them.
std::int64_t count_libav_packets(const std::filesystem::path& path, const ClipLimits& limits);

// Throws InputError naming the file unless a frame of these sides is within the limits.
void check_frame_size(std::int64_t width, std::int64_t height, const ClipLimits& limits,
                      std::string_view name);

// The rate of so many frames within `ticks`, of which a second has `per_second`: a whole number of
// frames per second where the last frame's end, rounded to a tick, allows one.
std::optional<FrameRate> rate_of_ticks(std::int64_t frames, std::int64_t ticks,
                                       std::int64_t per_second);

}  // namespace diptych
