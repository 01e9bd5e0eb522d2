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
#include "lib/models/qwen_mot/row_share.h"
#include "lib/ops/ops.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct MotRows {
  Tensor gen;  // [gen_rows, ...], undefined when there are none
  Tensor und;  // [und_rows, ...], likewise
};

// Whose rows leave the last layer. For the others the last layer computes only keys and values:
// nothing else is needed of a context, or of the markers of a painted block.
enum class MotWanted { all, generation, none };

// The rows of one packed call: generation rows of all samples first, then the understanding rows.
// What both kinds go through alike is one launch over all rows, each set with its own weights;
// projections and attention see one contiguous slice each, and nothing is gathered. Attention
// inside an image block is full, so the order of a sample's rows is free.
struct MotPlan {
  std::int64_t gen_rows = 0, und_rows = 0;
  Tensor cos, sin;  // float32 [gen_rows + und_rows, head_dim / 2]
  Tensor slots;     // int64 [gen_rows + und_rows], counted from cache row `first_cache_row`
  AttentionLengths gen, und;  // queries of each part; keys: context and own rows of each sample
  std::int64_t first_cache_row = 0, cache_rows = 0;
  bool causal = false;  // text; image blocks are full
  RopeRounding rounding = RopeRounding::every_step;
  MotWanted wanted = MotWanted::all;
  // Ranks that divide the generation rows: those above are this rank's, but for the queries of
  // `gen`, which are those of its attention; `all_slots` int64 has the slots of all. Null: this
  // process has them all.
  std::shared_ptr<const MotRowShare> share;
  Tensor all_slots;

  std::int64_t rows() const { return gen_rows + und_rows; }
  // Takes over positions, slots and lengths of keys from a plan with as many rows of each sample in
  // a cache of the same capacity. All tensors keep their memory.
  void follow(const MotPlan& other);
  MotRows split(const Tensor& rows) const;  // [gen_rows + und_rows, ...] -> views of the two parts
  MotPlan leaving() const;                  // of the rows that leave the last layer
  // Of this rank's rows. Every rank has all understanding rows, and a cache for all heads.
  MotPlan divided(std::shared_ptr<const MotRowShare> among) const;
  // The format in which norms and the activation hand rows to the projections: quantised where the
  // projections would quantise all of the rows anyway.
  Quantization row_format(Quantization projections) const;
};

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

struct MotBackbone {
  QwenConfig config;
  Tensor embed_tokens;    // [vocab, hidden]
  Tensor norm, norm_gen;  // [hidden]
  Tensor lm_head;         // [vocab, hidden], where it was loaded: only writing text needs it
  MotLayers layers;
  Quantization quantization = Quantization::none;  // of the layers' projections

  // `weights`: scope "language_model". All but lm_head. Throws as MotLayers::load.
  static MotBackbone load(const Weights& weights, const QwenConfig& config,
                          const std::optional<MotOffload>& offload = {},
                          const MatrixQuantization& quantization = {});
  void load_head(const Weights& weights);  // as load()

  // int64 [tokens] -> [tokens, hidden]; always a fresh tensor, which forward() may consume.
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

// One sample of a call to plan: its cache row and what it adds behind that row's context.
struct MotSample {
  std::int64_t context = 0;   // tokens in the cache row before this call
  std::int64_t position = 0;  // rope position of the first row, where plan_* makes the ids
  std::int64_t gen_rows = 0, und_rows = 0;
};

// The samples of a call, and where their rows are. In the cache the first understanding row of a
// sample comes first, then its generation rows, then the other understanding rows.
struct MotBlock {
  std::span<const MotSample> samples;
  Tensor position_ids;  // int64 [rows], or [3, rows] with an mrope_section (rope_angles), in the
                        // plan's order of rows
  bool text = false;    // causal; else every row attends to all of its sample
};
// Of every sample the positions of its rows in the order of its tokens, int64 [rows] or [3, rows]
// -> those of all rows in the plan's order.
Tensor in_plan_order(std::span<const MotSample> samples, std::span<const Tensor> positions);
// `first_cache_row`: of the first sample; the others follow.
MotPlan make_plan(const MotBlock& block, std::int64_t first_cache_row, const KvCache& cache,
                  const QwenConfig& config, const at::TensorOptions& options);
// An image block: every row of a sample at the sample's one position, full attention. The first
// understanding row is the start marker.
MotPlan plan_image_block(std::span<const MotSample> samples, std::int64_t first_cache_row,
                         const KvCache& cache, const QwenConfig& config,
                         const at::TensorOptions& options);
// Text: understanding rows at consecutive positions, causal.
MotPlan plan_text(std::span<const MotSample> samples, std::int64_t first_cache_row,
                  const KvCache& cache, const QwenConfig& config, const at::TensorOptions& options);

}  // namespace diptych
