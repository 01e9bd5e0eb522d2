// The weights of one block of a Cosmos-Predict2 transformer, but for its modulation.
#pragma once

#include <cstdint>

#include "lib/models/cosmos/config.h"
#include "lib/models/streamed_blocks.h"

namespace diptych {

// Named after the checkpoint's modules; projections that read the same rows are packed. D is the
// width of the model. No layer has a bias. Only matrices are ever quantised.
struct CosmosBlock {
  LinearOperand attn1_qkv;  // [3 * D, D]: to_q, to_k, to_v
  LinearOperand attn1_out;  // [D, D]: to_out.0
  LinearOperand attn2_q;    // [D, D]
  LinearOperand attn2_out;  // [D, D]
  LinearOperand ff_in;      // [inner, D]: net.0.proj
  LinearOperand ff_out;     // [D, inner]: net.2
  LinearOperand attn2_kv;   // [2 * D, text_embed_dim]: to_k, to_v

  Tensor attn1_norm_q, attn1_norm_k;  // [head_dim]
  Tensor attn2_norm_q, attn2_norm_k;  // [head_dim]

  // `block`: scope "transformer_blocks.N". Throws as Weights::get.
  static CosmosBlock load(const Weights& block, const CosmosConfig& config,
                          const MatrixQuantization& quantization = {},
                          const BlockBuffers& buffers = {});
  // The matrices of that part become views of the buffer, uint8 [matrix_bytes()].
  void use_matrices(BlockPart part, const Tensor& buffer, const CosmosConfig& config,
                    const MatrixFormat& format);
  // Takes over the matrices of that part.
  void take_matrices(BlockPart part, const CosmosBlock& from);
  static std::int64_t matrix_bytes(BlockPart part, const CosmosConfig& config,
                                   const MatrixFormat& format);
};

using CosmosBlocks = StreamedBlocks<CosmosBlock, CosmosConfig>;

}  // namespace diptych
