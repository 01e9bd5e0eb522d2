#include "lib/models/wan/wan.h"

#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/ops/layer_norm.h"

namespace diptych {
namespace {

// A linear layer's weight and bias.
void read(const Weights& module, std::int64_t outputs, std::int64_t inputs, Tensor& weight,
          Tensor& bias) {
  weight = module.get("weight", {outputs, inputs});
  bias = module.get("bias", {outputs});
}

void read_norm(const Weights& module, std::int64_t width, Tensor& weight, Tensor& bias) {
  const Weights wide = module.as(at::kFloat);
  weight = wide.get("weight", {width});
  bias = wide.get("bias", {width});
}

void load_conditions(WanTransformer& m, const Weights& weights) {
  const WanConfig& c = m.config;
  const std::int64_t width = c.width();
  const Weights time = weights.scope("time_embedder").as(at::kFloat);
  read(time.scope("linear_1"), width, c.freq_dim, m.time_embedder.linear_1,
       m.time_embedder.linear_1_bias);
  read(time.scope("linear_2"), width, width, m.time_embedder.linear_2,
       m.time_embedder.linear_2_bias);
  read(weights.scope("time_proj"), 6 * width, width, m.time_proj, m.time_proj_bias);
  const Weights text = weights.scope("text_embedder");
  read(text.scope("linear_1"), width, c.text_dim, m.text_embedder.linear_1,
       m.text_embedder.linear_1_bias);
  read(text.scope("linear_2"), width, width, m.text_embedder.linear_2,
       m.text_embedder.linear_2_bias);
  if (!c.image_dim) return;
  const Weights image = weights.scope("image_embedder");
  auto& into = m.image_embedder;
  if (c.pos_embed_seq_len)
    into.pos_embed = image.get("pos_embed", {1, *c.pos_embed_seq_len, *c.image_dim}).squeeze(0);
  read_norm(image.scope("norm1"), *c.image_dim, into.norm1, into.norm1_bias);
  read(image.scope("ff.net.0.proj"), *c.image_dim, *c.image_dim, into.ff_in, into.ff_in_bias);
  read(image.scope("ff.net.2"), width, *c.image_dim, into.ff_out, into.ff_out_bias);
  read_norm(image.scope("norm2"), width, into.norm2, into.norm2_bias);
}

// [cos(t w_j) | sin(t w_j)], w_j = exp(-ln(10000) j / (dim / 2)), of each t: float32 [times, dim].
// Of the 128 frequencies of freq_dim 256, those that the reference's float32 exp (libtorch 2.11
// with MKL, on the processor of the recorded runs) rounds to a neighbour of the nearest number:
// place, and steps of the last bit. t multiplies such a step by up to 1000, so that velocities show
// it.
constexpr std::int64_t kReferenceFrequencies = 128;
constexpr std::array<std::pair<std::int64_t, std::int32_t>, 9> kReferenceRounding = {
    {{13, 1}, {44, 1}, {46, -1}, {75, -1}, {103, 1}, {109, 1}, {115, -1}, {119, 1}, {126, 1}}};

// times: float32 [n], CPU -> float32 [n, dim], as diffusers' get_timestep_embedding with cosines
// first. Functions are taken in float64 and rounded, so that they are the same on every machine.
Tensor sinusoid_of(const Tensor& times, std::int64_t dim) {
  constexpr double kMaxPeriod = 10000;
  const std::int64_t half = dim / 2;
  const Tensor exponents = at::arange(0, half, at::kFloat).mul_(-std::log(kMaxPeriod)).div_(half);
  const Tensor frequencies = exponents.to(at::kDouble).exp().to(at::kFloat);
  if (half == kReferenceFrequencies) {
    auto* bits = frequencies.view(at::kInt).data_ptr<std::int32_t>();
    for (const auto& [place, steps] : kReferenceRounding) bits[place] += steps;
  }
  const Tensor angles = at::outer(times, frequencies).to(at::kDouble);
  return at::cat({angles.cos(), angles.sin()}, 1).to(at::kFloat);
}

}  // namespace

WanTransformer WanTransformer::load(const Weights& weights, const WanConfig& c,
                                    const std::optional<BlockOffload>& offload,
                                    const MatrixQuantization& quantization) {
  const std::int64_t width = c.width(), side = WanConfig::kPatch;
  const Weights wide = weights.as(at::kFloat);
  WanTransformer m;
  m.config = c;
  m.quantization = quantization.kind;
  m.patch_embedding = weights.get("patch_embedding.weight", {width, c.in_channels, 1, side, side})
                          .view({width, c.patch_in()});
  m.patch_bias = weights.get("patch_embedding.bias", {width});
  load_conditions(m, weights.scope("condition_embedder"));
  m.block_tables = at::empty({c.num_layers, 6, width}, wide.options());
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    wide.read(fmt::format("blocks.{}.scale_shift_table", i), {1, 6, width},
              m.block_tables.narrow(0, i, 1));
  }
  m.scale_shift_table = wide.get("scale_shift_table", {1, 2, width}).squeeze(0);
  read(weights.scope("proj_out"), c.patch_out(), width, m.proj_out, m.proj_out_bias);
  m.blocks = WanBlocks::load(weights, "blocks", c, offload, quantization);
  return m;
}

