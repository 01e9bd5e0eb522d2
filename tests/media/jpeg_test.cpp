// What JPEG alone can get wrong.
#include "lib/media/jpeg.h"

#include <doctest/doctest.h>

#include "lib/base/picture_formats.h"
#include "lib/media/file_bytes.h"
#include "tests/media/support.h"
#include "tests/support/skip.h"

namespace {

using namespace diptych;
using test::input_error;
using Bytes = std::vector<std::uint8_t>;

constexpr const char* kNoJpeg = "this build has no libjpeg";

Bytes picture(const char* name) {
  return read_file_bytes(test::pictures_folder() / name);
}

std::string error_of(const Bytes& bytes) {
  return input_error([&] { decode_jpeg(bytes, "x.jpg"); });
}

Bytes with_insert(Bytes bytes, std::size_t at, const Bytes& inserted) {
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), inserted.begin(), inserted.end());
  return bytes;
}

std::size_t find(const Bytes& bytes, std::string_view pattern) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t at = text.find(pattern);
  REQUIRE(at != std::string_view::npos);
  return at;
}

Bytes with_size(std::uint16_t width, std::uint16_t height) {
  Bytes bytes = picture("420.jpg");
  const std::size_t frame = find(bytes, "\xFF\xC0");
  bytes[frame + 5] = static_cast<std::uint8_t>(height >> 8);
  bytes[frame + 6] = static_cast<std::uint8_t>(height);
  bytes[frame + 7] = static_cast<std::uint8_t>(width >> 8);
  bytes[frame + 8] = static_cast<std::uint8_t>(width);
  return bytes;
}

TEST_CASE("without libjpeg a JPEG is refused and the build is blamed") {
  const std::string refusal = facts_of(PictureFormat::jpeg).built_in
                                  ? "JPEG cannot be read"
                                  : "which this build cannot handle";
  CHECK(error_of({0xFF, 0xD8, 0xFF}).find(refusal) != std::string::npos);
}

TEST_SUITE_BEGIN("needs jpeg");

TEST_CASE("sizes that the file cannot hold are refused before memory is taken") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  CHECK(error_of(with_size(20, 13)) == "no error");
  CHECK(error_of(with_size(0, 13)).find("x.jpg: JPEG cannot be read: ") == 0);
  CHECK(error_of(with_size(20, 0)).find("x.jpg: JPEG cannot be read: ") == 0);
  CHECK(error_of(with_size(65'535, 1)).find("Maximum supported image dimension is 65500") !=
        std::string::npos);
  CHECK(error_of(with_size(65'000, 65'000)) ==
        "x.jpg: 65000x65000 pixels, at most 268435456 are read");
  CHECK(error_of(with_size(16'000, 16'000)).find("cannot hold 16000x16000 pixels") !=
        std::string::npos);
}

TEST_CASE("damaged pixels are refused, although libjpeg only warns") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  const Bytes whole = picture("444.jpg");
  const std::size_t scan = find(whole, "\xFF\xDA");
  const auto without = [&](std::size_t first, std::size_t count) {
    Bytes bytes = whole;
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(first);
    bytes.erase(at, at + static_cast<std::ptrdiff_t>(count));
    return bytes;
  };
  CHECK(error_of(without(whole.size() - 40, 30)) ==
        "x.jpg: JPEG cannot be read: Corrupt JPEG data: premature end of data segment");
  CHECK(error_of(without(whole.size() - 2, 2)) ==
        "x.jpg: JPEG cannot be read: Premature end of JPEG file");
  CHECK(error_of(without(scan, whole.size() - scan)) ==
        "x.jpg: JPEG cannot be read: Premature end of JPEG file");
  Bytes restarts = picture("restarts.jpg");
  restarts[find(restarts, "\xFF\xD0") + 1] = 0xD5;
  CHECK(error_of(restarts).find("instead of RST0") != std::string::npos);
}

