// GIF files of many frames (GIF89a), without a library.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/frame_rate.h"
#include "lib/media/image.h"
#include "lib/media/video/palette.h"

namespace diptych {

class GifWriter {
 public:
  GifWriter(ImageSize size, FrameRate fps);  // sides below 65536

  void add(std::span<const std::uint8_t> rgb);  // [height][width][3]
  // The file, which loops for ever, with these comments at its end.
  std::vector<std::uint8_t> finish(const std::vector<std::string>& comments);

 private:
  void put16(std::int64_t value);
  void put_sub_blocks(std::span<const std::uint8_t> data);
  std::int64_t hundredths(std::int64_t frame) const;  // when it begins

  ImageSize size_;
  FrameRate fps_;
  Quantizer quantizer_;
  std::vector<std::uint8_t> bytes_;
  std::int64_t frames_ = 0;
};

}  // namespace diptych
