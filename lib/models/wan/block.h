// The weights of one block of a Wan transformer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/models/matrices.h"
#include "lib/models/streamed_blocks.h"
#include "lib/models/wan/config.h"

namespace diptych {

// Named after the checkpoint's modules; projections that read the same rows are packed. D is the
// width of the model. Only matrices are ever quantised.
struct WanBlock {
  LinearOperand attn1_qkv;  // [3 * D, D]: to_q, to_k, to_v
  LinearOperand attn1_out;  // [D, D]: to_out.0
  LinearOperand attn2_q;    // [D, D]
  LinearOperand attn2_out;  // [D, D]
  LinearOperand ffn_in;     // [ffn_dim, D]: net.0.proj
  LinearOperand ffn_out;    // [D, ffn_dim]: net.2
  LinearOperand attn2_kv;   // [2 * D, D]: to_k, to_v
  LinearOperand image_kv;   // [2 * D, D]: add_k_proj, add_v_proj; undefined: sees no image

  Tensor attn1_qkv_bias, attn1_out_bias, attn2_q_bias, attn2_out_bias, ffn_in_bias, ffn_out_bias,
      attn2_kv_bias, image_kv_bias;
  Tensor attn1_norm_q, attn1_norm_k;  // [D]
  Tensor attn2_norm_q, attn2_norm_k;  // [D]
  Tensor image_norm_k;                // [D]: norm_added_k
  Tensor norm2_weight, norm2_bias;    // float32 [D]; undefined: no norm before attn2

  // `block`: scope "blocks.N". Throws as Weights::get.
  static WanBlock load(const Weights& block, const WanConfig& config,
                       const MatrixQuantization& quantization = {},
                       const BlockBuffers& buffers = {});
  // The matrices of that part become views of the buffer, uint8 [matrix_bytes()].
  void use_matrices(BlockPart part, const Tensor& buffer, const WanConfig& config,
                    const MatrixFormat& format);
  // Takes over the matrices of that part.
  void take_matrices(BlockPart part, const WanBlock& from);
  static std::int64_t matrix_bytes(BlockPart part, const WanConfig& config,
                                   const MatrixFormat& format);
};

using WanBlocks = StreamedBlocks<WanBlock, WanConfig>;

}  // namespace diptych
