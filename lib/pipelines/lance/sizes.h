// Which sizes Lance works at: the buckets that pictures and clips are brought to, latent and patch
// grids, and the frames that are taken of a clip.
// specs: lance.md sections 6.1, 6.3 and 6.4; bytedance/Lance @4baeee0,
// data/video/transforms/bucket_resize.py and data/video/sampler/frames.py.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/media/image.h"

namespace diptych {

// `--resolution` of the official code: how large sources are read; and video_96p, of the demo.
enum class LanceResolution {
  video_96p,
  video_192p,
  image_256res,
  image_512res,
  image_768res,
  video_360p,
  video_480p
};
template <>
inline constexpr std::array<std::string_view, 7> kChoiceNames<LanceResolution> = {
    "video_96p",    "video_192p", "image_256res", "image_512res",
    "image_768res", "video_360p", "video_480p"};

// Of the square that has as many pixels as the buckets.
struct LanceSides {
  std::int64_t vae = 0, vit = 0;  // pixels
};
LanceSides sides_of(LanceResolution resolution);

// One size for each of 21:9, 16:9, 4:3, 1:1, 3:4 and 9:16: multiples of 16 with about side^2
// pixels.
std::vector<ImageSize> lance_buckets(std::int64_t side);
// The bucket whose ratio of width to height is nearest, the first of equals. Throws c10::Error for
// a picture without pixels.
ImageSize nearest_bucket(std::span<const ImageSize> buckets, ImageSize picture);

// The sizes of one source: a picture, or the first frame of a clip.
struct LanceSourceSizes {
  ImageSize vae;  // what the autoencoder sees: the target of an edit, and of i2v, has it, too
  ImageSize vit_bucket;  // before the crop to multiples of 28
  ImageSize vit;         // what the vision tower sees
  static LanceSourceSizes of(ImageSize picture, LanceResolution resolution);
};

// Rows of a visual block: frames, height and width.
struct LanceGrid {
  std::int64_t t = 0, h = 0, w = 0;
  std::int64_t rows() const { return t * h * w; }
  bool operator==(const LanceGrid&) const = default;
};

inline constexpr std::int64_t kMaxLanceFrames = 121;  // of a target: 31 latent frames

// Of a picture (one frame) or clip: t = (frames - 1) / 4 + 1, h and w in steps of 16 pixels, what
// is over is cut off.
LanceGrid latent_grid(std::int64_t frames, ImageSize size);
// Frames and pixels that are decoded from it: 50 frames are asked for, 49 come.
std::int64_t decoded_frames(const LanceGrid& latent);
ImageSize decoded_size(const LanceGrid& latent);
// Of the vision tower's tokens (2 x 2 patches of 14 pixels): a picture is one step of t; a clip's
// steps are pairs of frames, the last one repeated if it is alone.
LanceGrid vit_grid(std::int64_t frames, ImageSize size);

// Indices of the 4k + 1 frames that the official code reads of a clip of `frames` frames: 12 a
// second for at most 6 seconds, spread over the whole clip (a longer one is sped up). Throws
// InputError for a clip that is too short, or has no frame rate.
std::vector<std::int64_t> sample_frames(std::int64_t frames, double frames_per_second);

}  // namespace diptych
