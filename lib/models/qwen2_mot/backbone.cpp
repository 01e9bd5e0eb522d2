#include "lib/models/qwen2_mot/backbone.h"

#include <fmt/format.h>

namespace diptych {

MotBackbone MotBackbone::load(const Weights& weights, const Qwen2Config& config,
                              const std::optional<MotOffload>& offload,
                              const MotQuantization& quantization) {
  MotBackbone b;
  b.config = config;
  const Weights model = weights.scope("model");
  b.embed_tokens = model.get("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  b.norm = model.get("norm.weight", {config.hidden_size});
  b.norm_gen = model.get("norm_moe_gen.weight", {config.hidden_size});
  b.layers = MotLayers::load(model, config, offload, quantization);
  return b;
}

void MotBackbone::load_head(const Weights& weights) {
  lm_head = weights.get("lm_head.weight", {config.vocab_size, config.hidden_size});
}

Tensor MotBackbone::embed(const Tensor& ids) const {
  return embed_tokens.index_select(0, ids);
}

namespace {

// What one expert's rows go through; `x` is the residual stream, `h` its normed copy.
struct ExpertRows {
  Tensor x, h, q, attended;
  Tensor cos, sin, slots;
  const AttentionLengths* lengths = nullptr;
};

ExpertRows slice_rows(const MotPlan& plan, Tensor x, std::int64_t begin,
                      const AttentionLengths& lengths) {
  ExpertRows rows;
  const std::int64_t count = x.size(0);
  rows.x = std::move(x);
  rows.cos = plan.cos.narrow(0, begin, count);
  rows.sin = plan.sin.narrow(0, begin, count);
  rows.slots = plan.slots.narrow(0, begin, count);
  rows.lengths = &lengths;
  return rows;
}

void project_qkv(ExpertRows& rows, const MotExpert& e, const MotPlan& plan, const Qwen2Config& c,
                 const Tensor& keys, const Tensor& values, KernelPolicy kernels) {
  QkNormRope args;
  args.qkv = linear(rows.h, e.qkv_proj, e.qkv_bias, kernels);
  args.q_weight = e.q_norm;
  args.k_weight = e.k_norm;
  args.cos = rows.cos;
  args.sin = rows.sin;
  args.slots = rows.slots;
  args.keys = keys;
  args.values = values;
  args.heads = c.num_attention_heads;
  args.kv_heads = c.num_key_value_heads;
  args.head_dim = c.head_dim();
  args.eps = c.rms_norm_eps;
  args.rounding = plan.rounding;
  rows.q = qk_norm_rope(args, kernels);
}

void finish_layer(ExpertRows& rows, const MotExpert& e, const Tensor& next_norm, double eps,
                  KernelPolicy kernels) {
  {
    const Tensor o = linear(std::exchange(rows.attended, {}).flatten(1), e.o_proj, {}, kernels);
    rows.h = add_rms_norm_(rows.x, o, e.post_attention_layernorm, eps, kernels);
  }  // before the wide rows are made, o goes
  const Tensor inner = silu_mul(linear(rows.h, e.gate_up_proj, {}, kernels), kernels);
  rows.h = add_rms_norm_(rows.x, linear(inner, e.down_proj, {}, kernels), next_norm, eps, kernels);
}

}  // namespace

MotRows MotBackbone::forward(const MotPlan& plan, MotRows input, const KvCache& cache,
                             const AttentionBackend& attention, KernelPolicy kernels,
                             const MotObserver& observer) const {
  const double eps = config.rms_norm_eps;
  const double scale = 1 / std::sqrt(static_cast<double>(config.head_dim()));
  const bool has_gen = plan.gen_rows > 0, has_und = plan.und_rows > 0;
  ExpertRows gen, und;
  if (has_gen) {
    gen = slice_rows(plan, std::move(input.gen), 0, plan.gen);
    gen.h = rms_norm(gen.x, layers[0].gen.input_layernorm, eps, kernels);
  }
  if (has_und) {
    und = slice_rows(plan, std::move(input.und), plan.gen_rows, plan.und);
    und.h = rms_norm(und.x, layers[0].und.input_layernorm, eps, kernels);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto layer_index = static_cast<std::int64_t>(i);
    const Tensor keys = cache.keys(layer_index).narrow(0, plan.first_cache_row, plan.cache_rows);
    const Tensor values =
        cache.values(layer_index).narrow(0, plan.first_cache_row, plan.cache_rows);
    const MotLayer& layer = layers.acquire(i, {has_und, has_gen});
    // Keys and values of both kinds of rows are in place before either attends.
    if (has_gen) project_qkv(gen, layer.gen, plan, config, keys, values, kernels);
    if (has_und) project_qkv(und, layer.und, plan, config, keys, values, kernels);
    for (ExpertRows* rows : {has_gen ? &gen : nullptr, has_und ? &und : nullptr}) {
      if (rows == nullptr) continue;
      rows->attended = attention.forward(
          {std::exchange(rows->q, {}), keys, values, rows->lengths, plan.causal, scale});
    }
    const bool last = i + 1 == layers.size();
    if (has_gen) {
      finish_layer(gen, layer.gen, last ? norm_gen : layers[i + 1].gen.input_layernorm, eps,
                   kernels);
    }
    if (has_und) {
      finish_layer(und, layer.und, last ? norm : layers[i + 1].und.input_layernorm, eps, kernels);
    }
    layers.release();
    if (observer) observer(fmt::format("layer{:02}.hidden", i), {gen.x, und.x});
  }
  if (observer) observer("final_norm", {gen.h, und.h});
  return {gen.h, und.h};
}

namespace {

// Positions and cache slots of all rows, generation rows first.
struct RowLayout {
  std::vector<std::int64_t> positions, slots;
};

// Where a sample's rows go behind its context: in the order of its tokens, an image block as
// [first understanding row, generation rows, other understanding rows].
void append_gen_rows(RowLayout& layout, const MotSample& sample, std::int64_t base) {
  for (std::int64_t i = 0; i < sample.gen_rows; ++i) {
    layout.positions.push_back(sample.position);
    layout.slots.push_back(base + (sample.und_rows > 0 ? 1 : 0) + i);
  }
}

void append_und_rows(RowLayout& layout, const MotSample& sample, std::int64_t base, bool text) {
  for (std::int64_t i = 0; i < sample.und_rows; ++i) {
    layout.positions.push_back(sample.position + (text ? i : 0));
    layout.slots.push_back(base + (i == 0 ? 0 : sample.gen_rows) + i);
  }
}

MotPlan make_plan(std::span<const MotSample> samples, std::int64_t first_cache_row,
                  const KvCache& cache, const Qwen2Config& config, const at::TensorOptions& options,
                  bool text) {
  MotPlan plan;
  RowLayout layout;
  std::vector<std::int64_t> gen_q, und_q, keys;
  const auto base_of = [&](std::size_t i) {
    return static_cast<std::int64_t>(i) * cache.capacity() + samples[i].context;
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    append_gen_rows(layout, samples[i], base_of(i));
    plan.gen_rows += samples[i].gen_rows;
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const MotSample& sample = samples[i];
    append_und_rows(layout, sample, base_of(i), text);
    plan.und_rows += sample.und_rows;
    gen_q.push_back(sample.gen_rows);
    und_q.push_back(sample.und_rows);
    keys.push_back(sample.context + sample.gen_rows + sample.und_rows);
  }
  const at::Device device = options.device();
  const auto upload = [&](const std::vector<std::int64_t>& values) {
    return at::tensor(values, at::kLong).to(device);
  };
  std::tie(plan.cos, plan.sin) =
      rope_table(upload(layout.positions), config.head_dim(), config.rope_theta,
                 c10::typeMetaToScalarType(options.dtype()));
  plan.slots = upload(layout.slots);
  if (plan.gen_rows > 0) plan.gen = AttentionLengths::make(gen_q, keys, cache.capacity(), device);
  if (plan.und_rows > 0) plan.und = AttentionLengths::make(und_q, keys, cache.capacity(), device);
  plan.first_cache_row = first_cache_row;
  plan.cache_rows = static_cast<std::int64_t>(samples.size());
  plan.causal = text;
  // Understanding mode, be it text or the patches of a picture, rounds as Qwen2 does.
  plan.rounding = plan.gen_rows == 0 ? RopeRounding::every_step : RopeRounding::at_the_end;
  return plan;
}

}  // namespace

MotPlan plan_image_block(std::span<const MotSample> samples, std::int64_t first_cache_row,
                         const KvCache& cache, const Qwen2Config& config,
                         const at::TensorOptions& options) {
  return make_plan(samples, first_cache_row, cache, config, options, false);
}

MotPlan plan_text(std::span<const MotSample> samples, std::int64_t first_cache_row,
                  const KvCache& cache, const Qwen2Config& config,
                  const at::TensorOptions& options) {
  return make_plan(samples, first_cache_row, cache, config, options, true);
}

}  // namespace diptych
