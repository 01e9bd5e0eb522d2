// What stb_image reads, in the corners that the recorded pictures do not reach.
#include "lib/media/stb.h"

#include <doctest/doctest.h>

#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "tests/media/support.h"
#include "tests/support/skip.h"

namespace {

using namespace diptych;
using test::input_error;
using test::levels;
using Bytes = std::vector<std::uint8_t>;

struct Bmp {
  std::int32_t width = 1, height = 1;
  std::uint16_t bits = 8;
  std::uint32_t compression = 0, colors = 0, header_bytes = 40,
                pixels_at = 0;  // 0: behind the header
  Bytes rest = {};              // masks, palette and pixels

  Bytes bytes() const {
    Bytes out = {'B', 'M'};
    const auto append = [&](std::uint32_t value, int count) {
      for (int i = 0; i < count; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    };
    const std::uint32_t behind_header = 14 + header_bytes;
    for (const std::uint32_t value :
         {0u, 0u, pixels_at > 0 ? pixels_at : behind_header, header_bytes})
      append(value, 4);
    append(static_cast<std::uint32_t>(width), 4);
    append(static_cast<std::uint32_t>(height), 4);
    append(1, 2);
    append(bits, 2);
    for (const std::uint32_t value : {compression, 0u, 0u, 0u, colors, 0u}) append(value, 4);
    out.insert(out.end(), rest.begin(), rest.end());
    return out;
  }
};

Tensor decode(const Bmp& bmp) {
  return decode_stb(PictureFormat::bmp, bmp.bytes(), "x.bmp").rgb;
}

std::string error_of(const Bytes& bytes) {
  return input_error([&] { decode_stb(PictureFormat::bmp, bytes, "x.bmp"); });
}

std::string error_of(const Bmp& bmp) {
  return error_of(bmp.bytes());
}

// Two colours, (3, 2, 1) and (30, 20, 10), then `data`.
Bytes two_colors(const Bytes& data) {
  Bytes rest = {1, 2, 3, 0, 10, 20, 30, 0};
  for (const std::uint8_t byte : data) rest.push_back(byte);
  return rest;
}

TEST_SUITE_BEGIN("needs stb");

TEST_CASE("rows are stored bottom-up, or top-down where the height is negative") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const Bytes rows = {1, 2, 3, 0, 4, 5, 6, 0};
  CHECK(levels(decode({.height = 2, .bits = 24, .rest = rows})) ==
        std::vector<int>{6, 5, 4, 3, 2, 1});
  CHECK(levels(decode({.height = -2, .bits = 24, .rest = rows})) ==
        std::vector<int>{3, 2, 1, 6, 5, 4});
}

TEST_CASE("16 bits a pixel: each channel fills 0 to 255") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  CHECK(levels(decode({.bits = 16, .rest = {0b00100001, 0b01111100}})) ==
        std::vector<int>{255, 8, 8});
  CHECK(levels(decode({.bits = 16, .rest = {0xFF, 0x7F}})) == std::vector<int>{255, 255, 255});
}

TEST_CASE("the fourth byte of 32 bits is alpha, unless it is 0 everywhere") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const auto pixels = [](std::uint8_t first, std::uint8_t second) {
    return levels(
        decode({.width = 2, .bits = 32, .rest = {10, 20, 30, first, 40, 50, 60, second}}));
  };
  CHECK(pixels(0, 0) == std::vector<int>{30, 20, 10, 60, 50, 40});
  CHECK(pixels(255, 255) == std::vector<int>{30, 20, 10, 60, 50, 40});
  CHECK(pixels(255, 0) == std::vector<int>{30, 20, 10, 255, 255, 255});
}

TEST_CASE("a colour that the palette lacks is black, each time") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const Bmp lacking = {.colors = 2, .pixels_at = 14 + 40 + 8, .rest = two_colors({2, 0, 0, 0})};
  for (int i = 0; i < 3; ++i) CHECK(levels(decode(lacking)) == std::vector<int>{0, 0, 0});
}

