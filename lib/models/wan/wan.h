// The diffusion transformer of Wan 2.1 and 2.2: rows of 2 x 2 latent pixels, self attention over
// all rows of a clip with three-axis rope, cross attention to a text and, in Wan 2.1 I2V, to an
// image. Several samples (guidance branches, clips) of one latent size share a forward.
// Port of huggingface/diffusers 0.39, models/transformers/transformer_wan.py; specs: wan.md
// section 5.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/models/wan/block.h"
#include "lib/models/wan/context.h"
#include "lib/ops/ops.h"
#include "lib/runtime/row_share.h"

namespace diptych {

struct WanLatentSize {  // of a sample; height and width are even
  std::int64_t frames = 1, height = 0, width = 0;
  std::int64_t rows() const { return frames * (height / 2) * (width / 2); }
  bool operator==(const WanLatentSize&) const = default;
};

// What all forwards of samples of one size with one context share: made once, not per step.
struct WanPlan {
  WanLatentSize size;
  std::int64_t samples = 0;
  RowShare share;          // of each sample's rows
  Tensor cos, sin;         // float32 [own_rows(), head_dim / 2]
  AttentionLengths self;   // each sample's rows to themselves, those of all ranks
  TextAttention text;      // to the text's keys
  AttentionLengths image;  // to the image's keys, where there are
  std::int64_t own_rows() const { return share.own(size.rows()); }  // of a sample
  std::int64_t rows() const { return samples * own_rows(); }
};

// The timesteps of a forward. Rows of equal timesteps share a row of the tables.
struct WanTime {
  Tensor temb;  // [times, width], in the model's dtype: the modulated input of a step cache
  Tensor timestep_proj;  // [times, 6 * width], likewise: that of its "ret" mode
  Tensor of_row;         // int64 [plan.rows()]: which time a row has; undefined: all the first
};

struct WanTransformer {
  WanConfig config;
  Tensor patch_embedding, patch_bias;  // [width, patch_in()], [width]
  struct {                             // condition_embedder.time_embedder, in float32
    Tensor linear_1, linear_1_bias;    // [width, freq_dim], [width]
    Tensor linear_2, linear_2_bias;    // [width, width], [width]
  } time_embedder;
  Tensor time_proj, time_proj_bias;  // [6 * width, width], [6 * width]
  struct {
    Tensor linear_1, linear_1_bias;  // [width, text_dim], [width]
    Tensor linear_2, linear_2_bias;  // [width, width], [width]
  } text_embedder;
  struct {                       // where config.image_dim is; norms in float32
    Tensor pos_embed;            // [pos_embed_seq_len, image_dim], or undefined
    Tensor norm1, norm1_bias;    // [image_dim]
    Tensor ff_in, ff_in_bias;    // ff.net.0.proj: [image_dim, image_dim], [image_dim]
    Tensor ff_out, ff_out_bias;  // ff.net.2: [width, image_dim], [width]
    Tensor norm2, norm2_bias;    // [width]
  } image_embedder;
  Tensor block_tables;             // float32 [blocks, 6, width]: blocks.N.scale_shift_table
  Tensor scale_shift_table;        // float32 [2, width]
  Tensor proj_out, proj_out_bias;  // [patch_out(), width], [patch_out()]
  WanBlocks blocks;
  Quantization quantization = Quantization::none;  // of the blocks' matrices

  // `weights`: the root of the transformer's folder, in the dtype of the run. Throws InputError as
  // Weights::get; call weights.require_all_read() behind it.
  static WanTransformer load(const Weights& weights, const WanConfig& config,
                             const std::optional<BlockOffload>& offload = {},
                             const MatrixQuantization& quantization = {});
  at::TensorOptions options() const { return patch_embedding.options(); }

  // Once for a clip, or for several: embedded texts and image, keys and values of every block.
  // Throws c10::Error for texts of other widths and an image that the model does not take.
  WanContext make_context(const WanTexts& texts, const Kernels& kernels,
                          const WanObserver& observer = {}) const;
  // Throws InputError for more positions on an axis than config.rope_max_seq_len.
  // Ranks that share rows make it and run its steps together.
  WanPlan plan(const WanContext& context, const WanLatentSize& size, SharedKeys shared,
               const RowShare& share = {}) const;

  // A step is these four. The first two are independent of each other.
  // timesteps: float32 on the CPU, [samples] or, one for each row, [samples, size.rows()].
  WanTime embed_time(const WanPlan& plan, const Tensor& timesteps, const Kernels& kernels,
                     const WanObserver& observer = {}) const;
  // latents [samples, in_channels, frames, height, width], any floating dtype, on the device
  // -> [plan.rows(), width], a fresh tensor.
  Tensor embed_latents(const WanPlan& plan, const Tensor& latents, const Kernels& kernels,
                       const WanObserver& observer = {}) const;
  // What the first block's self attention sees of the first sample: x [plan.rows(), width], normed
  // and modulated -> [plan.own_rows(), width].
  Tensor modulated_input(const WanPlan& plan, const WanTime& time, const Tensor& x,
                         const Kernels& kernels) const;
  // x [plan.rows(), width], contiguous, is consumed: the result lies in its storage.
  Tensor run_blocks(const WanPlan& plan, const WanContext& context, const WanTime& time, Tensor x,
                    const AttentionBackend& attention, const Kernels& kernels,
                    const WanObserver& observer = {}) const;
  // x [plan.rows(), width] -> velocities [samples, out_channels, frames, height, width] in the
  // model's dtype.
  Tensor head(const WanPlan& plan, const WanTime& time, const Tensor& x, const Kernels& kernels,
              const WanObserver& observer = {}) const;

 private:
  // [all texts' rows and a zero row behind them, width]
  Tensor embed_texts(const std::vector<Tensor>& texts, const Kernels& kernels) const;
  // [samples, image rows, width]
  Tensor embed_image(const Tensor& image, std::int64_t samples, const Kernels& kernels) const;
};

}  // namespace diptych
