#include "lib/models/cosmos/cosmos.h"

#include <fmt/format.h>

#include "lib/models/cosmos/families.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/layer_norm.h"

namespace diptych {
namespace {

// norm1, norm2 and norm3 of every block, one behind the other.
void load_modulation(CosmosTransformer& m, const Weights& weights) {
  const CosmosConfig& c = m.config;
  const std::int64_t width = c.width(), rank = c.adaln_lora_dim, norms = 3 * c.num_layers;
  m.adaln_in = at::empty({norms * rank, width}, weights.options());
  m.adaln_out = at::empty({norms, 3 * width, rank}, weights.options());
  for (std::int64_t i = 0; i < norms; ++i) {
    const Weights norm =
        weights.scope(fmt::format("transformer_blocks.{}.norm{}", i / 3, i % 3 + 1));
    norm.read("linear_1.weight", {rank, width}, m.adaln_in.narrow(0, i * rank, rank));
    norm.read("linear_2.weight", {3 * width, rank}, m.adaln_out[i]);
  }
}

// x [samples, channels, frames, height, width] -> rows of (channel, y, x).
Tensor patches_of(const Tensor& x) {
  constexpr std::int64_t kSide = CosmosConfig::kPatch;
  const std::int64_t samples = x.size(0), channels = x.size(1), frames = x.size(2),
                     h = x.size(3) / kSide, w = x.size(4) / kSide;
  return x.reshape({samples, channels, frames, h, kSide, w, kSide})
      .permute({0, 2, 3, 5, 1, 4, 6})
      .reshape({samples * frames * h * w, channels * kSide * kSide});
}

// Shift and scale of the last norm, float32 [times, 2 * width].
Tensor last_modulation(const CosmosTransformer& m, const CosmosTime& time, const Kernels& kernels) {
  const LaunchLabel label(cosmos_families::kModulation);
  const Tensor inner = linear(at::silu(time.embedded), m.norm_out.linear_1, {}, kernels);
  const Tensor own = linear(inner, m.norm_out.linear_2, {}, kernels);
  return own.to(at::kFloat) + time.temb.narrow(1, 0, 2 * m.config.width()).to(at::kFloat);
}

}  // namespace

CosmosTransformer CosmosTransformer::load(const Weights& weights, const CosmosConfig& c,
                                          const std::optional<BlockOffload>& offload,
                                          const MatrixQuantization& quantization) {
  const std::int64_t width = c.width(), rank = c.adaln_lora_dim;
  CosmosTransformer m;
  m.config = c;
  m.quantization = quantization.kind;
  m.patch_embed = weights.get("patch_embed.proj.weight", {width, c.patch_in()});
  const Weights time = weights.scope("time_embed");
  m.time_embed.linear_1 = time.get("t_embedder.linear_1.weight", {width, width});
  m.time_embed.linear_2 = time.get("t_embedder.linear_2.weight", {3 * width, width});
  m.time_embed.norm = time.get("norm.weight", {width});
  load_modulation(m, weights);
  m.norm_out.linear_1 = weights.get("norm_out.linear_1.weight", {rank, width});
  m.norm_out.linear_2 = weights.get("norm_out.linear_2.weight", {2 * width, rank});
  m.proj_out = weights.get("proj_out.weight", {c.patch_out(), width});
  m.blocks = CosmosBlocks::load(weights, "transformer_blocks", c, offload, quantization);
  return m;
}

CosmosTime CosmosTransformer::embed_time(const CosmosPlan& plan, const Tensor& timesteps,
                                         const Kernels& kernels,
                                         const CosmosObserver& observer) const {
  TORCH_CHECK(timesteps.is_cpu() && timesteps.scalar_type() == at::kFloat &&
                  (timesteps.sizes() == at::IntArrayRef({plan.samples}) ||
                   timesteps.sizes() == at::IntArrayRef({plan.samples, plan.size.frames})),
              "[cosmos] timesteps ", timesteps.sizes(), " of ", timesteps.scalar_type(), " for ",
              plan.samples, " samples of ", plan.size.frames, " frames");
  const auto [distinct, which] =
      at::_unique(timesteps.flatten(), /*sorted=*/true, /*return_inverse=*/true);
  std::vector<Tensor> waves;
  for (std::int64_t i = 0; i < distinct.size(0); ++i)
    waves.push_back(timestep_embedding(distinct[i].item<float>(), config.width()));
  const Tensor sinusoid = at::stack(waves).to(options());  // [times, width]

  CosmosTime time;
  time.embedded = rms_norm(sinusoid, time_embed.norm, CosmosConfig::kEps, kernels);
  const Tensor inner = at::silu(linear(sinusoid, time_embed.linear_1, {}, kernels));
  time.temb = linear(inner, time_embed.linear_2, {}, kernels);
  time.by_frame = timesteps.dim() == 2;
  const Tensor index = which.to(options().device());
  const Tensor of_rows =
      index.repeat_interleave(time.by_frame ? plan.size.frame_rows() : plan.size.rows());
  time.of_row = plan.share.cut(of_rows.view({plan.samples, plan.size.rows()}), 1).flatten();
  if (observer) {
    observer("timestep_sinusoid", sinusoid.index_select(0, index));
    observer("temb", time.temb.index_select(0, index));
    observer("embedded_timestep", time.embedded.index_select(0, index));
  }
  return time;
}

Tensor CosmosTransformer::embed_latents(const CosmosPlan& plan, const Tensor& latents,
                                        const Kernels& kernels,
                                        const CosmosObserver& observer) const {
  const CosmosLatentSize& size = plan.size;
  TORCH_CHECK(latents.sizes() == at::IntArrayRef({plan.samples, config.out_channels, size.frames,
                                                  size.height, size.width}),
              "[cosmos] latents ", latents.sizes(), " for ", plan.samples, " samples of ",
              config.out_channels, " x ", size.frames, " x ", size.height, " x ", size.width);
  const Tensor masks = plan.masks.unsqueeze(0).expand({plan.samples, -1, -1, -1, -1});
  const Tensor patches = patches_of(at::cat({latents.to(options().dtype()), masks}, 1));
  const Tensor own = plan.share.cut(patches.unflatten(0, {plan.samples, size.rows()}), 1);
  const Tensor x = linear(own.flatten(0, 1), patch_embed, {}, kernels);
  if (observer) {
    constexpr std::int64_t kSide = CosmosConfig::kPatch;
    const auto doubled = [](const Tensor& table, std::int64_t rows) {  // as upstream holds it
      return table.narrow(0, 0, rows).repeat({1, 2});
    };
    observer("rope_cos", doubled(plan.cos, size.rows()));
    observer("rope_sin", doubled(plan.sin, size.rows()));
    observer("patch_embed", x.view({plan.samples, size.frames, size.height / kSide,
                                    size.width / kSide, config.width()}));
  }
  return x;
}

Tensor CosmosTransformer::head(const CosmosPlan& plan, const CosmosTime& time, const Tensor& x,
                               const Kernels& kernels, const CosmosObserver& observer) const {
  constexpr std::int64_t kSide = CosmosConfig::kPatch;
  const CosmosLatentSize& size = plan.size;
  const std::int64_t width = config.width();
  const Tensor table = last_modulation(*this, time, kernels);
  const NormTerms terms = {table.narrow(1, width, width), table.narrow(1, 0, width),
                           /*beside_one=*/true, time.of_row};
  const Tensor normed =
      layer_norm(x, terms, CosmosConfig::kEps, Quantization::none, kernels).values;
  const Tensor rows = linear(normed, proj_out, {}, kernels);  // of (y, x, channel)
  if (observer) {
    observer("norm_out", normed.view({plan.samples, size.rows(), width}));
    observer("proj_out", rows.view({plan.samples, size.rows(), config.patch_out()}));
  }
  return plan.share.join(rows.view({plan.samples, plan.own_rows(), -1}), size.rows())
      .reshape({plan.samples, size.frames, size.height / kSide, size.width / kSide, kSide, kSide,
                config.out_channels})
      .permute({0, 6, 1, 2, 4, 3, 5})
      .reshape({plan.samples, config.out_channels, size.frames, size.height, size.width});
}

}  // namespace diptych
