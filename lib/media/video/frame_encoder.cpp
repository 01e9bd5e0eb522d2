#include "lib/media/video/frame_encoder.h"

#include "lib/base/error.h"
#include "lib/media/video/clip_texts.h"
#include "lib/media/video/gif_write.h"
#include "lib/media/video/libav_library.h"
#include "lib/media/video/webp_clip.h"

namespace diptych {
namespace {

constexpr std::string_view kOutput = "the output";

class LibavEncoder : public FrameEncoder {
 public:
  LibavEncoder(const ClipEncoding& encoding, ImageSize size)
      : encoder_(libav_module(kOutput).open_encoder(
            {encoding.format, size.width, size.height, encoding.fps,
             encoding.crf.value_or(facts_of(encoding.format).crf->usual)})) {}

  void add(std::span<const std::uint8_t> rgb) override { encoder_->add(rgb.data()); }
  std::vector<std::uint8_t> finish(const PictureTexts& texts) override {
    return encoder_->finish(clip_tags(texts));
  }

 private:
  std::unique_ptr<libav::Encoder> encoder_;
};

class GifEncoder : public FrameEncoder {
 public:
  GifEncoder(const ClipEncoding& encoding, ImageSize size) : writer_(size, encoding.fps) {}

  void add(std::span<const std::uint8_t> rgb) override { writer_.add(rgb); }
  std::vector<std::uint8_t> finish(const PictureTexts& texts) override {
    return writer_.finish(gif_comments(texts));
  }

 private:
  GifWriter writer_;
};

class WebpEncoder : public FrameEncoder {
 public:
  WebpEncoder(const ClipEncoding& encoding, ImageSize size)
      : animation_(make_webp_animation(size, encoding.fps, encoding.quality)) {}

  void add(std::span<const std::uint8_t> rgb) override { animation_->add(rgb.data()); }
  std::vector<std::uint8_t> finish(const PictureTexts& texts) override {
    return animation_->finish(texts);
  }

 private:
  std::unique_ptr<WebpAnimation> animation_;
};

void require_between(std::string_view setting, int value, int low, int high,
                     std::string_view format) {
  if (value >= low && value <= high) return;
  throw InputError(Setting::of(setting), "{} is out of range; expected {} to {} for {}", value, low,
                   high, format);
}

void require_side(std::string_view setting, std::int64_t side, const ClipFormatFacts& facts) {
  if (side < 1 || side > facts.max_side) {
    throw InputError(Setting::of(setting), "{} pixels, expected 1 to {} for {}", side,
                     facts.max_side, facts.name);
  }
  if (facts.even_sides && side % 2 != 0) {
    throw InputError(Setting::of(setting),
                     "{} pixels are odd; {} needs even sides, expected {} or {}", side, facts.name,
                     side - 1, side + 1);
  }
}

void require_library(const ClipFormatFacts& facts) {
  if (facts.library != "libav") {
    if (!facts.built_in) {
      throw InputError("{}: a {} clip, which this build cannot write (it is without {})", kOutput,
                       facts.name, facts.library);
    }
    return;
  }
  const std::string missing = libav_module(kOutput).missing_encoder(facts.format);
  if (!missing.empty()) {
    throw InputError("{}: a {} clip needs {}, which the libav of this machine is without", kOutput,
                     facts.name, missing);
  }
}

}  // namespace

void require_writable_clip(const ClipEncoding& encoding, ImageSize size) {
  const ClipFormatFacts& facts = facts_of(encoding.format);
  const double rate = encoding.fps.value();
  if (!(rate >= kMinFrameRate && rate <= facts.max_rate)) {
    throw InputError(Setting::of("fps"), "{} is out of range; expected {:g} to {:g} for {}",
                     frame_rate_text(encoding.fps), kMinFrameRate, facts.max_rate, facts.name);
  }
  if (encoding.crf && !facts.crf)
    throw InputError(Setting::of("crf"), "has no meaning for {}", facts.name);
  if (encoding.crf)
    require_between("crf", *encoding.crf, facts.crf->min, facts.crf->max, facts.name);
  if (facts.has_quality) require_between("quality", encoding.quality, 1, 100, facts.name);
  require_side("width", size.width, facts);
  require_side("height", size.height, facts);
  require_library(facts);
}

std::unique_ptr<FrameEncoder> make_frame_encoder(const ClipEncoding& encoding, ImageSize size) {
  TORCH_CHECK(encoding.format != ClipFormat::png, "[clip] a folder is not one file");
  require_writable_clip(encoding, size);
  switch (encoding.format) {
    case ClipFormat::gif:
      return std::make_unique<GifEncoder>(encoding, size);
    case ClipFormat::webp:
      return std::make_unique<WebpEncoder>(encoding, size);
    default:
      return std::make_unique<LibavEncoder>(encoding, size);
  }
}

}  // namespace diptych
