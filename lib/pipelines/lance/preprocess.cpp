#include "lib/pipelines/lance/preprocess.h"

#include <array>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "lib/media/resize.h"

namespace diptych {
namespace {

struct Normalisation {
  std::array<float, 3> mean, deviation;
};
constexpr Normalisation kVae = {{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}};
constexpr Normalisation kVit = {{0.48145466F, 0.4578275F, 0.40821073F},
                                {0.26862954F, 0.26130258F, 0.27577711F}};

// Halves to even, as Python's round.
std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

// torchvision's RandomResizedCrop takes a ratio to its float32 logarithm and back.
double as_drawn(double ratio) {
  return at::exp(at::log(at::scalar_tensor(ratio, at::kFloat))).item<float>();
}

CropBox centred(ImageSize picture, std::int64_t height, std::int64_t width) {
  return {(picture.height - height) / 2, (picture.width - width) / 2, height, width};
}

void check_frames(std::span<const Tensor> frames) {
  TORCH_CHECK(!frames.empty(), "[lance_pixels] no frames");
  for (const Tensor& frame : frames) {
    TORCH_CHECK(frame.dim() == 3 && frame.size(2) == 3 && frame.scalar_type() == at::kByte &&
                    frame.device().is_cpu() && frame.numel() > 0,
                "[lance_pixels] expected uint8 [height, width, 3] on the CPU, got ",
                frame.scalar_type(), " ", frame.sizes(), " ", frame.device());
  }
}

ImageSize size_of(const Tensor& frame) {
  return {frame.size(0), frame.size(1)};
}

// uint8 [H, W, 3] -> uint8 [size.height, size.width, 3].
Tensor bring_to(const Tensor& frame, ImageSize bucket, ImageSize size) {
  const CropBox box = crop_box(size_of(frame), bucket);
  const Tensor part = frame.narrow(0, box.top, box.height).narrow(1, box.left, box.width);
  const Tensor resized = resize_bicubic(part, bucket.height, bucket.width);
  // torchvision's centre crop rounds where a centred box would be half a pixel off.
  const auto before = [](std::int64_t from, std::int64_t to) {
    return rounded(static_cast<double>(from - to) / 2);
  };
  return resized.narrow(0, before(bucket.height, size.height), size.height)
      .narrow(1, before(bucket.width, size.width), size.width);
}

// -> float32 [3, frames, height, width]
Tensor normalised(const std::vector<Tensor>& frames, const Normalisation& normalisation) {
  const Tensor planes = at::stack(frames).permute({3, 0, 1, 2}).contiguous();
  const auto per_channel = [](const std::array<float, 3>& values) {
    return at::tensor(values, at::kFloat).view({3, 1, 1, 1});
  };
  return planes.to(at::kFloat)
      .div_(255)
      .sub_(per_channel(normalisation.mean))
      .div_(per_channel(normalisation.deviation));
}

}  // namespace

CropBox crop_box(ImageSize picture, ImageSize bucket) {
  const auto height = static_cast<double>(picture.height),
             width = static_cast<double>(picture.width);
  const double ratio = static_cast<double>(bucket.width) / static_cast<double>(bucket.height);
  const double drawn = as_drawn(ratio);
  const std::int64_t whole_width = rounded(std::sqrt(height * width * drawn));
  const std::int64_t whole_height = rounded(std::sqrt(height * width / drawn));
  const bool fits = whole_width > 0 && whole_width <= picture.width && whole_height > 0 &&
                    whole_height <= picture.height;
  if (fits) return centred(picture, whole_height, whole_width);
  if (width / height < ratio) return centred(picture, rounded(width / ratio), picture.width);
  if (width / height > ratio) return centred(picture, picture.height, rounded(height * ratio));
  return centred(picture, picture.height, picture.width);
}

Tensor lance_vae_pixels(std::span<const Tensor> frames, LanceResolution resolution) {
  check_frames(frames);
  const ImageSize size = LanceSourceSizes::of(size_of(frames[0]), resolution).vae;
  std::vector<Tensor> sized;
  for (const Tensor& frame : frames) sized.push_back(bring_to(frame, size, size));
  return normalised(sized, kVae);
}

Tensor lance_vit_pixels(std::span<const Tensor> frames, LanceResolution resolution) {
  check_frames(frames);
  const LanceSourceSizes sizes = LanceSourceSizes::of(size_of(frames[0]), resolution);
  std::vector<Tensor> sized;
  for (const Tensor& frame : frames) sized.push_back(bring_to(frame, sizes.vit_bucket, sizes.vit));
  if (sized.size() % 2 == 1) sized.push_back(sized.back());
  return normalised(sized, kVit);
}

}  // namespace diptych
