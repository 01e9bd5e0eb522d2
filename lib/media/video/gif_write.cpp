#include "lib/media/video/gif_write.h"

#include <algorithm>
#include <bit>
#include <string_view>

namespace diptych {
namespace {

constexpr std::size_t kSubBlock = 255;
constexpr int kMaxCodeBits = 12;

// Codes of growing width, the lowest bit first.
class CodeStream {
 public:
  void put(int code, int bits) {
    pending_ |= static_cast<std::uint32_t>(code) << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, pending_ >>= 8)
      bytes_.push_back(static_cast<std::uint8_t>(pending_));
  }
  std::vector<std::uint8_t> take() {
    if (count_ > 0) bytes_.push_back(static_cast<std::uint8_t>(pending_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint32_t pending_ = 0;
  int count_ = 0;
};

// Variable-length LZW (GIF89a specification, appendix F). `bits`: of an index, 2 to 8.
std::vector<std::uint8_t> compress(std::span<const std::uint8_t> indices, int bits) {
  const int clear = 1 << bits, end = clear + 1;
  CodeStream out;
  // What follows a code: [code][index] -> the longer code; 0 = none yet.
  std::vector<std::uint16_t> longer(std::size_t{1} << (kMaxCodeBits + 8));
  int next = end + 1, width = bits + 1;
  out.put(clear, width);
  int code = indices.front();
  for (const std::uint8_t index : indices.subspan(1)) {
    std::uint16_t& known = longer[static_cast<std::size_t>(code) << 8 | index];
    if (known != 0) {
      code = known;
      continue;
    }
    out.put(code, width);
    if (next < (1 << kMaxCodeBits)) {
      if (next == (1 << width)) ++width;
      known = static_cast<std::uint16_t>(next++);
    } else {
      out.put(clear, width);
      std::ranges::fill(longer, std::uint16_t{0});
      next = end + 1;
      width = bits + 1;
    }
    code = index;
  }
  out.put(code, width);
  if (next == (1 << width) && width < kMaxCodeBits) ++width;  // the reader has grown by then
  out.put(end, width);
  return out.take();
}

}  // namespace

GifWriter::GifWriter(ImageSize size, FrameRate fps) : size_(size), fps_(fps) {
  constexpr std::string_view kSignature = "GIF89a";
  bytes_.assign(kSignature.begin(), kSignature.end());
  put16(size.width);
  put16(size.height);
  constexpr std::uint8_t kEightBits = 0x70;  // of the display; no palette for all frames
  bytes_.insert(bytes_.end(), {kEightBits, 0, 0});
  constexpr std::string_view kLoop = "NETSCAPE2.0";
  bytes_.insert(bytes_.end(), {0x21, 0xFF, static_cast<std::uint8_t>(kLoop.size())});
  bytes_.insert(bytes_.end(), kLoop.begin(), kLoop.end());
  bytes_.insert(bytes_.end(), {3, 1, 0, 0, 0});  // for ever
}

void GifWriter::put16(std::int64_t value) {
  bytes_.push_back(static_cast<std::uint8_t>(value & 0xFF));
  bytes_.push_back(static_cast<std::uint8_t>(value >> 8));
}

void GifWriter::put_sub_blocks(std::span<const std::uint8_t> data) {
  for (std::size_t at = 0; at < data.size(); at += kSubBlock) {
    const auto part = data.subspan(at, std::min(kSubBlock, data.size() - at));
    bytes_.push_back(static_cast<std::uint8_t>(part.size()));
    bytes_.insert(bytes_.end(), part.begin(), part.end());
  }
  bytes_.push_back(0);
}

// Rounded from the start, so that no error adds up.
std::int64_t GifWriter::hundredths(std::int64_t frame) const {
  return (frame * 100 * fps_.seconds * 2 + fps_.frames) / (2 * fps_.frames);
}

void GifWriter::add(std::span<const std::uint8_t> rgb) {
  const auto height = static_cast<std::size_t>(size_.height),
             width = static_cast<std::size_t>(size_.width);
  const Quantizer::Indexed frame = quantizer_.reduce(rgb, height, width);
  const auto colors = static_cast<unsigned>(frame.palette->size());
  const int table_bits = std::max(1, static_cast<int>(std::bit_width(colors - 1)));
  const int code_bits = std::max(2, table_bits);

  constexpr std::uint8_t kStays = 1 << 2;  // nothing to be disposed of
  bytes_.insert(bytes_.end(), {0x21, 0xF9, 4, kStays});
  put16(hundredths(frames_ + 1) - hundredths(frames_));
  bytes_.insert(bytes_.end(), {0, 0});
  ++frames_;

  bytes_.push_back(0x2C);
  put16(0);
  put16(0);
  put16(size_.width);
  put16(size_.height);
  constexpr int kOwnPalette = 0x80;
  bytes_.push_back(static_cast<std::uint8_t>(kOwnPalette | (table_bits - 1)));
  for (std::size_t i = 0; i < std::size_t{1} << table_bits; ++i) {
    const PaletteColor color = i < colors ? (*frame.palette)[i] : PaletteColor{};
    bytes_.insert(bytes_.end(), color.begin(), color.end());
  }
  bytes_.push_back(static_cast<std::uint8_t>(code_bits));
  put_sub_blocks(compress(frame.indices, code_bits));
}

std::vector<std::uint8_t> GifWriter::finish(const std::vector<std::string>& comments) {
  for (const std::string& comment : comments) {
    bytes_.insert(bytes_.end(), {0x21, 0xFE});
    put_sub_blocks({reinterpret_cast<const std::uint8_t*>(comment.data()), comment.size()});
  }
  bytes_.push_back(0x3B);
  return std::move(bytes_);
}

}  // namespace diptych
