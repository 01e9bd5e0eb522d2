// What read_image takes and refuses, whichever the format.
#include "lib/media/image_read.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/png.h"
#include "tests/media/png_builder.h"
#include "tests/media/support.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"

namespace {

using namespace diptych;
using namespace std::string_view_literals;
using test::Bytes;
using test::input_error;
using test::levels;

std::string decode_error(std::string_view content) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(content.data());
  return input_error([&] { decode_image({data, content.size()}, "x"); });
}

std::string expected_formats() {
  return ", expected " + readable_pictures();
}

Bytes exif_of(int orientation) {
  return {
      'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, Bytes::value_type(orientation),
      0,   0,   0};
}

// Those of the formats that one library reads.
void check_pictures_of_pillow(std::string_view library, std::size_t at_least) {
  const auto folder = test::pictures_folder();
  const auto expected = nlohmann::json::parse(std::ifstream(folder / "expected.json"));
  std::size_t compared = 0;
  for (const auto& [name, picture] : expected.items()) {
    const auto format = format_of_name(name);
    REQUIRE(format);
    if (facts_of(*format).library != library) continue;
    CAPTURE(name);
    const Tensor rgb = read_image(folder / name);
    CHECK((read_picture(folder / name).format == *format));
    CHECK((rgb.scalar_type() == at::kByte));
    CHECK(rgb.sizes() == at::IntArrayRef({picture["height"], picture["width"], 3}));
    CHECK(test::pixel_hash(rgb) == picture["sha256"].get<std::string>());
    const ImageSize size = read_image_size(folder / name);
    CHECK(size.height == rgb.size(0));
    CHECK(size.width == rgb.size(1));
    ++compared;
  }
  CHECK(compared >= at_least);
}

// The last `spare` bytes may be missing.
void check_cuts_refused(const char* name, std::size_t spare) {
  CAPTURE(name);
  const Bytes whole = read_file_bytes(test::pictures_folder() / name);
  REQUIRE(decode_image(whole, "x").numel() > 0);
  for (std::size_t length = 0; length + spare < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(input_error([&] { decode_image(std::span(whole).first(length), "x"); }) != "no error");
  }
}

TEST_CASE("PNG pictures of every kind have the pixels that Pillow reads") {
  check_pictures_of_pillow("libpng", 11);
}

TEST_CASE("each orientation turns the stored pixels upright") {
  // stored: 1 2 3
  //         4 5 6
  const std::pair<std::vector<int>, std::int64_t> cases[] = {
      {{1, 2, 3, 4, 5, 6}, 2}, {{3, 2, 1, 6, 5, 4}, 2}, {{6, 5, 4, 3, 2, 1}, 2},
      {{4, 5, 6, 1, 2, 3}, 2}, {{1, 4, 2, 5, 3, 6}, 3}, {{4, 1, 5, 2, 6, 3}, 3},
      {{6, 3, 5, 2, 4, 1}, 3}, {{3, 6, 2, 5, 1, 4}, 3}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    test::PngBuilder png({.width = 3, .height = 2, .color_type = 0});
    png.chunk("eXIf", exif_of(orientation));
    const Bytes bytes = png.pixels({0, 1, 2, 3, 0, 4, 5, 6}).finish();
    const Tensor rgb = decode_image(bytes, "x");
    const auto& [gray, height] = cases[orientation - 1];
    CHECK(rgb.is_contiguous());
    CHECK(rgb.sizes() == at::IntArrayRef({height, 6 / height, 3}));
    CHECK(levels(rgb.select(2, 0)) == gray);
    CHECK(levels(rgb.select(2, 2)) == gray);
  }
}

TEST_CASE("damaged or other EXIF leaves a picture as it is stored") {
  CHECK(exif_orientation({}) == 1);
  for (const int value : {0, 9, 255}) CHECK(exif_orientation(exif_of(value)) == 1);
  const Bytes whole = exif_of(6);
  CHECK(exif_orientation(whole) == 6);
  for (std::size_t length = 0; length < 20; ++length) {
    CHECK(exif_orientation(std::span(whole).first(length)) == 1);
  }
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes changed = whole;
    changed[at] = value;
    return exif_orientation(changed);
  };
  CHECK(with(0, 'M') == 1);    // byte order
  CHECK(with(2, 43) == 1);     // magic number
  CHECK(with(7, 255) == 1);    // a directory outside the bytes
  CHECK(with(10, 0x13) == 1);  // another tag
  CHECK(with(12, 2) == 1);     // a text
  CHECK(with(14, 2) == 1);     // two values
  CHECK(with(12, 4) == 6);     // LONG
  CHECK(with(9, 255) == 6);    // more entries than there are
}

TEST_CASE("the content decides, not the extension") {
  const test::Folder folder;
  const Tensor rgb = at::arange(2 * 3 * 3, at::kByte).reshape({2, 3, 3});
  write_png(folder.path() / "png.png", rgb);
  std::filesystem::copy_file(folder.path() / "png.png", folder.path() / "png.jpg");
  CHECK(at::equal(read_image(folder.path() / "png.jpg"), rgb));
  std::filesystem::copy_file(folder.path() / "png.png", folder.path() / "png.webp");
  CHECK((read_picture(folder.path() / "png.webp").format == PictureFormat::png));
}

