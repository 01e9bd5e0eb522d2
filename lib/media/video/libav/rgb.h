// Frames of any pixel format into RGB, as ffmpeg -pix_fmt rgb24 makes them.
#pragma once

#include <cstdint>

#include "lib/media/video/libav/handles.h"

namespace diptych::libav {

class RgbScaler {
 public:
  RgbScaler(std::int64_t width, std::int64_t height);

  // `rgb`: height * width * 3. A frame of another size is scaled; alpha is blended over white.
  void convert(const AVFrame& frame, std::uint8_t* rgb);

 private:
  void prepare(const AVFrame& frame, AVPixelFormat wanted);

  int width_, height_;
  Scaler scaler_;
  // What scaler_ was made for.
  int from_width_ = 0, from_height_ = 0, from_format_ = -1, from_matrix_ = -1, from_range_ = -1;
  Frame out_;  // rows as swscale likes to write them
};

}  // namespace diptych::libav