TEST_CASE("a BMP that ends early is refused, but not the padding of its last row") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const Bmp whole = {.width = 2, .height = 2, .bits = 24, .rest = Bytes(16, 9)};
  const Bytes bytes = whole.bytes();
  for (const std::size_t missing : {0, 1, 2})
    CHECK(error_of(Bytes(bytes.begin(), bytes.end() - missing)) == "no error");
  for (std::size_t length = 2; length + 3 <= bytes.size(); ++length) {
    CAPTURE(length);
    const std::string error = error_of(Bytes(bytes.begin(), bytes.begin() + length));
    CHECK(error.starts_with("x.bmp: broken BMP: "));
  }
}

TEST_CASE("hostile sizes are refused before memory is taken") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const auto with_size = [](std::int32_t width, std::int32_t height) {
    return error_of(Bmp{.width = width, .height = height, .bits = 24, .rest = {1, 2, 3, 0}});
  };
  CHECK(with_size(1, 1) == "no error");
  CHECK(with_size(0, 1) == "x.bmp: 0x1 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(-5, 1) == "x.bmp: -5x1 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(1, INT32_MIN) == "x.bmp: 1x2147483648 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(65'536, 4'097) == "x.bmp: 65536x4097 pixels, at most 268435456 are read");
  CHECK(with_size(65'536, 4'096) ==
        "x.bmp: 65536x4096 pixels, at most 67108864 of a BMP file are read");
  CHECK(with_size(8'192, 8'192) == "x.bmp: broken BMP: 58 bytes cannot hold 8192x8192 pixels");
}

TEST_CASE("kinds that are not read are named") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  CHECK(error_of(Bmp{.compression = 1}) ==
        "x.bmp: BMP cannot be read: BMP type not supported: RLE");
  CHECK(error_of(Bmp{.bits = 24, .compression = 4}) ==
        "x.bmp: BMP cannot be read: BMP type not supported: unsupported compression");
  CHECK(error_of(Bmp{.header_bytes = 52}) ==
        "x.bmp: BMP cannot be read: Image not of any known type, or corrupt");
  // width, height, planes and bits of OS/2 stand in two bytes each
  const Bytes os2 = {'B', 'M', 0, 0, 0, 0, 0, 0, 0, 0, 26, 0, 0,
                     0,   12,  0, 0, 0, 1, 0, 1, 0, 1, 0,  8, 0};
  CHECK(error_of(os2) == "x.bmp: a BMP file with the palette of OS/2, which is not read");
}

std::string error_of_text(std::string_view content) {
  return input_error([&] {
    decode_image({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()}, "x");
  });
}

TEST_CASE("PPM: comments, the largest value, and what ends early") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const auto rgb = [](std::string_view content) {
    return levels(
        decode_image({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()}, "x"));
  };
  CHECK(rgb("P6 # a\n# b\n1 1\n255\nabc") == std::vector<int>{'a', 'b', 'c'});
  CHECK(rgb("P5 1 1 255 a") == std::vector<int>{'a', 'a', 'a'});
  CHECK(error_of_text("P6 1 1 15 abc") == "x: a PPM file with a largest value of 15, expected 255");
  CHECK(error_of_text("P5 1 1 65535 ab") ==
        "x: a PPM file with a largest value of 65535, expected 255");
  CHECK(error_of_text("P6 1 1 255 ab") == "x: broken PPM: the file ends early");
  CHECK(error_of_text("P6 9 9 255 ab") == "x: broken PPM: 13 bytes cannot hold 9x9 pixels");
  CHECK(error_of_text("P6 99999999999 1 255 ab").starts_with("x: "));
}

TEST_CASE("a file cut anywhere is refused") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  const std::pair<const char*, std::size_t> files[] = {
      {"24.bmp", 2},  {"bgra.bmp", 1},     {"4.bmp", 2},  {"plain.gif", 1}, {"interlaced.gif", 1},
      {"rgb.tga", 1}, {"rgb_runs.tga", 1}, {"p6.ppm", 1}, {"plain.psd", 1}, {"runs.psd", 1}};
  for (const auto& [name, spare] : files) {
    CAPTURE(name);
    const Bytes whole = read_file_bytes(test::pictures_folder() / name);
    REQUIRE(decode_image(whole, "x").numel() > 0);
    for (std::size_t length = 0; length + spare <= whole.size(); ++length) {
      CAPTURE(length);
      CHECK(input_error([&] { decode_image(std::span(whole).first(length), "x"); }) != "no error");
    }
  }
}

TEST_SUITE_END();

}  // namespace
