#include "lib/media/picture_write.h"

#include "lib/base/error.h"
#include "lib/media/jpeg.h"
#include "lib/media/png.h"
#include "lib/media/webp.h"

namespace diptych {

std::vector<std::uint8_t> encode_picture(const Tensor& rgb, const PictureTexts& texts,
                                         const PictureEncoding& encoding) {
  switch (encoding.format) {
    case PictureFormat::png:
      return encode_png(rgb, texts);
    case PictureFormat::jpeg:
      return encode_jpeg(rgb, texts, encoding.quality);
    case PictureFormat::webp:
      return encode_webp(rgb, texts, encoding.quality);
    default:
      throw InputError("{} is not written", facts_of(encoding.format).name);
  }
}

}  // namespace diptych
