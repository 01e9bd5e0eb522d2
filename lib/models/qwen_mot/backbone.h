// The mixture-of-transformers backbone of BAGEL and Lance: Qwen2 layers whose every weight exists
// twice, for understanding rows (text, markers, image features) and for generation rows (latents),
// around one shared attention. specs: section 4.1 of the model's page.
// Port of ByteDance-Seed/Bagel @056b5fd, modeling/bagel/qwen2_navit.py (Qwen2MoTDecoderLayer).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/attention/kv_cache.h"
#include "lib/models/qwen_mot/layers.h"
#include "lib/models/qwen_mot/plan.h"
#include "lib/ops/ops.h"
#include "lib/tensor/weights.h"

namespace diptych {

// What MotBackbone::products multiplies: rows as they enter projections and attention.
struct MotProductRows {
  LinearOperand hidden, inner;  // [gen_rows + und_rows, hidden or intermediate]
  Tensor q;                     // [gen_rows + und_rows, heads, head_dim]
  LinearOperand attended;       // [gen_rows + und_rows, heads * head_dim], q in place of the result
  MotRows by_heads;             // q as it attends, of ranks that attend by heads
};

// Called with "layerLL.attn.q" and "layerLL.attn.out" (of the rows that attend: [rows, heads,
// head_dim], q rotated) and "layerLL.hidden" in every layer, and with "final_norm" at the end.
using MotObserver = std::function<void(std::string_view what, const MotRows& rows)>;

struct MotTextWeights {
  Tensor lm_head, embed_tokens;  // [vocab, hidden], on the device
};

struct MotBackbone {
  QwenConfig config;
  // [vocab, hidden]. A view of the file in the stored dtype where tokens_stay_in_file(), for a GPU
  // until take(): a prompt needs few of its rows. Else on the device.
  Tensor embed_tokens;
  Tensor norm, norm_gen;  // [hidden]
  Tensor lm_head;         // [vocab, hidden], where it was loaded: only writing text needs it
  MotLayers layers;
  Quantization quantization = Quantization::none;  // of the layers' projections

  // `weights`: scope "language_model". All but lm_head. Throws as MotLayers::load.
  static MotBackbone load(const Weights& weights, const QwenConfig& config,
                          const std::optional<MotOffload>& offload = {},
                          const MatrixQuantization& quantization = {});
  static bool tokens_stay_in_file(const Weights& weights);  // of the same scope
  // What writing text needs beside that, for take() once it is read; as load().
  MotTextWeights load_head(const Weights& weights) const;
  void take(MotTextWeights head);

  // int64 [tokens], on any device -> [tokens, hidden] on the model's; always a fresh tensor, which
  // forward() may consume.
  Tensor embed(const Tensor& ids) const;
  // x [gen_rows + und_rows, hidden], contiguous. Ranks that divide rows call it together. Writes
  // the keys and values of all rows into the cache slots, of the heads that this rank attends to
  // (it does not advance the cache), and returns the wanted rows after the final norm, all of them
  // where there is an observer. `x` is consumed: its storage holds the residual stream, at the end
  // what left the last layer of the rows that are returned.
  MotRows forward(const MotPlan& plan, Tensor x, const KvCache& cache,
                  const AttentionBackend& attention, const Kernels& kernels,
                  const MotObserver& observer = {}) const;

  // The products and the attention of forward() and nothing else, launched as it launches them: the
  // time that they take is its floor. Every layer reads the same rows, and the cache as it is, in
  // which the rows of the plan must have been written. No layer may stream. -> what the last
  // product gives.
  Tensor products(const MotPlan& plan, const MotProductRows& rows, const KvCache& cache,
                  const AttentionBackend& attention, const Kernels& kernels) const;
  // Those of the first layer behind x, which is as forward()'s but left as it is. Writes that
  // layer's keys and values.
  MotProductRows product_rows(const MotPlan& plan, const Tensor& x, const KvCache& cache,
                              const Kernels& kernels) const;
};

}  // namespace diptych
