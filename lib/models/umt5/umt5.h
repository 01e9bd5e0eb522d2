// The text encoder of Wan (UMT5) and Cosmos (T5): pre-norm layers whose attention adds a bias by
// distance to unscaled scores.
// Port of transformers 4.57, models/umt5/modeling_umt5.py and models/t5/modeling_t5.py (encoders);
// specs: wan.md section 3, cosmos.md section 2.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/models/umt5/config.h"
#include "lib/ops/ops.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct Umt5Layer {
  Tensor attention_norm;           // [d_model]
  Tensor q, k, v;                  // [inner, d_model]
  Tensor o;                        // [d_model, inner]
  Tensor relative_attention_bias;  // [buckets, heads]; undefined: the first layer's serves
  Tensor feed_forward_norm;        // [d_model]
  Tensor wi;                       // [d_ff, d_model]: wi_0 where it is gated
  Tensor wi_1;                     // [d_ff, d_model]; undefined where it is not gated
  Tensor wo;                       // [d_model, d_ff]
  static Umt5Layer load(const Weights& weights, const Umt5Config& config, bool has_bias);
};

// Called with the names of the golden data: "hiddenLL", where 00 are the embedded tokens and the
// last one, the result, is behind the last norm; "blockLL.position_bias" [heads, n, n] of the
// layers that have a table.
using Umt5Observer = std::function<void(std::string_view name, const Tensor& value)>;

struct Umt5 {
  Umt5Config config;
  Tensor shared;  // [vocab_size, d_model]
  std::vector<Umt5Layer> layers;
  Tensor final_layer_norm;  // [d_model]

  // `weights`: the root of the text encoder's folder. Throws as Weights::get.
  static Umt5 load(const Weights& weights, const Umt5Config& config);

  // One prompt without padding: n ids -> [n, d_model] in the weights' dtype, on their device.
  // Padding that the reference masks has no weight at all, so these are its rows up to its
  // prompt's length; what stands behind them is up to the caller. Softmax in float32. Throws
  // InputError for an id that is not in the vocabulary; n is at least 1.
  Tensor forward(std::span<const std::int64_t> ids, const Kernels& kernels,
                 const Umt5Observer& observer = {}) const;
};

// Checks the names and shapes of an encoder's weights, where the embedding has either or both of
// its names; reads none. Throws as Weights::check and Weights::require_all_read.
void check_umt5_tensors(const Weights& weights, const Umt5Config& config);

// The bucket of each relative position (key - query), int64, any shape, CPU: half of the buckets
// for keys behind the query; of a half, the first half for one distance each, the others
// logarithmic up to the largest distance.
Tensor umt5_buckets(const Tensor& relative_positions, const Umt5Config& config);

// From the sizes alone: of the weights, and the most of a pass over n tokens beside them, in bytes.
std::int64_t umt5_weight_bytes(const Umt5Config& config, at::ScalarType dtype);
std::int64_t umt5_encode_bytes(const Umt5Config& config, std::int64_t tokens, at::ScalarType dtype);

}  // namespace diptych
