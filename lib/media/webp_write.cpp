#include <webp/encode.h>
#include <webp/mux.h>

#include "lib/base/error.h"
#include "lib/media/metadata.h"
#include "lib/media/webp.h"

namespace diptych {
namespace {

constexpr int kLossless = 100;      // quality
constexpr int kLosslessEffort = 6;  // libwebp's preset 6 of 0 to 9, what cwebp -z 6 takes

struct Encoder {
  WebPConfig config;
  WebPPicture picture;
  WebPMemoryWriter written;

  Encoder() {
    if (WebPConfigInit(&config) == 0 || WebPPictureInit(&picture) == 0)
      throw RunError("WebP encoder: another libwebp was built with");
    WebPMemoryWriterInit(&written);
    picture.writer = WebPMemoryWrite;
    picture.custom_ptr = &written;
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
  ~Encoder() {
    WebPPictureFree(&picture);
    WebPMemoryWriterClear(&written);
  }
};

void require(bool done, const Encoder& encoder) {
  if (!done) throw RunError("WebP encoder: error {}", static_cast<int>(encoder.picture.error_code));
}

void encode_pixels(Encoder& encoder, const Tensor& pixels, int quality) {
  encoder.config.quality = static_cast<float>(quality);
  if (quality == kLossless)
    require(WebPConfigLosslessPreset(&encoder.config, kLosslessEffort) != 0, encoder);
  WebPPicture& picture = encoder.picture;
  picture.use_argb = quality == kLossless ? 1 : 0;
  picture.height = static_cast<int>(pixels.size(0));
  picture.width = static_cast<int>(pixels.size(1));
  const int stride = static_cast<int>(pixels.size(1) * 3);
  require(WebPPictureImportRGB(&picture, pixels.const_data_ptr<std::uint8_t>(), stride) != 0,
          encoder);
  require(WebPEncode(&encoder.config, &picture) != 0, encoder);
}

void require(WebPMuxError error) {
  if (error != WEBP_MUX_OK) throw RunError("WebP encoder: mux error {}", static_cast<int>(error));
}

std::vector<std::uint8_t> with_texts(const Encoder& encoder, const PictureTexts& texts) {
  const std::unique_ptr<WebPMux, void (*)(WebPMux*)> mux(WebPMuxNew(), WebPMuxDelete);
  if (mux == nullptr) throw RunError("WebP encoder: out of memory");
  constexpr int kCopy = 1;
  const WebPData image = {encoder.written.mem, encoder.written.size};
  require(WebPMuxSetImage(mux.get(), &image, kCopy));
  if (const std::vector<std::uint8_t> exif = make_exif(texts); !exif.empty()) {
    const WebPData chunk = {exif.data(), exif.size()};
    require(WebPMuxSetChunk(mux.get(), "EXIF", &chunk, kCopy));
  }
  const std::string xmp = make_xmp(texts);
  const WebPData chunk = {reinterpret_cast<const std::uint8_t*>(xmp.data()), xmp.size()};
  require(WebPMuxSetChunk(mux.get(), "XMP ", &chunk, kCopy));
  WebPData whole;
  WebPDataInit(&whole);
  require(WebPMuxAssemble(mux.get(), &whole));
  const std::unique_ptr<WebPData, void (*)(WebPData*)> cleared(&whole, WebPDataClear);
  return {whole.bytes, whole.bytes + whole.size};
}

}  // namespace

std::vector<std::uint8_t> encode_webp(const Tensor& rgb, const PictureTexts& texts, int quality) {
  TORCH_CHECK(rgb.dim() == 3 && rgb.size(2) == 3 && rgb.scalar_type() == at::kByte,
              "[webp] expected uint8 [height, width, 3], got ", rgb.scalar_type(), " ",
              rgb.sizes());
  TORCH_CHECK(quality >= 1 && quality <= 100, "[webp] quality ", quality);
  Encoder encoder;
  encode_pixels(encoder, rgb.to(at::kCPU).contiguous(), quality);
  if (!texts.empty()) return with_texts(encoder, texts);
  return {encoder.written.mem, encoder.written.mem + encoder.written.size};
}

}  // namespace diptych
