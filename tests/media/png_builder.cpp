#include "tests/media/png_builder.h"

#include <algorithm>

namespace diptych::test {
namespace {

void append_u32(Bytes& out, std::uint32_t value) {
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<std::uint8_t>(value >> shift));
}

std::uint32_t read_u32(const Bytes& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | bytes[at + i];
  return value;
}

}  // namespace

std::uint32_t crc32(const std::uint8_t* data, std::size_t count) {  // PNG specification, annex D
  std::uint32_t crc = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < count; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return ~crc;
}

PngBuilder::PngBuilder() : bytes_{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'} {}

PngBuilder::PngBuilder(const PngHeader& header) : PngBuilder() {
  Bytes data;
  append_u32(data, header.width);
  append_u32(data, header.height);
  for (const std::uint8_t value :
       {header.bit_depth, header.color_type, std::uint8_t{0}, std::uint8_t{0}, header.interlace}) {
    data.push_back(value);
  }
  chunk("IHDR", data);
}

PngBuilder& PngBuilder::chunk(std::string_view type, const Bytes& data) {
  append_u32(bytes_, static_cast<std::uint32_t>(data.size()));
  const std::size_t start = bytes_.size();
  bytes_.insert(bytes_.end(), type.begin(), type.end());
  bytes_.insert(bytes_.end(), data.begin(), data.end());
  append_u32(bytes_, crc32(bytes_.data() + start, bytes_.size() - start));
  return *this;
}

PngBuilder& PngBuilder::pixels(
    const Bytes& filtered_rows) {  // at most 65535 bytes: one stored block
  const auto count = static_cast<std::uint32_t>(filtered_rows.size());
  Bytes data = {0x78, 0x01, 0x01};
  for (const std::uint32_t half : {count, ~count}) {
    data.push_back(static_cast<std::uint8_t>(half));
    data.push_back(static_cast<std::uint8_t>(half >> 8));
  }
  data.insert(data.end(), filtered_rows.begin(), filtered_rows.end());
  std::uint32_t a = 1, b = 0;  // Adler-32
  for (const std::uint8_t byte : filtered_rows) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  append_u32(data, b << 16 | a);
  return chunk("IDAT", data);
}

Bytes PngBuilder::finish() {
  chunk("IEND", {});
  return bytes_;
}

void repair_crcs(Bytes& png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::size_t length = read_u32(png, at);
    if (length > png.size() - at - 12) return;
    const std::uint32_t crc = crc32(png.data() + at + 4, length + 4);
    for (std::size_t i = 0; i < 4; ++i) {
      png[at + 8 + length + i] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
    }
    at += length + 12;
  }
}

}  // namespace diptych::test
