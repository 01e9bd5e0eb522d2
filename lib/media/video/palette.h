// The colours of a frame, brought down to the 256 that GIF holds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace diptych {

using PaletteColor = std::array<std::uint8_t, 3>;
using Palette = std::vector<PaletteColor>;  // 1 to 256

// Frames of one clip, in order. A frame of at most 256 colours keeps them all. For others the
// colours are split where their variance is largest (as Wu's quantiser does), then settled by
// k-means, and a frame is dithered by Floyd and Steinberg's error diffusion, every second row
// backwards. The palette of the frame before stays while it fits nearly as well, so that what does
// not move does not flicker.
class Quantizer {
 public:
  struct Indexed {
    const Palette* palette;             // until the next call
    std::vector<std::uint8_t> indices;  // [height][width]
  };
  // rgb: [height][width][3]
  Indexed reduce(std::span<const std::uint8_t> rgb, std::size_t height, std::size_t width);

 private:
  Palette palette_;
  bool exact_ = false;
};

}  // namespace diptych
