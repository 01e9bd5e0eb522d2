// What WebP alone can get wrong.
#include "lib/media/webp.h"

#include <doctest/doctest.h>

#include "lib/base/picture_formats.h"
#include "lib/media/file_bytes.h"
#include "tests/media/support.h"
#include "tests/support/skip.h"

namespace {

using namespace diptych;
using test::input_error;
using Bytes = std::vector<std::uint8_t>;

constexpr const char* kNoWebp = "this build has no libwebp";

bool supported() {
  return facts_of(PictureFormat::webp).built_in;
}

Bytes picture(const char* name) {
  return read_file_bytes(test::pictures_folder() / name);
}

std::string error_of(const Bytes& bytes) {
  return input_error([&] { decode_webp(bytes, "x.webp"); });
}

TEST_SUITE_BEGIN("needs webp");

TEST_CASE("an animation is refused") {
  if (!supported()) return test::skip(kNoWebp);
  // RIFF, VP8X with the flag of an animation, and a canvas of 1 x 1.
  const Bytes animated = {'R', 'I', 'F', 'F', 22, 0, 0, 0, 'W', 'E', 'B', 'P', 'V', 'P', '8',
                          'X', 10,  0,   0,   0,  2, 0, 0, 0,   0,   0,   0,   0,   0,   0};
  CHECK(error_of(animated) == "x.webp: an animated WebP file, expected a still picture");
  CHECK(input_error([&] { webp_size(animated, "x.webp"); }) == error_of(animated));
}

TEST_CASE("damaged files are refused") {
  if (!supported()) return test::skip(kNoWebp);
  const Bytes whole = picture("lossless.webp");
  CHECK(error_of(whole) == "no error");
  Bytes longer = whole;
  longer[4] = static_cast<std::uint8_t>(longer[4] + 2);
  CHECK(error_of(longer) == "x.webp: broken WebP: the file ends early");
  Bytes unknown = whole;
  unknown[12] = 'Q';  // of VP8L
  CHECK(error_of(unknown).starts_with("x.webp: "));
  CHECK(error_of({'R', 'I', 'F', 'F', 4, 0, 0, 0, 'W', 'E', 'B', 'P'}).starts_with("x.webp: "));
}

TEST_CASE("the size is that of the pixels, turned as EXIF says") {
  if (!supported()) return test::skip(kNoWebp);
  const ImageSize size = webp_size(picture("orientation_6.webp"), "x");
  CHECK(size.width == 13);
  CHECK(size.height == 21);
  const Image image = decode_webp(picture("orientation_6.webp"), "x");
  CHECK(image.orientation == 6);
  CHECK(image.rgb.sizes() == at::IntArrayRef({13, 21, 3}));
}

TEST_CASE("quality 100 keeps every pixel, lower qualities make smaller files") {
  if (!supported()) return test::skip(kNoWebp);
  const Tensor rgb = decode_webp(picture("lossy.webp"), "x").rgb;
  const Bytes lossless = encode_webp(rgb, {}, 100);
  CHECK(at::equal(decode_webp(lossless, "x").rgb, rgb));
  const Bytes fine = encode_webp(rgb, {}, 95), coarse = encode_webp(rgb, {}, 10);
  CHECK(coarse.size() < fine.size());
  const Tensor gap = (decode_webp(fine, "x").rgb.to(at::kInt) - rgb.to(at::kInt)).abs();
  CHECK(gap.max().item<int>() > 0);
  CHECK(gap.to(at::kFloat).mean().item<float>() < 4);
}

TEST_SUITE_END();

}  // namespace
