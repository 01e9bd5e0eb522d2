// The decoder layers of a plain Qwen2 or Qwen3 model: packed rows of several sequences go through
// all layers at once, their keys and values into a preallocated cache.
// Port of transformers 4.57.6, modeling_qwen3.py (Qwen3DecoderLayer, Qwen3Model).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/attention/kv_cache.h"
#include "lib/models/qwen/layer.h"
#include "lib/ops/ops.h"
#include "lib/tensor/weights.h"

namespace diptych {

// Where the rows of a packed call are, sequence after sequence.
struct QwenRows {
  Tensor cos, sin;  // float32 [rows, head_dim / 2]: qwen_rope_table() of the rows' positions
  Tensor slots;     // int64 [rows], counted from cache row `first_cache_row`
  const AttentionLengths* lengths = nullptr;  // queries; keys: cached ones and these rows
  std::int64_t first_cache_row = 0;
  bool causal = true;  // else every row sees all keys of its sequence
};

// Called with the residual stream [rows, hidden] behind each layer. The next layer adds to it: what
// is to be kept must be copied.
using QwenObserver = std::function<void(std::int64_t layer, const Tensor& x)>;

struct QwenDecoder {
  QwenConfig config;
  std::vector<QwenLayer> layers;
  Tensor norm;                                     // [hidden]
  Quantization quantization = Quantization::none;  // of the layers' projections

  // `model`: the scope that holds "layers.N" and "norm.weight". Throws as Weights::get.
  static QwenDecoder load(const Weights& model, const QwenConfig& config,
                          const MatrixQuantization& quantization = {});

  // x [rows, hidden], contiguous; it is consumed. Writes keys and values of all rows to their slots
  // (it does not advance the cache) -> the rows behind the final norm, [rows, hidden].
  Tensor forward(const QwenRows& rows, Tensor x, const KvCache& cache,
                 const AttentionBackend& attention, const Kernels& kernels,
                 const QwenObserver& observer = {}) const;

  // Keys and values of rows that have neither queries nor a residual stream: those of h [rows,
  // hidden] in every layer, to their slots. Lengths are not used.
  void write_keys(const QwenRows& rows, const Tensor& h, const KvCache& cache,
                  const Kernels& kernels) const;
};

}  // namespace diptych