TEST_CASE("what lies between segments or behind the end changes nothing") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  const Bytes whole = picture("444.jpg");
  const Tensor rgb = decode_jpeg(whole, "x").rgb;
  CHECK(at::equal(decode_jpeg(with_insert(whole, whole.size() - 2, {0, 1, 2}), "x").rgb, rgb));
  CHECK(at::equal(decode_jpeg(with_insert(whole, whole.size(), {0xFF, 0xD8, 1}), "x").rgb, rgb));
  CHECK(at::equal(decode_jpeg(with_insert(whole, find(whole, "\xFF\xC0"), {7, 7}), "x").rgb, rgb));
}

TEST_CASE("the first EXIF segment gives the orientation; other APP1 segments are skipped") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  const Bytes whole = picture("444.jpg");
  const auto segment = [](std::string_view data) {
    Bytes bytes = {0xFF, 0xE1, 0, static_cast<std::uint8_t>(data.size() + 2)};
    for (const char c : data) bytes.push_back(static_cast<std::uint8_t>(c));
    return bytes;
  };
  using namespace std::string_view_literals;
  const Bytes xmp = segment("http://ns.adobe.com/xap/1.0/\0<x/>"sv);
  const Bytes exif = segment("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0"sv);
  const Bytes upright = segment("Exif\0\0MM\0*\0\0\0\x08\0\0"sv);
  CHECK(decode_jpeg(whole, "x").orientation == 1);
  CHECK(decode_jpeg(with_insert(whole, 2, exif), "x").orientation == 8);
  CHECK(decode_jpeg(with_insert(with_insert(whole, 2, exif), 2, xmp), "x").orientation == 8);
  CHECK(decode_jpeg(with_insert(with_insert(whole, 2, exif), 2, upright), "x").orientation == 1);
  CHECK(decode_jpeg(with_insert(whole, 2, segment("Exif\0"sv)), "x").orientation == 1);
}

// A valid file of 8x8 gray pixels in that many scans: the mean, then the other
// coefficients, refined bit by bit, all zero.
Bytes progressive_of(int scans) {
  Bytes bytes;
  const auto append = [&](const Bytes& segment) {
    for (const std::uint8_t byte : segment) bytes.push_back(byte);
  };
  append({0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0});
  append(Bytes(64, 1));                                       // quantisation
  append({0xFF, 0xC2, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0});  // progressive, 8x8, one component
  for (const std::uint8_t table : Bytes{0x00, 0x10}) {  // DC and AC: the code 0 is the symbol 0
    append({0xFF, 0xC4, 0, 20, table, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  }
  const auto scan = [&](int coefficient, int bits_before, int bits_left) {
    const auto at = static_cast<std::uint8_t>(coefficient);
    const auto bits = static_cast<std::uint8_t>(bits_before << 4 | bits_left);
    append({0xFF, 0xDA, 0, 8, 1, 1, 0, at, at, bits, 0x7F});
  };
  scan(0, 0, 0);
  for (int i = 0; i < scans - 1; ++i) {
    const int left = 13 - i % 14;
    scan(1 + i / 14, left == 13 ? 0 : left + 1, left);
  }
  append({0xFF, 0xD9});
  return bytes;
}

TEST_CASE("a file of endless scans is stopped") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  const Tensor gray = at::full({8, 8, 3}, 128, at::kByte);
  CHECK(at::equal(decode_jpeg(progressive_of(1), "x").rgb, gray));
  CHECK(at::equal(decode_jpeg(progressive_of(100), "x").rgb, gray));
  CHECK(error_of(progressive_of(101)) == "x.jpg: JPEG cannot be read: more than 100 scans");
}

TEST_CASE("kinds that are not read are named") {
  if (!facts_of(PictureFormat::jpeg).built_in) return test::skip(kNoJpeg);
  Bytes precise = picture("444.jpg");
  precise[find(precise, "\xFF\xC0") + 4] = 12;
  CHECK(error_of(precise) == "x.jpg: JPEG cannot be read: Unsupported JPEG data precision 12");
  Bytes lossless = picture("444.jpg");
  lossless[find(lossless, "\xFF\xC0") + 1] = 0xC3;
  CHECK(error_of(lossless).find("Unsupported JPEG process") != std::string::npos);
  CHECK(error_of({0xFF, 0xD8, 0xFF, 0xD9}).find("x.jpg: JPEG cannot be read: ") == 0);
}

TEST_SUITE_END();

}  // namespace
