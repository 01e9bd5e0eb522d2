#include "lib/models/block_drafter/block_drafter.h"

#include <array>
#include <utility>

#include "lib/base/error.h"

namespace diptych {
namespace {

// Tensors of drafters that do not borrow all of the target's vocabulary.
constexpr std::array kOwnVocabulary = {"embed_tokens.weight", "lm_head.weight",       "d2t", "t2d",
                                       "mask_embedding",      "mask_embedding.weight"};

void refuse_own_vocabulary(const Weights& weights, const BlockDrafterConfig& config) {
  for (const char* name : kOwnVocabulary) {
    if (!weights.contains(name)) continue;
    throw InputError(
        "{}: {}: found in the drafter's weights, expected none: embedding, mask and "
        "logits are the target's",
        config.file.parent_path().string(), name);
  }
}

}  // namespace

BlockDrafter BlockDrafter::load(const Weights& weights, const BlockDrafterConfig& config,
                                const MatrixQuantization& quantization) {
  if (!weights.is_dummy()) refuse_own_vocabulary(weights, config);
  const std::int64_t hidden = config.decoder.hidden_size;
  BlockDrafter drafter;
  drafter.config = config;
  drafter.fc = weights.get("fc.weight", {hidden, config.feature_width()});
  drafter.hidden_norm = weights.get("hidden_norm.weight", {hidden});
  drafter.decoder = QwenDecoder::load(weights, config.decoder, quantization);
  if (!weights.is_dummy()) weights.require_all_read();
  return drafter;
}

void BlockDrafter::collect(std::int64_t layer, const Tensor& x, const Tensor& features) const {
  if (layer == config.num_target_layers - 1) return;
  const std::int64_t hidden = config.decoder.hidden_size;
  for (std::size_t i = 0; i < config.target_layer_ids.size(); ++i) {
    if (config.target_layer_ids[i] != layer) continue;
    features.narrow(1, static_cast<std::int64_t>(i) * hidden, hidden).copy_(x);
  }
}

void BlockDrafter::collect_last(const Tensor& normed, const Tensor& features) const {
  const std::int64_t hidden = config.decoder.hidden_size;
  for (std::size_t i = 0; i < config.target_layer_ids.size(); ++i) {
    if (config.target_layer_ids[i] != config.num_target_layers - 1) continue;
    features.narrow(1, static_cast<std::int64_t>(i) * hidden, hidden).copy_(normed);
  }
}

void BlockDrafter::write_context(const QwenRows& rows, const Tensor& features, const KvCache& cache,
                                 const Kernels& kernels,
                                 const BlockDrafterObserver& observer) const {
  const Tensor projected = linear(features, fc, {}, kernels);
  const Tensor context =
      rms_norm(projected, hidden_norm, config.decoder.rms_norm_eps, kernels.policy);
  if (observer) {
    observer("ctx_fc", projected);
    observer("ctx_norm", context);
  }
  decoder.write_keys(rows, context, cache, kernels);
}

Tensor BlockDrafter::forward(QwenRows rows, Tensor x, const KvCache& cache,
                             const AttentionBackend& attention, const Kernels& kernels,
                             const QwenObserver& observer) const {
  rows.causal = false;
  return decoder.forward(rows, std::move(x), cache, attention, kernels, observer);
}

}  // namespace diptych
