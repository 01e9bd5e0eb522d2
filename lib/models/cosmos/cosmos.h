// The diffusion transformer of Cosmos-Predict2 (text2image, video2world): rows of 2 x 2 latent
// pixels, self attention over all rows of a clip with three-axis rope, cross attention to a text,
// every part modulated by the time. Several samples (guidance branches, clips) of one latent size
// share a forward.
// Port of huggingface/diffusers 0.39, models/transformers/transformer_cosmos.py; specs: cosmos.md
// section 3.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/models/cosmos/block.h"
#include "lib/models/padded_texts.h"
#include "lib/ops/ops.h"
#include "lib/runtime/row_share.h"

namespace diptych {

// The released models were trained on texts of 512 rows, filled up with zeros.
inline constexpr std::int64_t kCosmosTextRows = 512;

// Called with the names of the golden data without the prefix of step and branch, such as
// "block00.norm1_gate". The value is good during the call only.
using CosmosObserver = std::function<void(std::string_view name, const Tensor& value)>;

struct CosmosLatentSize {  // of a sample; height and width are even
  std::int64_t frames = 1, height = 0, width = 0;
  std::int64_t frame_rows() const { return (height / 2) * (width / 2); }
  std::int64_t rows() const { return frames * frame_rows(); }
  bool operator==(const CosmosLatentSize&) const = default;
};

// What samples of one forward have in common.
struct CosmosClip {
  CosmosLatentSize size;
  std::optional<double> fps{};    // of a video, above 0; none: a picture
  std::int64_t known_frames = 0;  // latent frames, the first ones, that are given: the condition
                                  // mask; only of a model that takes_frames()
  Tensor padding_mask{};          // [height, width] in pixels or otherwise; undefined: zeros
};

// The texts of the samples as keys and values of every block's cross attention. They do not change
// from step to step.
struct CosmosContext {
  std::vector<PaddedText> texts;  // of each sample
  // Of each block: [samples, capacity, 2 * width], keys (normed) before values; behind a text's own
  // rows zeros, which are what a zero row gives.
  std::vector<Tensor> text;

  std::int64_t samples() const { return static_cast<std::int64_t>(texts.size()); }
  std::int64_t capacity() const { return text.front().size(1); }
  // Views of some samples, such as the branch that is still computed.
  CosmosContext slice(std::int64_t first, std::int64_t count) const;
};

// What all forwards of samples of one size with one context share: made once, not per step.
struct CosmosPlan {
  CosmosLatentSize size;
  std::int64_t samples = 0;
  RowShare share;   // of each sample's rows
  Tensor masks;     // [channels, frames, height, width]: condition and padding, in the model's
                    // dtype; channels may be 0
  Tensor cos, sin;  // float32 [rows(), head_dim / 2]
  Tensor slots;     // int64 [rows()]: 0, 1, ...
  AttentionLengths self;  // each sample's rows to themselves, those of all ranks
  TextAttention text;
  std::int64_t own_rows() const { return share.own(size.rows()); }  // of a sample
  std::int64_t rows() const { return samples * own_rows(); }
};

// The timesteps of a forward. Rows of equal timesteps share a row of the tables.
struct CosmosTime {
  Tensor embedded;  // [times, width], in the model's dtype: embedded_timestep, which is modulated
                    // by each block's norms
  Tensor temb;      // [times, 3 * width], likewise: what all of them add
  Tensor of_row;    // int64 [plan.rows()]: which time a row has
  bool by_frame = false;
};

struct CosmosTransformer {
  CosmosConfig config;
  Tensor patch_embed;  // [width, patch_in()]: patch_embed.proj
  struct {
    Tensor linear_1, linear_2;  // t_embedder: [width, width], [3 * width, width]
    Tensor norm;                // [width]
  } time_embed;
  // norm1, norm2 and norm3 of all blocks: linear_1 and linear_2. Few rows meet them, so they are
  // never quantised and always on the device.
  Tensor adaln_in;   // [blocks * 3 * adaln_lora_dim, width]
  Tensor adaln_out;  // [blocks * 3, 3 * width, adaln_lora_dim]
  struct {
    Tensor linear_1, linear_2;  // [adaln_lora_dim, width], [2 * width, adaln_lora_dim]
  } norm_out;
  Tensor proj_out;  // [patch_out(), width]
  CosmosBlocks blocks;
  Quantization quantization = Quantization::none;  // of the blocks' matrices

  // `weights`: the root of the transformer's folder, in the dtype of the run. Throws InputError as
  // Weights::get; call weights.require_all_read() behind it.
  static CosmosTransformer load(const Weights& weights, const CosmosConfig& config,
                                const std::optional<BlockOffload>& offload = {},
                                const MatrixQuantization& quantization = {});
  at::TensorOptions options() const { return patch_embed.options(); }

  // Once for a picture or clip, or for several. `texts`: of each sample (branch of a clip) the
  // encoder's rows without padding, [1 to padded_to, text_embed_dim], any floating dtype and
  // device. Throws c10::Error for texts of other sizes.
  CosmosContext make_context(const std::vector<Tensor>& texts, const Kernels& kernels,
                             std::int64_t padded_to = kCosmosTextRows) const;
  // Throws InputError for more positions on an axis than config.most_positions().
  // Ranks that share rows make it and run its steps together.
  CosmosPlan plan(const CosmosContext& context, const CosmosClip& clip, SharedKeys shared,
                  const RowShare& share = {}) const;

  // A step is these four. The first two are independent of each other.
  // timesteps: float32 on the CPU, [samples] or, one for each latent frame, [samples, frames].
  CosmosTime embed_time(const CosmosPlan& plan, const Tensor& timesteps, const Kernels& kernels,
                        const CosmosObserver& observer = {}) const;
  // latents [samples, out_channels, frames, height, width], any floating dtype, on the device
  // -> [plan.rows(), width], a fresh tensor.
  Tensor embed_latents(const CosmosPlan& plan, const Tensor& latents, const Kernels& kernels,
                       const CosmosObserver& observer = {}) const;
  // What the first block's self attention sees of the first sample: x [plan.rows(), width], normed
  // and modulated -> [plan.own_rows(), width].
  Tensor modulated_input(const CosmosPlan& plan, const CosmosTime& time, const Tensor& x,
                         const Kernels& kernels) const;
  // x [plan.rows(), width], contiguous, is consumed: the result lies in its storage.
  Tensor run_blocks(const CosmosPlan& plan, const CosmosContext& context, const CosmosTime& time,
                    Tensor x, const AttentionBackend& attention, const Kernels& kernels,
                    const CosmosObserver& observer = {}) const;
  // x [plan.rows(), width] -> the network's output [samples, out_channels, frames, height, width]
  // in the model's dtype.
  Tensor head(const CosmosPlan& plan, const CosmosTime& time, const Tensor& x,
              const Kernels& kernels, const CosmosObserver& observer = {}) const;
};

}  // namespace diptych
