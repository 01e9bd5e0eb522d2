// What the parts that BAGEL and Lance share need of a checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/models/qwen_mot/backbone.h"
#include "lib/models/qwen_mot/latents.h"
#include "lib/text/tokenizer.h"

namespace diptych {

struct ImageMarkers {  // the tokens that begin and end an image block
  std::int64_t start = 0, end = 0;
};

struct LatentSize {
  std::int64_t h = 0, w = 0, t = 1;  // latent rows: in a frame, and frames
  std::int64_t rows() const { return t * h * w; }
  bool operator==(const LatentSize&) const = default;
};

// Borrowed from a checkpoint, which must outlive this and stay where it is. Its weights may be
// loaded later.
struct MotModel {
  const MotBackbone& backbone;
  const MotLatents& latents;
  const Tokenizer& tokenizer;
  std::int64_t bos = 0, eos = 0;  // around every text segment
  ImageMarkers markers;

  // [bos] + encode(text) + [eos]. Throws InputError where that is longer than the model's
  // positions, or holds a token beyond its vocabulary.
  std::vector<std::int64_t> text_segment(std::string_view text) const;
  // Throws InputError for a token beyond the vocabulary.
  void check_vocabulary(std::span<const std::int64_t> tokens) const;
};

}  // namespace diptych
