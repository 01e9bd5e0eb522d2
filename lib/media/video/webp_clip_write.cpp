#include <webp/encode.h>
#include <webp/mux.h>

#include "lib/base/error.h"
#include "lib/media/metadata.h"
#include "lib/media/video/webp_clip.h"

namespace diptych {
namespace {

constexpr int kLossless = 100;  // quality

void require(bool done, const char* what) {
  if (!done) throw RunError("WebP encoder: {} failed", what);
}

struct Picture {
  WebPPicture stored;
  Picture() { require(WebPPictureInit(&stored) != 0, "another libwebp was built with; a picture"); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { WebPPictureFree(&stored); }
};

struct Data {
  WebPData stored;
  Data() { WebPDataInit(&stored); }
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  ~Data() { WebPDataClear(&stored); }
};

class Animation : public WebpAnimation {
 public:
  Animation(ImageSize size, FrameRate fps, int quality) : size_(size), fps_(fps) {
    WebPAnimEncoderOptions options;
    require(WebPAnimEncoderOptionsInit(&options) != 0, "another libwebp was built with; a start");
    options.anim_params.loop_count = 0;  // for ever
    // With loss libwebp leaves out what has hardly changed since the frame before, also where it
    // changes a little every time, and frames drift away: so each is whole.
    if (quality != kLossless) options.kmax = 1;
    encoder_.reset(
        WebPAnimEncoderNew(static_cast<int>(size.width), static_cast<int>(size.height), &options));
    require(encoder_ != nullptr, "a start");
    require(WebPConfigInit(&config_) != 0, "another libwebp was built with; a start");
    config_.quality = static_cast<float>(quality);
    // As the fastest of img2webp's and cwebp's useful ones: a clip has many frames.
    config_.lossless = quality == kLossless ? 1 : 0;
  }

  void add(const std::uint8_t* rgb) override {
    Picture picture;
    picture.stored.use_argb = 1;
    picture.stored.width = static_cast<int>(size_.width);
    picture.stored.height = static_cast<int>(size_.height);
    require(WebPPictureImportRGB(&picture.stored, rgb, static_cast<int>(size_.width * 3)) != 0,
            "a frame");
    require(WebPAnimEncoderAdd(encoder_.get(), &picture.stored, time_of(frames_), &config_) != 0,
            WebPAnimEncoderGetError(encoder_.get()));
    ++frames_;
  }

  std::vector<std::uint8_t> finish(const PictureTexts& texts) override {
    require(WebPAnimEncoderAdd(encoder_.get(), nullptr, time_of(frames_), nullptr) != 0, "the end");
    Data animation;
    require(WebPAnimEncoderAssemble(encoder_.get(), &animation.stored) != 0, "the file");
    if (texts.empty())
      return {animation.stored.bytes, animation.stored.bytes + animation.stored.size};
    return with_texts(animation.stored, texts);
  }

 private:
  // Milliseconds: rounded from the start, so that no error adds up.
  int time_of(std::int64_t frame) const {
    return static_cast<int>((frame * 1'000 * fps_.seconds * 2 + fps_.frames) / (2 * fps_.frames));
  }

  static std::vector<std::uint8_t> with_texts(const WebPData& animation,
                                              const PictureTexts& texts) {
    constexpr int kCopy = 1;
    const std::unique_ptr<WebPMux, void (*)(WebPMux*)> mux(WebPMuxCreate(&animation, kCopy),
                                                           WebPMuxDelete);
    require(mux != nullptr, "the file");
    const auto set = [&](const char* kind, const void* bytes, std::size_t size) {
      const WebPData chunk{static_cast<const std::uint8_t*>(bytes), size};
      require(WebPMuxSetChunk(mux.get(), kind, &chunk, kCopy) == WEBP_MUX_OK, "a text");
    };
    if (const std::vector<std::uint8_t> exif = make_exif(texts); !exif.empty())
      set("EXIF", exif.data(), exif.size());
    const std::string xmp = make_xmp(texts);
    set("XMP ", xmp.data(), xmp.size());
    Data whole;
    require(WebPMuxAssemble(mux.get(), &whole.stored) == WEBP_MUX_OK, "the file");
    return {whole.stored.bytes, whole.stored.bytes + whole.stored.size};
  }

  ImageSize size_;
  FrameRate fps_;
  WebPConfig config_;
  std::unique_ptr<WebPAnimEncoder, void (*)(WebPAnimEncoder*)> encoder_{nullptr,
                                                                        WebPAnimEncoderDelete};
  std::int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<WebpAnimation> make_webp_animation(ImageSize size, FrameRate fps, int quality) {
  return std::make_unique<Animation>(size, fps, quality);
}

}  // namespace diptych
