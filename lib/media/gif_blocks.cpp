#include "lib/media/gif_blocks.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::uint8_t kExtension = 0x21, kImage = 0x2C, kEnd = 0x3B, kPadding = 0;
constexpr std::uint8_t kGraphicControl = 0xF9, kComment = 0xFE;

class GifWalk {
 public:
  explicit GifWalk(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  GifBlocks walk() {
    skip(10);  // signature and size
    const std::uint8_t flags = take();
    skip(2);  // background and aspect
    skip_palette(flags);
    while (inside_) read_block();
    return std::move(found_);
  }

 private:
  // Behind the end everything is 0.
  void skip(std::size_t count) {
    inside_ = inside_ && count <= bytes_.size() - at_;
    at_ = inside_ ? at_ + count : bytes_.size();
  }
  std::uint8_t take() {
    skip(1);
    return inside_ ? bytes_[at_ - 1] : std::uint8_t{0};
  }
  void skip_palette(std::uint8_t flags) {
    if ((flags & 0x80) != 0) skip(std::size_t{3} << ((flags & 7) + 1));
  }
  std::string take_sub_blocks() {
    std::string data;
    for (std::size_t size = take(); size > 0; size = take()) {
      skip(size);
      if (inside_) data.append(reinterpret_cast<const char*>(bytes_.data()) + at_ - size, size);
    }
    return data;
  }

  void read_block() {
    switch (take()) {
      case kExtension:
        return read_extension();
      case kImage:
        return read_image();
      case kPadding:  // some writers leave it between blocks
        return;
      case kEnd:
        found_.whole = true;
        [[fallthrough]];
      default:
        inside_ = false;
    }
  }
  void read_extension() {
    const std::uint8_t kind = take();
    const std::string data = take_sub_blocks();
    if (!inside_) return;
    if (kind == kComment) found_.comments.push_back(data);
    if (kind == kGraphicControl && data.size() >= 4)
      delay_ = static_cast<std::uint8_t>(data[1]) | static_cast<std::uint8_t>(data[2]) << 8;
  }
  void read_image() {
    skip(8);  // place and size
    skip_palette(take());
    skip(1);  // the smallest code's bits
    take_sub_blocks();
    if (!inside_) return;
    ++found_.frames;
    found_.hundredths += delay_;
    delay_ = 0;
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  bool inside_ = true;
  int delay_ = 0;
  GifBlocks found_;
};

}  // namespace

GifBlocks read_gif_blocks(std::span<const std::uint8_t> bytes) {
  return GifWalk(bytes).walk();
}

}  // namespace diptych
