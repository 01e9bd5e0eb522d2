#include <cstdlib>
#include <random>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/media/png.h"
#include "tests/media/png_builder.h"

namespace {

using namespace diptych;
using diptych::test::Bytes;
using diptych::test::PngBuilder;

const std::filesystem::path kModes =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/cases/10_preprocess";

std::vector<int> levels(const Image& image) {
  const Tensor flat = image.rgb.flatten();
  const auto* data = flat.const_data_ptr<std::uint8_t>();
  return {data, data + flat.numel()};
}

std::uint64_t fnv1a(const Tensor& rgb) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* data = rgb.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < rgb.numel(); ++i) hash = (hash ^ data[i]) * 0x100000001b3u;
  return hash;
}

std::string decode_error(const Bytes& bytes) {
  try {
    decode_png(bytes, "x.png");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

Bytes small_png() {
  PngBuilder png({.width = 3, .height = 2});
  png.chunk("tEXt", {'k', 0, 'v'});
  return png.pixels({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 15, 16, 17, 18, 19}).finish();
}

TEST_CASE("every colour mode becomes the pixels of the official code's RGB conversion") {
  struct Mode {
    const char* file;
    std::int64_t height, width;
    std::uint64_t fnv;  // FNV-1a 64 of the recorded tensor mode.*.rgb
  };
  const Mode modes[] = {
      {"mode_rgba.png", 30, 40, 0xee7f3357f2c6f4acu},
      {"mode_la.png", 30, 40, 0x14da36737e8aa77bu},
      {"mode_p.png", 30, 40, 0xa55e21090406eaaeu},
      {"mode_p_transparency.png", 30, 40, 0xafc1c70b82eaf3d6u},
      {"mode_bilevel.png", 30, 40, 0x27e9bbd5ba1b210au},
      {"mode_i16.png", 30, 40, 0x043ccc39f9dae94du},
      {"mode_rgb_transparency.png", 30, 40, 0xcd55c03c502f772bu},
  };
  for (const Mode& mode : modes) {
    CAPTURE(mode.file);
    const Image image = read_png(kModes / mode.file);
    CHECK(image.rgb.sizes() == at::IntArrayRef({mode.height, mode.width, 3}));
    CHECK(fnv1a(image.rgb) == mode.fnv);
  }
}

TEST_CASE("16-bit gray is clipped and its transparent sample becomes white") {
  PngBuilder png({.width = 4, .height = 1, .bit_depth = 16, .color_type = 0});
  png.chunk("tRNS", {0x00, 0x07});
  const Image image =
      decode_png(png.pixels({0, 0x00, 0x09, 0x00, 0x07, 0x01, 0x00, 0xFF, 0xFF}).finish(), "x");
  CHECK(levels(image) == std::vector<int>{9, 9, 9, 255, 255, 255, 255, 255, 255, 255, 255, 255});
}

TEST_CASE("16-bit colour keeps the high byte") {
  PngBuilder png({.width = 1, .height = 1, .bit_depth = 16, .color_type = 2});
  CHECK(levels(decode_png(png.pixels({0, 0x12, 0xFF, 0x80, 0x00, 0xFE, 0x01}).finish(), "x")) ==
        std::vector<int>{0x12, 0x80, 0xFE});
}

TEST_CASE("alpha is blended over white with 8-bit rounding") {
  PngBuilder png({.width = 3, .height = 1, .color_type = 6});
  const Image image =
      decode_png(png.pixels({0, 10, 20, 30, 0, 10, 20, 30, 255, 100, 0, 255, 77}).finish(), "x");
  // 77/255 * 100 + 178/255 * 255 = 208.2; 77/255 * 0 + 178 = 178
  CHECK(levels(image) == std::vector<int>{255, 255, 255, 10, 20, 30, 208, 178, 255});
}

TEST_CASE("16-bit gray with alpha is blended, 8-bit gray with alpha drops it") {
  PngBuilder deep({.width = 1, .height = 1, .bit_depth = 16, .color_type = 4});
  CHECK(levels(decode_png(deep.pixels({0, 0x64, 0xFF, 77, 0x00}).finish(), "x")) ==
        std::vector<int>{208, 208, 208});
  PngBuilder plain({.width = 1, .height = 1, .color_type = 4});
  CHECK(levels(decode_png(plain.pixels({0, 100, 77}).finish(), "x")) ==
        std::vector<int>{100, 100, 100});
}

TEST_CASE("the colour key is compared as Pillow does: its low byte with 8-bit pixels") {
  PngBuilder rgb({.width = 2, .height = 1, .color_type = 2});
  rgb.chunk("tRNS", {0, 1, 9, 2, 0, 3});
  CHECK(levels(decode_png(rgb.pixels({0, 1, 2, 3, 1, 2, 4}).finish(), "x")) ==
        std::vector<int>{255, 255, 255, 1, 2, 4});
  PngBuilder two_bits({.width = 4, .height = 1, .bit_depth = 2, .color_type = 0});
  two_bits.chunk("tRNS", {0, 85});
  CHECK(levels(decode_png(two_bits.pixels({0, 0b00011011}).finish(), "x")) ==
        std::vector<int>{0, 0, 0, 255, 255, 255, 170, 170, 170, 255, 255, 255});
  PngBuilder one_bit({.width = 2, .height = 1, .bit_depth = 1, .color_type = 0});
  one_bit.chunk("tRNS", {0, 0});
  CHECK(levels(decode_png(one_bit.pixels({0, 0b10000000}).finish(), "x")) ==
        std::vector<int>{255, 255, 255, 255, 255, 255});
}

TEST_CASE("the orientation of an eXIf chunk is told, and the pixels stay as stored") {
  const Bytes exif = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0};
  const auto picture = [&](bool before) {
    PngBuilder png({.width = 2, .height = 1, .color_type = 0});
    if (before) png.chunk("eXIf", exif);
    png.pixels({0, 10, 20});
    if (!before) png.chunk("eXIf", exif);
    return decode_png(png.finish(), "x");
  };
  for (const bool before : {true, false}) {
    CHECK(picture(before).orientation == 6);
    CHECK(levels(picture(before)) == std::vector<int>{10, 10, 10, 20, 20, 20});
  }
  CHECK(decode_png(small_png(), "x").orientation == 1);
}

TEST_CASE("the orientation of EXIF in a text, as ImageMagick wrote it, is told") {
  const auto orientation = [](const std::string& text) {
    const std::string chunk = std::string("Raw profile type exif") + '\0' + text;
    PngBuilder png({.width = 2, .height = 1, .color_type = 0});
    png.chunk("tEXt", Bytes(chunk.begin(), chunk.end()));
    png.pixels({0, 10, 20});
    const Bytes file = png.finish();
    const ImageSize size = png_size(file, "x");
    const int found = decode_png(file, "x").orientation;
    CHECK((size.height == 2) == (found >= 5));
    return found;
  };
  const std::string digits = "4d4d002a00000008000101120003000000\n0100060000";
  CHECK(orientation("\nexif\n      22\n" + digits + "\n") == 6);
  CHECK(orientation("\nexif\n      22\n" + digits.substr(0, 9)) == 1);
  CHECK(orientation("\nexif") == 1);
  CHECK(orientation("") == 1);
}

TEST_CASE("2-bit gray is spread over the 8-bit range") {
  PngBuilder png({.width = 4, .height = 1, .bit_depth = 2, .color_type = 0});
  CHECK(levels(decode_png(png.pixels({0, 0b00011011}).finish(), "x")) ==
        std::vector<int>{0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255});
}

TEST_CASE("interlaced pictures come out in place") {
  PngBuilder png({.width = 2, .height = 2, .color_type = 0, .interlace = 1});
  // Adam7: pass 1 holds (0,0), pass 6 holds (1,0), pass 7 the second row.
  CHECK(levels(decode_png(png.pixels({0, 10, 0, 20, 0, 30, 40}).finish(), "x")) ==
        std::vector<int>{10, 10, 10, 20, 20, 20, 30, 30, 30, 40, 40, 40});
}

TEST_CASE("text before and after the pixels is read; Latin-1 becomes UTF-8") {
  PngBuilder png({.width = 1, .height = 1});
  png.chunk("tEXt", {'a', 0, 0xE9, '!'}).pixels({0, 1, 2, 3}).chunk("tEXt", {'b', 0, 'z'});
  const Image image = decode_png(png.finish(), "x");
  CHECK(image.text == PictureTexts{{"a", "\u00e9!"}, {"b", "z"}});
}

TEST_CASE("what is no PNG is refused by name") {
  CHECK(decode_error({}) == "x.png: not a PNG file");
  CHECK(decode_error({'G', 'I', 'F', '8', '9', 'a', 0, 0, 0, 0}) == "x.png: not a PNG file");
  CHECK_THROWS_AS(read_png("/nonexistent/x.png"), InputError);
  CHECK_THROWS_AS(read_png(std::filesystem::temp_directory_path()), InputError);
}

TEST_CASE("a file cut at any byte is refused") {
  const Bytes whole = small_png();
  REQUIRE(decode_error(whole) == "no error");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(decode_error({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}) !=
          "no error");
  }
  CHECK(decode_error({whole.begin(), whole.end() - 3}) == "x.png: broken PNG: the file ends early");
}