WanTime WanTransformer::embed_time(const WanPlan& plan, const Tensor& timesteps,
                                   const Kernels& kernels, const WanObserver& observer) const {
  TORCH_CHECK(timesteps.is_cpu() && timesteps.scalar_type() == at::kFloat &&
                  (timesteps.sizes() == at::IntArrayRef({plan.samples}) ||
                   timesteps.sizes() == at::IntArrayRef({plan.samples, plan.size.rows()})),
              "[wan] timesteps ", timesteps.sizes(), " of ", timesteps.scalar_type(), " for ",
              plan.samples, " samples of ", plan.size.rows(), " rows");
  const at::Device device = options().device();
  const auto [distinct, which] =
      at::_unique(timesteps.flatten(), /*sorted=*/true, /*return_inverse=*/true);
  const Tensor sinusoid = sinusoid_of(distinct, config.freq_dim).to(device);

  WanTime time;
  const Tensor inner =
      at::silu(at::linear(sinusoid, time_embedder.linear_1, time_embedder.linear_1_bias));
  time.temb =
      at::linear(inner, time_embedder.linear_2, time_embedder.linear_2_bias).to(options().dtype());
  time.timestep_proj = linear(at::silu(time.temb), time_proj, time_proj_bias, kernels);
  const Tensor index = which.to(device);
  if (distinct.size(0) > 1) {
    time.of_row = timesteps.dim() == 2 ? plan.share.cut(index.view(timesteps.sizes()), 1).flatten()
                                       : index.repeat_interleave(plan.own_rows());
  }
  if (!observer) return time;
  const auto see = [&](const char* name, const Tensor& table, at::IntArrayRef leading) {
    std::vector<std::int64_t> shape(leading.begin(), leading.end());
    shape.push_back(table.size(1));
    observer(name, table.index_select(0, index).view(shape));
  };
  see("timestep_sinusoid", sinusoid, {timesteps.numel()});
  see("temb", time.temb, timesteps.sizes());
  see("timestep_proj", time.timestep_proj, timesteps.sizes());
  return time;
}

Tensor WanTransformer::embed_latents(const WanPlan& plan, const Tensor& latents,
                                     const Kernels& kernels, const WanObserver& observer) const {
  const WanLatentSize& size = plan.size;
  const std::int64_t side = WanConfig::kPatch, h = size.height / side, w = size.width / side;
  TORCH_CHECK(latents.sizes() == at::IntArrayRef({plan.samples, config.in_channels, size.frames,
                                                  size.height, size.width}),
              "[wan] latents ", latents.sizes(), " for ", plan.samples, " samples of ",
              config.in_channels, " x ", size.frames, " x ", size.height, " x ", size.width);
  const Tensor patches =
      latents.to(options().dtype())
          .view({plan.samples, config.in_channels, size.frames, h, side, w, side})
          .permute({0, 2, 3, 5, 1, 4, 6})
          .reshape({plan.samples, size.rows(), config.patch_in()});
  const Tensor own = plan.share.cut(patches, 1).flatten(0, 1);
  const Tensor x = linear(own, patch_embedding, patch_bias, kernels);
  if (!observer) return x;
  const auto spread = [&](const Tensor& table) {  // each angle stored twice
    return table.repeat_interleave(2, 1).view({1, size.rows(), 1, config.attention_head_dim});
  };
  observer("rope_cos", spread(plan.cos));
  observer("rope_sin", spread(plan.sin));
  observer("patch_embedding",
           x.view({plan.samples, size.frames, h, w, config.width()}).permute({0, 4, 1, 2, 3}));
  return x;
}

Tensor WanTransformer::head(const WanPlan& plan, const WanTime& time, const Tensor& x,
                            const Kernels& kernels, const WanObserver& observer) const {
  const WanLatentSize& size = plan.size;
  const std::int64_t side = WanConfig::kPatch, h = size.height / side, w = size.width / side;
  const Tensor temb = time.temb.to(at::kFloat);
  const Tensor shift = scale_shift_table[0] + temb, scale = scale_shift_table[1] + temb;
  const Tensor normed =
      layer_norm(x, {scale, shift, true, time.of_row}, config.eps, Quantization::none, kernels)
          .values;
  const Tensor rows = linear(normed, proj_out, proj_out_bias, kernels);
  if (observer) {
    observer("norm_out", at::layer_norm(x.to(at::kFloat), {config.width()}, {}, {}, config.eps)
                             .view({plan.samples, size.rows(), config.width()}));
    observer("proj_out", rows.view({plan.samples, size.rows(), config.patch_out()}));
  }
  return plan.share.join(rows.view({plan.samples, plan.own_rows(), -1}), size.rows())
      .reshape({plan.samples, size.frames, h, w, side, side, config.out_channels})
      .permute({0, 6, 1, 2, 4, 3, 5})
      .reshape({plan.samples, config.out_channels, size.frames, size.height, size.width});
}

}  // namespace diptych
