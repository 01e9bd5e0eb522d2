#include "apps/diptych/record/replay_difference.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/diptych/record/frames_gap.h"
#include "lib/base/messages.h"
#include "lib/base/utf8.h"
#include "lib/config/words.h"
#include "lib/media/video/clip_read.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

std::string not_the_file(bool same_texts) {
  return fmt::format("the same pixels, but not the same file: {}",
                     same_texts ? "it was compressed otherwise" : "its texts differ");
}

}  // namespace

// Characters are counted from 1.
std::string text_difference(const std::string& then, const std::string& now, Json& json) {
  std::size_t at = 0;
  std::int64_t number = 1;
  while (at < std::min(then.size(), now.size())) {
    const std::size_t length = utf8_at(then, at).length;
    if (then.compare(at, length, now, at, length) != 0) break;
    at += length;
    ++number;
  }
  json["first_difference"] = number;
  const auto from_there = [at](const std::string& text) {
    return at == text.size() ? std::string("its end") : in_quotes(shortened(text.substr(at)));
  };
  return fmt::format("differs from character {} on: {}, now {}", number, from_there(then),
                     from_there(now));
}

std::string clip_difference(const std::filesystem::path& then, const std::filesystem::path& now,
                            bool same_painting, Json& json) {
  const FramesGap gap = compare_frames(then, now);
  if (!gap.same_shape) return "differs: other sizes, or another number of frames";
  add_gap(json, gap);
  if (gap.pixels_differ == 0) return not_the_file(read_clip_texts(now) == read_clip_texts(then));
  if (!same_painting) return gap_text(gap);
  return fmt::format("the same video before it was encoded, but {} of {} frames differ",
                     gap.frames_differ, gap.frames);
}

std::string picture_difference(const ReadPicture& then, const ReadPicture& now, bool same_painting,
                               Json& json) {
  const Tensor& old = then.image.rgb;
  const Tensor& again = now.image.rgb;
  if (old.sizes() != again.sizes())
    return fmt::format("differs: {}x{}, now {}x{}", old.size(1), old.size(0), again.size(1),
                       again.size(0));
  const Tensor gap = (old.to(at::kInt) - again.to(at::kInt)).abs().amax(2);  // [height, width]
  const auto pixels = gap.gt(0).sum().item<std::int64_t>();
  const auto level = gap.max().item<std::int64_t>();
  json["pixels"] = gap.numel();
  json["pixels_differ"] = pixels;
  json["max_level"] = level;
  if (pixels > 0 && same_painting)
    return fmt::format("the same picture before it was encoded, but {} of {} pixels differ", pixels,
                       gap.numel());
  if (pixels > 0) {
    return fmt::format("differs: {} of {} pixels, by at most {}", pixels, gap.numel(),
                       counted(static_cast<std::size_t>(level), "level"));
  }
  return not_the_file(now.image.text == then.image.text);
}

}  // namespace diptych