TEST_CASE("what is no readable file is refused by name") {
  const test::Folder folder;
  const auto missing = folder.path() / "missing.png";
  CHECK(input_error([&] { read_image(missing); }) ==
        missing.string() + ": cannot be read: No such file or directory");
  CHECK(input_error([&] { read_image(folder.path()); }) ==
        folder.path().string() + ": a folder" + expected_formats());
  const auto empty = folder.write("empty.png", "");
  CHECK(input_error([&] { read_image(empty); }) == empty.string() + ": empty" + expected_formats());
  CHECK(input_error([&] { read_image("/dev/null"); }) == "/dev/null: is a device, expected a file");
  CHECK(input_error([&] { read_image(std::string(5000, 'x')); }).ends_with("File name too long"));
}

TEST_CASE("other formats are named") {
  const std::string expected = expected_formats();
  CHECK(decode_error("RIFF\0\0\0\0WAVEfmt "sv) == "x: a RIFF file, and no picture" + expected);
  CHECK(decode_error("#?RADIANCE\n") == "x: a Radiance HDR file" + expected);
  CHECK(decode_error("P3\n1 1 255 1 2 3") == "x: a PPM file in plain text" + expected);
  CHECK(decode_error("II*\0\x08\0\0\0"sv) == "x: a TIFF file" + expected);
  CHECK(decode_error("MM\0*\0\0\0\x08"sv) == "x: a TIFF file" + expected);
  CHECK(decode_error("\0\0\0\x18"
                     "ftypheic\0\0\0\0"sv) == "x: a HEIC file" + expected);
  CHECK(decode_error("\0\0\0\x18"
                     "ftypavif\0\0\0\0"sv) == "x: an AVIF file" + expected);
  CHECK(decode_error("\0\0\0\x18"
                     "ftypisom\0\0\0\0"sv) == "x: a video" + expected);
  CHECK(decode_error("hello") == "x: not a picture" + expected);
  CHECK(decode_error("\x89PN") == "x: not a picture" + expected);
  CHECK(decode_error("\0"sv) == "x: not a picture" + expected);
}

TEST_CASE("a PNG file cut anywhere is refused") {
  check_cuts_refused("palette_4_alpha.png", 0);
}

TEST_CASE("the formats and what they are called") {
  CHECK((format_of_name("a/b.JPeG") == PictureFormat::jpeg));
  CHECK((format_of_name("b.pgm") == PictureFormat::pnm));
  CHECK_FALSE(format_of_name("png"));
  CHECK_FALSE(format_of_name("a.png/b"));
  for (const PictureFormatFacts& facts : picture_formats()) {
    CHECK((facts_of(facts.format).format == facts.format));
    CHECK((facts.max_side > 0) == !facts.record.empty());
  }
}

TEST_CASE("a format whose library is missing is refused by name") {
  for (const PictureFormatFacts& facts : picture_formats()) {
    const std::string error = input_error([&] { refuse_missing_library(facts.format, "x"); });
    CHECK(error == fmt::format("x: a {} file, which this build cannot handle (it is without {})",
                               facts.name, facts.library));
  }
  const bool webp = facts_of(PictureFormat::webp).built_in;
  const bool said = decode_error("RIFF\0\0\0\0WEBPVP8 "sv).ends_with("(it is without libwebp)");
  CHECK(said == !webp);
}

TEST_SUITE_BEGIN("needs jpeg");

TEST_CASE("JPEG pictures of every kind have the pixels that Pillow reads") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip("this build has no libjpeg");
  check_pictures_of_pillow("libjpeg", 25);
}

TEST_CASE("a JPEG file cut anywhere is refused") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip("this build has no libjpeg");
  for (const char* name : {"420.jpg", "progressive.jpg", "arithmetic.jpg"})
    check_cuts_refused(name, 0);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("needs webp");

TEST_CASE("WebP pictures of every kind have the pixels that Pillow reads") {
  if (!facts_of(PictureFormat::webp).built_in) return test::skip("this build has no libwebp");
  check_pictures_of_pillow("libwebp", 5);
}

TEST_CASE("a WebP file cut anywhere is refused") {
  if (!facts_of(PictureFormat::webp).built_in) return test::skip("this build has no libwebp");
  for (const char* name : {"lossy.webp", "lossless.webp", "lossy_alpha.webp", "orientation_6.webp"})
    check_cuts_refused(name, 0);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("needs stb");

TEST_CASE("BMP, GIF, TGA, PSD, PGM and PPM pictures have the pixels that Pillow reads") {
  if (!facts_of(PictureFormat::bmp).built_in) return test::skip("this build has no stb_image");
  check_pictures_of_pillow("stb_image", 22);
}

TEST_SUITE_END();

}  // namespace
