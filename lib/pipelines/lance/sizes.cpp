#include "lib/pipelines/lance/sizes.h"

#include <algorithm>
#include <cmath>

#include "lib/base/error.h"
#include "lib/base/messages.h"

namespace diptych {
namespace {

constexpr double kBucketStride = 16;
constexpr std::int64_t kLatentPixels = 16, kLatentFrames = 4;
constexpr std::int64_t kMergedPixels = 28, kMergedFrames = 2;

constexpr double kFramesPerSecond = 12, kMaxSeconds = 6;

// To the multiple of 16; halves to even, as Python's round.
double to_stride(double pixels) {
  return std::nearbyint(pixels / kBucketStride) * kBucketStride;
}

struct Bucket {
  double width, height;
  double ratio() const { return width / height; }
  double area() const { return width * height; }
};

// Whichever has the better ratio, or with equal ratios the better area.
Bucket better(const Bucket& a, const Bucket& b, double ratio, double area) {
  const double off_a = std::abs(a.ratio() - ratio), off_b = std::abs(b.ratio() - ratio);
  if (off_a != off_b) return off_a < off_b ? a : b;
  return std::abs(a.area() - area) <= std::abs(b.area() - area) ? a : b;
}

ImageSize bucket_of(double ratio, double area) {
  const double width = to_stride(std::sqrt(area * ratio));
  const double height = to_stride(std::sqrt(area / ratio));
  const Bucket best =
      better({width, to_stride(width / ratio)}, {to_stride(height * ratio), height}, ratio, area);
  return {static_cast<std::int64_t>(best.height), static_cast<std::int64_t>(best.width)};
}

double ratio_of(ImageSize size) {
  return static_cast<double>(size.width) / static_cast<double>(size.height);
}

// The official number of frames; below 1 for a clip that is too short.
std::int64_t sampled_count(std::int64_t frames, double frames_per_second) {
  const double seconds = std::min(static_cast<double>(frames) / frames_per_second, kMaxSeconds);
  const auto count = static_cast<std::int64_t>(std::nearbyint(seconds * kFramesPerSecond));
  const std::int64_t whole = count / kLatentFrames * kLatentFrames;
  return count % kLatentFrames != 0 ? whole + 1 : whole + 1 - kLatentFrames;
}

}  // namespace

LanceSides sides_of(LanceResolution resolution) {
  switch (resolution) {
    case LanceResolution::video_96p:
      return {128, 144};
    case LanceResolution::video_192p:
    case LanceResolution::image_256res:
      return {256, 224};
    case LanceResolution::image_512res:
      return {512, 448};
    case LanceResolution::image_768res:
      return {768, 672};
    case LanceResolution::video_360p:
      return {480, 476};
    case LanceResolution::video_480p:
      return {640, 616};
  }
  TORCH_CHECK(false, "[sides_of] no such resolution: ", static_cast<int>(resolution));
}

std::vector<ImageSize> lance_buckets(std::int64_t side) {
  constexpr std::array kRatios = {21.0 / 9, 16.0 / 9, 4.0 / 3, 1.0, 3.0 / 4, 9.0 / 16};
  const double area = static_cast<double>(side) * static_cast<double>(side);
  std::vector<ImageSize> buckets;
  for (const double ratio : kRatios) buckets.push_back(bucket_of(ratio, area));
  return buckets;
}

ImageSize nearest_bucket(std::span<const ImageSize> buckets, ImageSize picture) {
  TORCH_CHECK(picture.height > 0 && picture.width > 0, "[nearest_bucket] a picture of ",
              picture.width, "x", picture.height);
  const double ratio = ratio_of(picture);
  return *std::ranges::min_element(
      buckets, {}, [&](ImageSize bucket) { return std::abs(ratio - ratio_of(bucket)); });
}

LanceSourceSizes LanceSourceSizes::of(ImageSize picture, LanceResolution resolution) {
  const LanceSides sides = sides_of(resolution);
  LanceSourceSizes sizes;
  sizes.vae = nearest_bucket(lance_buckets(sides.vae), picture);
  sizes.vit_bucket = nearest_bucket(lance_buckets(sides.vit), picture);
  sizes.vit = {sizes.vit_bucket.height / kMergedPixels * kMergedPixels,
               sizes.vit_bucket.width / kMergedPixels * kMergedPixels};
  return sizes;
}

LanceGrid latent_grid(std::int64_t frames, ImageSize size) {
  return {(frames - 1) / kLatentFrames + 1, size.height / kLatentPixels,
          size.width / kLatentPixels};
}

std::int64_t decoded_frames(const LanceGrid& latent) {
  return kLatentFrames * (latent.t - 1) + 1;
}

ImageSize decoded_size(const LanceGrid& latent) {
  return {latent.h * kLatentPixels, latent.w * kLatentPixels};
}

LanceGrid vit_grid(std::int64_t frames, ImageSize size) {
  return {(frames + kMergedFrames - 1) / kMergedFrames, size.height / kMergedPixels,
          size.width / kMergedPixels};
}

std::vector<std::int64_t> sample_frames(std::int64_t frames, double frames_per_second) {
  const double rate = std::nearbyint(frames_per_second);  // as int(round(...)) of the official code
  if (!(rate >= 1 && rate <= 1e6))
    throw InputError("{} frames a second, expected 1 to 1000000", frames_per_second);
  const std::int64_t count = frames < 1 ? 0 : sampled_count(frames, rate);
  if (count < 1) {
    throw InputError("{} at {} a second, expected a clip of more than {:.3f} seconds",
                     counted(static_cast<std::size_t>(frames), "frame"), rate,
                     0.5 / kFramesPerSecond);
  }
  // numpy.linspace in whole numbers: each step is rounded down, the last frame always taken.
  const double last = static_cast<double>(frames - 1);
  const double step = count > 1 ? last / static_cast<double>(count - 1) : 0;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i)
    indices.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(i) * step)));
  if (count > 1) indices.back() = frames - 1;
  return indices;
}

}  // namespace diptych
