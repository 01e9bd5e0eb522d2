#include "apps/diptych/record/frames_gap.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/messages.h"
#include "lib/media/video/clip_read.h"

namespace diptych {
namespace {

void add_frame(FramesGap& gap, const Tensor& then, const Tensor& now) {
  const Tensor levels = (then.to(at::kInt) - now.to(at::kInt)).abs().amax(2);  // [height, width]
  const auto differ = levels.gt(0).sum().item<std::int64_t>();
  gap.pixels += levels.numel();
  gap.pixels_differ += differ;
  gap.max_level = std::max(gap.max_level, levels.max().item<std::int64_t>());
  if (differ > 0 && gap.frames_differ++ == 0) gap.first = gap.frames;
  ++gap.frames;
}

}  // namespace

FramesGap compare_frames(const std::filesystem::path& then, const std::filesystem::path& now) {
  ClipReader of_then(then), of_now(now);
  FramesGap gap;
  for (;;) {
    const auto a = of_then.next(), b = of_now.next();
    if (!a && !b) return gap;
    gap.same_shape = a && b && a->rgb.sizes() == b->rgb.sizes();
    if (!gap.same_shape) return gap;
    add_frame(gap, a->rgb, b->rgb);
  }
}

void add_gap(nlohmann::ordered_json& json, const FramesGap& gap) {
  json["frames"] = gap.frames;
  json["frames_differ"] = gap.frames_differ;
  json["pixels"] = gap.pixels;
  json["pixels_differ"] = gap.pixels_differ;
  json["max_level"] = gap.max_level;
}

std::string gap_text(const FramesGap& gap) {
  return fmt::format("differs: {} of {} frames, from frame {} on; {} of {} pixels, by at most {}",
                     gap.frames_differ, gap.frames, gap.first, gap.pixels_differ, gap.pixels,
                     counted(static_cast<std::size_t>(gap.max_level), "level"));
}

}  // namespace diptych
