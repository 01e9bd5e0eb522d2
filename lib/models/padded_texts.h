// Attention to texts that a model was trained with filled up with zero rows, without a mask. Zero
// rows of a text all become the same key and value, so only one of them is kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/attention/attention.h"

namespace diptych {

struct PaddedText {
  std::int64_t own = 0;     // rows that are a text's own
  std::int64_t shared = 0;  // zero rows behind them, which are one key and value
  std::int64_t keys() const { return own + (shared > 0 ? 1 : 0); }
};

// How the equal keys of a text enter attention.
enum class SharedKeys {
  weighted,  // as one key, the logarithm of their number added to its logit
  repeated,  // as they are, as many as they are: of backends without a bias of the last key
};
// Weighted where the backend has such a bias for calls of that kind: the same result of fewer keys.
SharedKeys preferred_shared_keys(const AttentionBackend& attention, const AttentionKind& kind);

// `rows`: of each text [1 to padded_to, width]. Throws c10::Error for others, "[<model>] ...".
std::vector<PaddedText> padded_texts(std::span<const Tensor> rows, std::int64_t padded_to,
                                     std::int64_t width, const char* model);
// The most keys of a text.
std::int64_t key_capacity(std::span<const PaddedText> texts);
// The texts' own rows, and zero rows behind each up to that capacity -> [texts * capacity, width].
Tensor lay_out_texts(std::span<const Tensor> rows, std::int64_t capacity,
                     const at::TensorOptions& options);

// How queries see the keys of their texts. Made once for all layers and steps.
struct TextAttention {
  AttentionLengths lengths;
  Tensor last_key_bias;  // float32 [texts], of weighted keys; undefined: none
  Tensor index;  // int64 [texts * lengths.capacity]: rows of the flattened keys, of repeated ones

  // `queries`: of each text. `capacity`: of the keys that are kept.
  static TextAttention make(std::span<const PaddedText> texts, std::int64_t capacity,
                            const std::vector<std::int64_t>& queries, SharedKeys shared,
                            at::Device device);
  // What attention is to have of kept keys or values [texts, capacity, columns]: these, or as many
  // as there are.
  Tensor keys(const Tensor& kept) const;
};

}  // namespace diptych
