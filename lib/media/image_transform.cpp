#include "lib/media/image_transform.h"

#include <algorithm>
#include <cmath>

#include "lib/media/resize.h"

namespace diptych {
namespace {

// In double, as Python divides; whole numbers below 2^53 are exact.
struct Size {
  double height, width;
  double pixels() const { return height * width; }
  double long_side() const { return std::max(height, width); }
  double short_side() const { return std::min(height, width); }
};

double scaled(double side, double scale, double stride) {
  // nearbyint rounds halves to even, as Python's round does
  return std::max(stride, std::nearbyint(std::nearbyint(side * scale) / stride) * stride);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> ImageTransform::size(std::int64_t height,
                                                           std::int64_t width) const {
  constexpr std::int64_t kMaxSide = std::int64_t{1} << 31;
  TORCH_CHECK(height > 0 && width > 0 && height <= kMaxSide && width <= kMaxSide,
              "[image_transform] sides must be 1 to ", kMaxSide, ", got ", height, "x", width);
  TORCH_CHECK(max_size > 0 && min_size > 0 && stride > 0 && max_pixels > 0,
              "[image_transform] max_size ", max_size, ", min_size ", min_size, ", stride ", stride,
              ", max_pixels ", max_pixels);
  const auto longest = static_cast<double>(max_size), shortest = static_cast<double>(min_size),
             step = static_cast<double>(stride), most = static_cast<double>(max_pixels);
  Size size{static_cast<double>(height), static_cast<double>(width)};
  const auto apply = [&](double scale) {
    size = {scaled(size.height, scale, step), scaled(size.width, scale, step)};
  };
  apply(std::max(std::min(longest / size.long_side(), 1.0), shortest / size.short_side()));
  if (size.pixels() > most) apply(most / size.pixels());  // not its square root: as upstream
  if (size.long_side() > longest) apply(longest / size.long_side());
  return {static_cast<std::int64_t>(size.height), static_cast<std::int64_t>(size.width)};
}

Tensor ImageTransform::resize(const Tensor& image) const {
  const auto [height, width] = size(image.size(0), image.size(1));
  return resize_bicubic(image, height, width);
}

Tensor to_model_input(const Tensor& image) {
  TORCH_CHECK(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte,
              "[to_model_input] expected uint8 [height, width, 3], got ", image.scalar_type(), " ",
              image.sizes());
  const Tensor planes = image.permute({2, 0, 1}).unsqueeze(0).contiguous();  // [1, 3, H, W]
  return planes.to(at::kFloat).div_(255).sub_(0.5).div_(0.5);
}

Tensor to_uint8(const Tensor& image) {
  const Tensor unit = (image.select(0, 0) * 0.5 + 0.5).clamp(0, 1) * 255;
  return unit.permute({1, 2, 0}).to(at::kByte).contiguous();
}

}  // namespace diptych
