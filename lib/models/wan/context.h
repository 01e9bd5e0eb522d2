// What a Wan transformer attends to beside itself: the rows of a text and of an image, as keys and
// values of every block. They do not change from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/models/padded_texts.h"
#include "lib/tensor/types.h"

namespace diptych {

// The released models were trained on texts of 512 rows, filled up with zeros before the text
// embedding, and attend to all of them without a mask. Zero rows all become the same key.
inline constexpr std::int64_t kWanTextRows = 512;

// Called with the names of the golden data without the step's prefix, such as "block00.norm1". The
// value is good during the call only.
using WanObserver = std::function<void(std::string_view name, const Tensor& value)>;

struct WanContext {
  std::vector<PaddedText> texts;  // of each sample
  std::vector<Tensor> text;       // of each block: [samples, capacity, 2 * width], keys (normed)
                                  // before values; behind a text's keys() any finite rows
  std::vector<Tensor> image;      // of each block: [samples, image rows, 2 * width], likewise;
                                  // empty: there is no image

  std::int64_t samples() const { return static_cast<std::int64_t>(texts.size()); }
  std::int64_t capacity() const { return text.front().size(1); }
  // Views of some samples, such as the branch that is still computed.
  WanContext slice(std::int64_t first, std::int64_t count) const;
};

struct WanTexts {
  std::vector<Tensor> rows;  // of each sample (branch of a clip): [1 to padded_to, text_dim], any
                             // floating dtype and device: the encoder's rows, without padding
  std::int64_t padded_to = kWanTextRows;
  // What a vision tower made of the image, [rows, image_dim] for all samples alike or [samples,
  // rows, image_dim]; undefined for a model that sees no image.
  Tensor image{};
};

}  // namespace diptych