TEST_CASE("a wrong CRC is refused in every chunk") {
  const Bytes whole = small_png();
  for (std::size_t at = 8; at < whole.size();) {
    const std::size_t length = whole[at + 3];  // all chunks are short
    CAPTURE(std::string(whole.begin() + static_cast<std::ptrdiff_t>(at) + 4,
                        whole.begin() + static_cast<std::ptrdiff_t>(at) + 8));
    Bytes broken = whole;
    broken[at + 8 + length] ^= 1;
    CHECK(decode_error(broken).find("CRC error") != std::string::npos);
    at += length + 12;
  }
}

TEST_CASE("hostile sizes are refused before memory is taken") {
  const auto with_size = [](std::uint32_t width, std::uint32_t height) {
    return decode_error(
        PngBuilder({.width = width, .height = height}).pixels({0, 1, 2, 3}).finish());
  };
  CHECK(with_size(0, 1).find("broken PNG") != std::string::npos);
  CHECK(with_size(0x7FFFFFFF, 0x7FFFFFFF).find("broken PNG") != std::string::npos);
  CHECK(with_size(70'000, 1).find("broken PNG") != std::string::npos);
  CHECK(with_size(60'000, 60'000) == "x.png: 60000x60000 pixels, at most 268435456 are read");
  CHECK(with_size(10'000, 10'000) == "x.png: broken PNG: 72 bytes cannot hold 10000x10000 pixels");
}

TEST_CASE("a chunk's claim to be large is checked against the file and a limit") {
  Bytes claims_more = small_png();
  claims_more[33] = 6;  // the first byte of the tEXt chunk's length: 96 MiB
  test::repair_crcs(claims_more);
  CHECK(decode_error(claims_more) == "x.png: broken PNG: the file ends early");
  PngBuilder large({.width = 1, .height = 1});
  large.chunk("tEXt", Bytes(5 << 20, 'k'));
  CHECK(decode_error(large.pixels({0, 1, 2, 3}).finish()) ==
        "x.png: broken PNG: a chunk at byte 33 holds 5242880 bytes, at most 4194304 are read");
}

TEST_CASE("contradictions inside the file are refused") {
  const auto header = test::PngHeader{.width = 1, .height = 2};
  CHECK(decode_error(PngBuilder(header).pixels({0, 1, 2, 3}).finish())
            .find("Not enough image data") != std::string::npos);
  CHECK(decode_error(PngBuilder(header).pixels({9, 1, 2, 3, 0, 1, 2, 3}).finish())
            .find("bad adaptive filter") != std::string::npos);
  CHECK(decode_error(PngBuilder(header).chunk("IDAT", {1, 2, 3, 4}).finish()).find("broken PNG") !=
        std::string::npos);
  CHECK(decode_error(PngBuilder(header).finish()).find("broken PNG") != std::string::npos);
  CHECK(decode_error(PngBuilder().pixels({0, 1, 2, 3}).finish()).find("Missing IHDR") !=
        std::string::npos);
  PngBuilder palette({.width = 1, .height = 1, .color_type = 3});
  CHECK(decode_error(palette.pixels({0, 0}).finish()).find("Missing PLTE") != std::string::npos);
}

TEST_CASE("mutated files end in a picture or an InputError") {
  PngBuilder palette({.width = 4, .height = 2, .bit_depth = 4, .color_type = 3});
  palette.chunk("PLTE", {1, 2, 3, 40, 50, 60, 7, 8, 9}).chunk("tRNS", {0, 128, 255});
  PngBuilder gray({.width = 4, .height = 3, .bit_depth = 16, .color_type = 0, .interlace = 1});
  gray.chunk("tRNS", {0, 7}).chunk("iTXt", {'k', 0, 0, 0, 'e', 'n', 0, 'k', 0, 0xC3, 0xA9});
  const Bytes seeds[] = {small_png(), palette.pixels({0, 0x01, 0x20, 0, 0x12, 0x00}).finish(),
                         gray.pixels(Bytes(30, 0)).finish()};
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  const long iterations = wanted != nullptr ? std::atol(wanted) : 20'000;
  std::mt19937 random(20'240'601);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  long pictures = 0, refused = 0;
  for (long i = 0; i < iterations; ++i) {
    Bytes bytes = seeds[below(std::size(seeds))];
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
          break;
        case 1:
          bytes[at] = static_cast<std::uint8_t>(random());
          break;
        case 2:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                       static_cast<std::uint8_t>(random()));
      }
    }
    if (below(4) != 0) test::repair_crcs(bytes);  // so that most reach the code behind the CRC
    try {
      const Image image = decode_png(bytes, "mutated");
      REQUIRE(image.rgb.dim() == 3);
      REQUIRE(image.rgb.size(2) == 3);
      ++pictures;
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(pictures + refused == iterations);
  if (iterations >= 1000) {  // the mutator reaches both sides
    CHECK(pictures > 0);
    CHECK(refused > iterations / 4);
  }
}

}  // namespace
