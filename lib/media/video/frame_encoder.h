// What makes the file of a clip from its frames, whatever the format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/media/video/clip_write.h"

namespace diptych {

class FrameEncoder {
 public:
  virtual ~FrameEncoder() = default;
  virtual void add(std::span<const std::uint8_t> rgb) = 0;  // [height][width][3]
  virtual std::vector<std::uint8_t> finish(const PictureTexts& texts) = 0;
};

// Not of a folder. Throws as require_writable_clip().
std::unique_ptr<FrameEncoder> make_frame_encoder(const ClipEncoding& encoding, ImageSize size);

}  // namespace diptych
