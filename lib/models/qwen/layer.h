// The weights of one decoder layer of Qwen2 or Qwen3.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "lib/models/matrices.h"
#include "lib/models/qwen/config.h"

namespace diptych {

// Projections that read the same input are packed. Only projections are ever quantised.
struct QwenLayer {
  Tensor input_layernorm;           // [hidden]
  LinearOperand qkv_proj;           // [(heads + 2 * kv_heads) * head_dim, hidden]
  Tensor qkv_bias;                  // [(heads + 2 * kv_heads) * head_dim]; undefined: none
  Tensor q_norm, k_norm;            // [head_dim] each; undefined: none
  LinearOperand o_proj;             // [hidden, heads * head_dim]
  Tensor post_attention_layernorm;  // [hidden]
  LinearOperand gate_up_proj;       // [2 * intermediate, hidden]
  LinearOperand down_proj;          // [hidden, intermediate]

  // `layer`: scope "model.layers.N". `suffix`: behind the name of each module, such as "_moe_gen".
  // `matrices`: where the four projections are put, uint8 [matrix_bytes()]; undefined: each by
  // itself on the device. Of a tensor that is quantised there is one plain copy at a time. Throws
  // as Weights::get.
  static QwenLayer load(const Weights& layer, const QwenConfig& config,
                        std::string_view suffix = {}, const MatrixQuantization& quantization = {},
                        const Tensor& matrices = {});
  // The projections become views of the buffer, each part aligned like an allocation of its own.
  void use_matrices(const Tensor& buffer, const QwenConfig& config, const MatrixFormat& format);
  static std::int64_t matrix_bytes(const QwenConfig& config, const MatrixFormat& format);
};

// The projections, in the order in which they lie in a buffer.
inline constexpr std::array<LinearOperand QwenLayer::*, 4> kQwenMatrices = {
    &QwenLayer::qkv_proj, &QwenLayer::o_proj, &QwenLayer::gate_up_proj, &QwenLayer::down_proj};

}  // namespace diptych
