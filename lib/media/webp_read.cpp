#include <webp/decode.h>
#include <webp/mux.h>

#include "lib/base/error.h"
#include "lib/media/exif.h"
#include "lib/media/metadata.h"
#include "lib/media/webp.h"

namespace diptych {
namespace {

[[noreturn]] void refuse(VP8StatusCode status, std::string_view name) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      throw RunError("{}: out of memory while reading it", name);
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      throw InputError("{}: broken WebP: the file ends early", name);
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      throw InputError("{}: a WebP file with a feature that libwebp does not have", name);
    default:
      throw InputError("{}: broken WebP", name);
  }
}

// What RIFF says of the file's length; libwebp reads a file that is shorter as far as it can.
void check_length(std::span<const std::uint8_t> bytes, std::string_view name) {
  constexpr std::size_t kRiffBytes = 8;
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 4;) length = length << 8 | (i < bytes.size() ? bytes[i] : 0u);
  if (length + kRiffBytes > bytes.size())
    throw InputError("{}: broken WebP: the file ends early", name);
}

WebPBitstreamFeatures open_webp(std::span<const std::uint8_t> bytes, std::string_view name) {
  check_length(bytes, name);
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(bytes.data(), bytes.size(), &features);
  if (status != VP8_STATUS_OK) refuse(status, name);
  if (features.has_animation != 0)
    throw InputError("{}: an animated WebP file, expected a still picture", name);
  check_image_size(features.width, features.height, name);
  return features;
}

struct Metadata {
  std::span<const std::uint8_t> exif, xmp;  // of `mux`
  std::unique_ptr<WebPMux, void (*)(WebPMux*)> mux{nullptr, WebPMuxDelete};
};

std::span<const std::uint8_t> chunk(const WebPMux* mux, const char* kind) {
  WebPData data;
  if (WebPMuxGetChunk(mux, kind, &data) != WEBP_MUX_OK) return {};
  return {data.bytes, data.size};
}

Metadata read_metadata(std::span<const std::uint8_t> bytes) {
  const WebPData data = {bytes.data(), bytes.size()};
  Metadata found;
  found.mux.reset(WebPMuxCreate(&data, 0));
  if (found.mux == nullptr) return found;  // damage behind the pixels
  found.exif = chunk(found.mux.get(), "EXIF");
  found.xmp = chunk(found.mux.get(), "XMP ");
  return found;
}

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

PictureTexts texts_of(const Metadata& metadata) {
  return merge_texts(xmp_texts(as_text(metadata.xmp)), exif_texts(metadata.exif));
}

}  // namespace

PictureTexts webp_texts(std::span<const std::uint8_t> bytes) {
  return texts_of(read_metadata(bytes));
}

ImageSize webp_size(std::span<const std::uint8_t> bytes, std::string_view name) {
  const WebPBitstreamFeatures features = open_webp(bytes, name);
  const Metadata metadata = read_metadata(bytes);
  return upright_size(features.height, features.width, exif_orientation(metadata.exif));
}

Image decode_webp(std::span<const std::uint8_t> bytes, std::string_view name) {
  const WebPBitstreamFeatures features = open_webp(bytes, name);
  const std::int64_t width = features.width, height = features.height;
  const std::int64_t channels = features.has_alpha != 0 ? 4 : 3;
  const Tensor stored = at::empty({height, width, channels}, at::kByte);
  auto* out = stored.data_ptr<std::uint8_t>();
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0)
    throw RunError("{}: another libwebp was built with", name);
  config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out, static_cast<int>(width * channels), stored.nbytes()};
  const VP8StatusCode status = WebPDecode(bytes.data(), bytes.size(), &config);
  if (status != VP8_STATUS_OK) refuse(status, name);

  const Metadata metadata = read_metadata(bytes);
  Image image{stored, texts_of(metadata), exif_orientation(metadata.exif)};
  if (channels == 3) return image;
  image.rgb = at::empty({height, width, 3}, at::kByte);
  auto* rgb = image.rgb.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < width * height; ++i) {
    for (std::int64_t c = 0; c < 3; ++c)
      rgb[i * 3 + c] = over_white(out[i * 4 + c], out[i * 4 + 3]);
  }
  return image;
}

}  // namespace diptych
