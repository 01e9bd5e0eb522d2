#include "lib/media/video/libav/rgb.h"

#include <algorithm>
#include <cstring>

extern "C" {
#include <libavutil/pixdesc.h>
}

#include "lib/media/over_white.h"

namespace diptych::libav {
namespace {

bool has_alpha(int format) {
  const AVPixFmtDescriptor* facts = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(format));
  return facts != nullptr && (facts->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
}

}  // namespace

RgbScaler::RgbScaler(std::int64_t width, std::int64_t height)
    : width_(static_cast<int>(width)), height_(static_cast<int>(height)) {}

// The flags are those of ffmpeg and decord: SWS_ACCURATE_RND gives other levels, by up to 29 of
// them at edges of colour.
void RgbScaler::prepare(const AVFrame& frame, AVPixelFormat wanted) {
  const bool same = scaler_ != nullptr && frame.width == from_width_ &&
                    frame.height == from_height_ && frame.format == from_format_ &&
                    frame.colorspace == from_matrix_ && frame.color_range == from_range_;
  if (same) return;
  scaler_.reset(sws_getContext(frame.width, frame.height, static_cast<AVPixelFormat>(frame.format),
                               width_, height_, wanted, SWS_BICUBIC, nullptr, nullptr, nullptr));
  if (scaler_ == nullptr) {
    const char* name = av_get_pix_fmt_name(static_cast<AVPixelFormat>(frame.format));
    throw InputError("frames of the pixel format {}, which libswscale does not convert",
                     name == nullptr ? "none" : name);
  }
  int *ignored = nullptr, *table = nullptr, from_range = 0, to_range = 0;
  int brightness = 0, contrast = 0, saturation = 0;
  const int known = sws_getColorspaceDetails(scaler_.get(), &ignored, &from_range, &table,
                                             &to_range, &brightness, &contrast, &saturation);
  if (known >= 0) {
    if (frame.color_range != AVCOL_RANGE_UNSPECIFIED)
      from_range = frame.color_range == AVCOL_RANGE_JPEG ? 1 : 0;
    // Both ways the stream's matrix: RGB of more than 8 bits passes through YUV.
    const bool yuv = frame.colorspace != AVCOL_SPC_RGB;
    const int* matrix =
        sws_getCoefficients(yuv ? static_cast<int>(frame.colorspace) : SWS_CS_ITU601);
    sws_setColorspaceDetails(scaler_.get(), matrix, from_range, matrix, to_range, brightness,
                             contrast, saturation);
  }
  from_width_ = frame.width;
  from_height_ = frame.height;
  from_format_ = frame.format;
  from_matrix_ = frame.colorspace;
  from_range_ = frame.color_range;
  out_ = required(Frame(av_frame_alloc()));
  out_->format = wanted;
  out_->width = width_;
  out_->height = height_;
  must(av_frame_get_buffer(out_.get(), 0), "a frame");
}

void RgbScaler::convert(const AVFrame& frame, std::uint8_t* rgb) {
  const bool alpha = has_alpha(frame.format);
  prepare(frame, alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24);
  const int rows = sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, out_->data,
                             out_->linesize);
  must(rows, "conversion to RGB");
  const auto row_bytes = static_cast<std::size_t>(width_) * 3;
  for (int y = 0; y < height_; ++y, rgb += row_bytes) {
    const std::uint8_t* row = out_->data[0] + std::ptrdiff_t{y} * out_->linesize[0];
    if (!alpha) {
      std::memcpy(rgb, row, row_bytes);
      continue;
    }
    for (std::size_t i = 0; i < row_bytes; ++i) {
      const std::size_t pixel = i / 3;
      rgb[i] = over_white(row[pixel * 4 + i % 3], row[pixel * 4 + 3]);
    }
  }
}

}  // namespace diptych::libav
