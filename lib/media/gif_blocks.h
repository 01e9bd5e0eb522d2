// The blocks of a GIF file, without its pixels (GIF89a specification, sections 15 to 27).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace diptych {

struct GifBlocks {
  std::int64_t frames = 0;      // that are there whole
  std::int64_t hundredths = 0;  // of a second, of these frames together
  std::vector<std::string> comments;
  bool whole = false;  // the end mark is there; else what stands before the damage
};

GifBlocks read_gif_blocks(std::span<const std::uint8_t> bytes);

}  // namespace diptych
