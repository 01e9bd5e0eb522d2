// Between latent rows and the backbone of BAGEL and Lance: their projections, the embedding of the
// timestep, and the table of positions. Names as in the checkpoints; specs: section 7 of bagel.md
// and 9 of lance.md. Port of ByteDance-Seed/Bagel @056b5fd, modeling/bagel/bagel.py and
// modeling_utils.py.
#pragma once

#include <cstdint>

#include <ATen/ops/linear.h>

#include "lib/models/qwen_mot/latent_positions.h"
#include "lib/models/qwen_mot/time_embedder.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct MotLatents {
  TimeEmbedder time_embedder;
  Tensor vae2llm, vae2llm_bias;  // [hidden, width], [hidden]
  Tensor llm2vae, llm2vae_bias;  // [width, hidden], [width]
  Tensor pos_embed;              // [side * side, hidden]; undefined: the table is fixed
  std::int64_t side = 0;         // of the table of positions, of each frame
  std::int64_t frames = 1;       // of a fixed table
  std::int64_t width = 0;        // of a latent row

  // `weights`: the root of the checkpoint. Throws as Weights::get.
  static MotLatents load(const Weights& weights, std::int64_t hidden, std::int64_t width,
                         std::int64_t side);
  // The same with a fixed table of positions, which is not read.
  static MotLatents load(const Weights& weights, std::int64_t hidden, std::int64_t width,
                         const LatentTable& table);

  // Rows of the position table for t x h x w latent rows in row-major order -> [t * h * w], int64,
  // CPU (LatentTable::indices).
  Tensor position_ids(std::int64_t h, std::int64_t w, std::int64_t t = 1) const;
  // The rows themselves -> [t * h * w, hidden], on the device of the projections.
  Tensor positions(std::int64_t h, std::int64_t w, std::int64_t t = 1) const;
  // x float32 [rows, width], time [hidden] or [rows, hidden], position [rows, hidden] -> [rows,
  // hidden].
  Tensor embed(const Tensor& x, const Tensor& time, const Tensor& position) const {
    // Left to right, each sum rounded to the model's dtype, as the official code adds them.
    return project(x).add_(time).add_(position);
  }
  // The first of its terms: x in the model's dtype, projected.
  Tensor project(const Tensor& x) const {
    return at::linear(x.to(vae2llm.scalar_type()), vae2llm, vae2llm_bias);
  }
  // Final-norm rows [rows, hidden] -> [rows, width].
  Tensor velocity(const Tensor& hidden) const { return at::linear(hidden, llm2vae, llm2vae_bias); }
};

}  // namespace diptych
