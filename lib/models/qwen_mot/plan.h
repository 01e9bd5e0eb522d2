// The rows of one packed call of the backbone of BAGEL and Lance: which experts they go to, where
// they are in the cache, what they attend to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lib/attention/kv_cache.h"
#include "lib/attention/lengths.h"
#include "lib/models/qwen/config.h"
#include "lib/models/qwen_mot/row_share.h"
#include "lib/ops/ops.h"

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
  // The positions of every sample, in the order of its tokens: int64 [rows], or [3, rows] with
  // an mrope_section (rope_angles).
  std::span<const Tensor> positions;
  bool text = false;  // causal; else every row attends to all of its sample
};
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
