// The corners of BMP that the recorded pictures do not reach.
#include "lib/media/bmp.h"

#include <doctest/doctest.h>

#include "tests/media/support.h"

namespace {

using namespace diptych;
using test::input_error;
using test::levels;
using Bytes = std::vector<std::uint8_t>;

struct Bmp {
  std::int32_t width = 1, height = 1;
  std::uint16_t bits = 8;
  std::uint32_t compression = 0, colors = 0, header_bytes = 40, pixels_at = 0;
  Bytes rest = {};  // masks, palette and pixels

  Bytes bytes() const {
    Bytes out = {'B', 'M'};
    const auto append = [&](std::uint32_t value, int count) {
      for (int i = 0; i < count; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    };
    for (const std::uint32_t value : {0u, 0u, pixels_at, header_bytes}) append(value, 4);
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
  return decode_bmp(bmp.bytes(), "x.bmp").rgb;
}

std::string error_of(const Bmp& bmp) {
  return input_error([&] { decode(bmp); });
}

// Two colours, (3, 2, 1) and (30, 20, 10), then `data`.
Bytes two_colors(const Bytes& data) {
  Bytes rest = {1, 2, 3, 0, 10, 20, 30, 0};
  for (const std::uint8_t byte : data) rest.push_back(byte);
  return rest;
}

Bmp run_length(std::int32_t width, std::int32_t height, const Bytes& data) {
  return {
      .width = width, .height = height, .compression = 1, .colors = 2, .rest = two_colors(data)};
}

std::vector<int> red(const Tensor& rgb) {
  return levels(rgb.select(2, 0));
}

TEST_CASE("rows are stored bottom-up, or top-down where the height is negative") {
  const Bytes rows = {1, 2, 3, 0, 4, 5, 6, 0};
  CHECK(levels(decode({.height = 2, .bits = 24, .rest = rows})) ==
        std::vector<int>{6, 5, 4, 3, 2, 1});
  CHECK(levels(decode({.height = -2, .bits = 24, .rest = rows})) ==
        std::vector<int>{3, 2, 1, 6, 5, 4});
}

TEST_CASE("5-bit channels are widened as Pillow does") {
  CHECK(levels(decode({.bits = 16, .rest = {0b00100001, 0b01111100}})) ==
        std::vector<int>{255, 8, 8});
}

TEST_CASE("masks of any place and width up to 16 bits") {
  // red: 10 bits at 20, green: 4 bits at 4, blue: 1 bit at 0
  const Bytes masks = {0, 0, 0xF0, 0x3F, 0xF0, 0, 0, 0, 1, 0, 0, 0};
  Bytes rest = masks;
  for (const std::uint8_t byte : Bytes{0x71, 0x00, 0x00, 0x20}) rest.push_back(byte);
  CHECK(levels(decode({.bits = 32, .compression = 3, .rest = rest})) ==
        std::vector<int>{127, 119, 255});
  rest[0] = 1;  // not in a row
  CHECK(error_of({.bits = 32, .compression = 3, .rest = rest}) ==
        "x.bmp: a BMP file with the channel mask 0x3ff00001, expected 1 to 16 adjacent bits");
  std::fill_n(rest.begin(), 4, std::uint8_t{0});
  CHECK(error_of({.bits = 32, .compression = 3, .rest = rest}) ==
        "x.bmp: a BMP file without a mask for red");
}

TEST_CASE("run lengths: repeats, copies, jumps and ends") {
  // Row 0 (bottom): three times colour 1, the rest left out. Row 1: copied 0 1 1 and a pad byte.
  const Bytes data = {3, 1, 0, 0, 0, 3, 0, 1, 1, 0, 1, 1, 0, 1};
  CHECK(red(decode(run_length(4, 2, data))) == std::vector<int>{3, 30, 30, 30, 30, 30, 30, 3});
  // An empty row, a jump of one to the right and one up, and an early end.
  CHECK(red(decode(run_length(3, 3, {0, 0, 0, 2, 1, 1, 1, 1, 0, 1}))) ==
        std::vector<int>{3, 30, 3, 3, 3, 3, 3, 3, 3});
  // Too many for the row: dropped.
  CHECK(red(decode(run_length(2, 1, {200, 1, 0, 1}))) == std::vector<int>{30, 30});
  // A jump out of the picture ends it.
  CHECK(red(decode(run_length(2, 1, {0, 2, 9, 9, 1, 1}))) == std::vector<int>{3, 3});
}

TEST_CASE("broken run lengths are refused") {
  CHECK(error_of(run_length(4, 2, {3, 1})) == "x.bmp: broken BMP: the file ends early");
  CHECK(error_of(run_length(4, 2, {3})) == "x.bmp: broken BMP: the file ends early");
  CHECK(error_of(run_length(4, 2, {0, 200, 1})) == "x.bmp: broken BMP: the file ends early");
  CHECK(error_of(run_length(4, 2, {0, 2, 1})) == "x.bmp: broken BMP: the file ends early");
  CHECK(error_of(run_length(4, 2, {4, 2})) ==
        "x.bmp: broken BMP: a pixel of colour 2, the palette has 2");
}

TEST_CASE("a colour that the palette lacks is refused") {
  CHECK(red(decode({.colors = 2, .rest = two_colors({1, 0, 0, 0})})) == std::vector<int>{30});
  CHECK(error_of({.colors = 2, .rest = two_colors({2, 0, 0, 0})}) ==
        "x.bmp: broken BMP: a pixel of colour 2, the palette has 2");
  CHECK(error_of({.colors = 3, .rest = {1, 2, 3}}) == "x.bmp: broken BMP: the file ends early");
  CHECK(error_of({.colors = 0xFFFFFFFF, .rest = two_colors({})}) ==
        "x.bmp: broken BMP: the file ends early");
}

TEST_CASE("hostile sizes are refused before memory is taken") {
  const auto with_size = [](std::int32_t width, std::int32_t height) {
    return error_of({.width = width, .height = height, .bits = 24, .rest = {1, 2, 3, 0}});
  };
  CHECK(with_size(1, 1) == "no error");
  CHECK(with_size(0, 1) == "x.bmp: 0x1 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(-5, 1) == "x.bmp: -5x1 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(1, INT32_MIN) == "x.bmp: 1x2147483648 pixels, sides of 1 to 65536 are read");
  CHECK(with_size(65'536, 4'097) == "x.bmp: 65536x4097 pixels, at most 268435456 are read");
  CHECK(with_size(65'536, 4'096) == "x.bmp: broken BMP: the file ends early");
}

TEST_CASE("kinds that are not read are named") {
  CHECK(error_of({.bits = 2}) ==
        "x.bmp: a BMP file of 2 bits and compression 0, which is not read");
  CHECK(error_of({.bits = 24, .compression = 4}) ==
        "x.bmp: a BMP file of 24 bits and compression 4, which is not read");
  CHECK(error_of({.bits = 4, .compression = 1}) ==
        "x.bmp: a BMP file of 4 bits and compression 1, which is not read");
  CHECK(error_of({.header_bytes = 41}) ==
        "x.bmp: broken BMP: a header of 41 bytes, expected 12, 40, 52, 56, 64, 108 or 124");
  CHECK(error_of({.bits = 24, .pixels_at = 0xFFFFFFFF, .rest = {1, 2, 3}}) ==
        "x.bmp: broken BMP: the file ends early");
}

}  // namespace
