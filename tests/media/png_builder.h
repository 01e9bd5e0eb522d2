// PNG files byte by byte, right or wrong on purpose; no libpng.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace diptych::test {

using Bytes = std::vector<std::uint8_t>;

struct PngHeader {
  std::uint32_t width = 1, height = 1;
  std::uint8_t bit_depth = 8, color_type = 2, interlace = 0;
};

class PngBuilder {
 public:
  PngBuilder();                                                 // the signature
  explicit PngBuilder(const PngHeader& header);                 // and IHDR
  PngBuilder& chunk(std::string_view type, const Bytes& data);  // with its CRC
  PngBuilder& pixels(const Bytes& filtered_rows);               // IDAT, stored without compression
  Bytes finish();                                               // IEND
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

std::uint32_t crc32(const std::uint8_t* data, std::size_t count);
void repair_crcs(Bytes& png);  // of every chunk that lies inside the file

}  // namespace diptych::test
