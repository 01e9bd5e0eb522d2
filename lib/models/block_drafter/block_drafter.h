// The drafter of DFlash: a small transformer without embedding and logits of its own that fills all
// masked slots of a block in one forward. It sees the text before the block as keys and values made
// of the target's hidden states (features), and the slots of the block see each other both ways.
// specs: dflash.md section 5. Port of z-lab/dflash @44947fb, dflash/model.py (DFlashDraftModel).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "lib/models/block_drafter/config.h"
#include "lib/models/qwen/decoder.h"

namespace diptych {

// Called with "ctx_fc" and "ctx_norm" of the rows of a context.
using BlockDrafterObserver = std::function<void(std::string_view what, const Tensor& rows)>;

struct BlockDrafter {
  BlockDrafterConfig config;
  Tensor fc;           // [hidden, feature_width]
  Tensor hidden_norm;  // [hidden]
  QwenDecoder decoder;

  // `weights`: the root of the drafter's checkpoint. The layers' projections alone are quantised.
  // Throws as Weights::get, and InputError naming a tensor that the model does not have, among them
  // an embedding, a head or a table of ids of the drafter's own.
  static BlockDrafter load(const Weights& weights, const BlockDrafterConfig& config,
                           const MatrixQuantization& quantization = {});

  // Copies what the target's layer gives for some rows to these rows' features [rows,
  // feature_width], where it is one of target_layer_ids. Of the target's last layer that is what is
  // behind its final norm (transformers' hidden_states): of it collect_last() alone takes notice.
  void collect(std::int64_t layer, const Tensor& x, const Tensor& features) const;
  void collect_last(const Tensor& normed, const Tensor& features) const;

  // Writes the keys and values that features [rows, feature_width] have in every layer to the rows'
  // slots. Lengths are not used.
  void write_context(const QwenRows& rows, const Tensor& features, const KvCache& cache,
                     const Kernels& kernels, const BlockDrafterObserver& observer = {}) const;

  // x [rows, hidden]: the target's embeddings of whole blocks; consumed. The context must have been
  // written: keys and values of the block go behind it, and over whatever lies there. -> rows
  // behind the final norm, [rows, hidden]: the target's logits of row j predict the token at row
  // j's own position.
  Tensor forward(QwenRows rows, Tensor x, const KvCache& cache, const AttentionBackend& attention,
                 const Kernels& kernels, const QwenObserver& observer = {}) const;
};

}  // namespace diptych
