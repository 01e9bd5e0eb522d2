// Qwen3, a causal language model: embedding, decoder layers, logits. specs: dflash.md section 4.
// Port of transformers 4.57.6, modeling_qwen3.py (Qwen3ForCausalLM).
#pragma once

#include <filesystem>

#include "lib/models/qwen/decoder.h"

namespace diptych {

struct Qwen3Config : QwenConfig {
  bool tie_word_embeddings = false;  // logits are products with embed_tokens

  // Throws InputError as QwenConfig::load.
  static Qwen3Config load(const std::filesystem::path& path);
};

struct Qwen3 {
  Qwen3Config config;
  Tensor embed_tokens;  // [vocab, hidden]
  QwenDecoder decoder;
  Tensor lm_head;  // [vocab, hidden]; of tied weights embed_tokens itself

  // `weights`: the root of a checkpoint, in one file or in shards. Of the matrices, the layers'
  // projections alone are quantised. Throws as Weights::get, and InputError for tensors that the
  // model does not have.
  static Qwen3 load(const Weights& weights, const Qwen3Config& config,
                    const MatrixQuantization& quantization = {});

  // int64 [rows] -> [rows, hidden], a fresh tensor. An id below 0 (kNoToken) is taken for 0.
  Tensor embed(const Tensor& ids) const;
  // hidden [rows, hidden], behind the final norm -> [rows, vocab]
  Tensor logits(const Tensor& hidden, const Kernels& kernels) const;
};

}  // namespace diptych
