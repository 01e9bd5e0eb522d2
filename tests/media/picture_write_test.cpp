// What holds of every format that is written.
#include "lib/media/picture_write.h"

#include <doctest/doctest.h>

#include "lib/media/image_read.h"
#include "lib/media/jpeg.h"
#include "tests/media/support.h"
#include "tests/support/skip.h"

namespace {

using namespace diptych;
using test::input_error;
using Bytes = std::vector<std::uint8_t>;

// Smooth, and so near what a lossy format keeps.
Tensor picture(std::int64_t height, std::int64_t width) {
  const Tensor y = at::arange(height).view({height, 1, 1}),
               x = at::arange(width).view({1, width, 1});
  return (y * 2 + x * 3 + at::arange(3) * 40).remainder(256).to(at::kByte);
}

const PictureTexts kTexts = {{"parameters", "a fox <&> \u72d0\u72f8 \U0001F98A\r\n\tSteps: 50"},
                             {"diptych", "{\"prompt\":\"caf\u00e9 \\u0001 ]]>\"}"}};

std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The formats that this build writes.
std::vector<PictureFormat> written() {
  std::vector<PictureFormat> formats;
  for (const PictureFormatFacts& facts : picture_formats()) {
    if (facts.max_side > 0 && facts.built_in) formats.push_back(facts.format);
  }
  return formats;
}

TEST_CASE("texts come back from every format") {
  for (const PictureFormat format : written()) {
    CAPTURE(facts_of(format).name);
    const Tensor rgb = picture(21, 34);
    const ReadPicture read = decode_picture(encode_picture(rgb, kTexts, {format}), "x");
    CHECK((read.format == format));
    CHECK(read.image.text == kTexts);
    CHECK(read.image.rgb.sizes() == rgb.sizes());
    CHECK(decode_picture(encode_picture(rgb, {}, {format}), "x").image.text.empty());
  }
}

TEST_CASE("texts of any length come back from every format") {
  for (const PictureFormat format : written()) {
    for (const std::size_t length : {32'000, 65'000, 65'600, 200'000, 1'500'000}) {
      CAPTURE(facts_of(format).name);
      CAPTURE(length);
      std::string text = "\u72d0";
      while (text.size() < length) text += "abc<def\n";
      const PictureTexts texts = {{"parameters", text}, {"diptych", text + "!"}};
      CHECK(decode_picture(encode_picture(picture(8, 8), texts, {format}), "x").image.text ==
            texts);
    }
  }
}

TEST_CASE("equal arguments give equal bytes") {
  for (const PictureFormat format : written()) {
    CAPTURE(facts_of(format).name);
    const PictureEncoding encoding = {format, 80};
    const Bytes first = encode_picture(picture(40, 30), kTexts, encoding);
    for (int i = 0; i < 3; ++i)
      CHECK(encode_picture(picture(40, 30).clone(), kTexts, encoding) == first);
  }
}

TEST_CASE("strided pictures are written as they look") {
  const Tensor flipped = picture(9, 5).transpose(0, 1);  // [5, 9, 3]
  for (const PictureFormat format : written()) {
    CAPTURE(facts_of(format).name);
    CHECK(encode_picture(flipped, {}, {format}) ==
          encode_picture(flipped.contiguous(), {}, {format}));
  }
}

TEST_CASE("texts that a format cannot hold are refused") {
  for (const PictureFormat format : written()) {
    const auto error = [&](const PictureTexts& texts) {
      return input_error([&] { encode_picture(picture(2, 2), texts, {format}); });
    };
    CHECK(error({{"a", "\xFF"}}).find("not valid UTF-8") != std::string::npos);
    CHECK(error({{"", "x"}}) != "no error");
    const bool any_keyword = format == PictureFormat::png;
    CHECK((error({{"a b", "x"}}) == "no error") == any_keyword);
  }
}

TEST_CASE("a format that is only read is not written") {
  CHECK(input_error([&] { encode_picture(picture(2, 2), {}, {PictureFormat::gif}); }) ==
        "GIF is not written");
}

TEST_SUITE_BEGIN("needs jpeg");

TEST_CASE("JPEG: a higher quality is nearer to the picture") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip("this build has no libjpeg");
  const Tensor rgb = picture(48, 64);
  const auto mean_gap = [&](int quality) {
    const Tensor read = decode_jpeg(encode_jpeg(rgb, {}, quality), "x").rgb;
    return (read.to(at::kFloat) - rgb.to(at::kFloat)).abs().mean().item<float>();
  };
  CHECK(mean_gap(100) < 2);
  CHECK(mean_gap(95) < mean_gap(50));
  CHECK(mean_gap(50) < mean_gap(5));
  CHECK(encode_jpeg(rgb, {}, 95).size() > encode_jpeg(rgb, {}, 50).size());
}

TEST_CASE("JPEG: texts over 64 KiB go into Adobe's extension") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip("this build has no libjpeg");
  const PictureTexts texts = {{"parameters", "a fox"}, {"diptych", std::string(200'000, 'x')}};
  const Bytes bytes = encode_jpeg(picture(8, 8), texts, 90);
  const std::string_view text = text_of(bytes);
  const std::size_t named = text.find("xmpNote:HasExtendedXMP=\"");
  REQUIRE(named != text.npos);
  const std::string_view name = text.substr(named + 24, 32);
  std::size_t parts = 0;
  const std::string part =
      std::string("http://ns.adobe.com/xmp/extension/\0", 35) + std::string(name);
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++parts;
  CHECK(parts == 4);
  // A part that is missing or elsewhere leaves no text, and the picture.
  Bytes damaged = bytes;
  damaged[text.find(part)] = 'X';
  const Image image = decode_jpeg(damaged, "x");
  CHECK(image.text == PictureTexts{{"UserComment", "a fox"}});
  CHECK(image.rgb.size(0) == 8);
}

TEST_SUITE_END();

}  // namespace
