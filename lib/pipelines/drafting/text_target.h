// The language model whose texts are drafted and verified: what a writer of texts asks of it.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/models/qwen/decoder.h"

namespace diptych {

struct TextTarget {
  QwenConfig config;  // of its layers
  // int64 [rows] -> [rows, hidden], a fresh tensor. An id below 0 (kNoToken) is taken for 0.
  std::function<Tensor(const Tensor& ids)> embed;
  // hidden [rows, hidden], behind the final norm -> [rows, vocab]
  std::function<Tensor(const Tensor& hidden, const Kernels& kernels)> logits;
  // As QwenDecoder::forward.
  std::function<Tensor(const QwenRows& rows, Tensor x, const KvCache& cache,
                       const AttentionBackend& attention, const Kernels& kernels,
                       const QwenObserver& observer)>
      forward;
  bool captures = true;  // whether its forwards may be CUDA graphs
};

// What a text stands behind where it is no prompt that a writer reads.
struct TextContext {
  std::int64_t length = 0;    // rows in the caches
  std::int64_t position = 0;  // of the first token, by which the target turns it; at most `length`
  std::int64_t first_token = 0;  // known; the text goes on behind it
};

}  // namespace diptych
