#include "lib/models/qwen_mot/backbone.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/models/qwen_mot/families.h"
#include "lib/ops/launch_label.h"

namespace diptych {

Tensor MotBackbone::embed(const Tensor& ids) const {
  return embed_tokens.index_select(0, ids.to(embed_tokens.device())).to(norm.options());
}

namespace {

using Matrix = LinearOperand QwenLayer::*;
using Vector = Tensor QwenLayer::*;

struct MotOperands {  // values undefined where there are no rows
  LinearOperand gen, und;
};

std::array<RowSet, 2> row_sets(const MotPlan& plan) {
  return {RowSet::range(0, plan.gen_rows), RowSet::range(plan.gen_rows, plan.und_rows)};
}

std::array<NormRoute, 2> norms(const MotPlan& plan, const Tensor& gen, const Tensor& und) {
  const auto [gen_rows, und_rows] = row_sets(plan);
  return {{{gen, gen_rows}, {und, und_rows}}};
}

const char* family_of(Matrix weight) {
  using Expert = decltype(MotLayer::gen);
  if (weight == &Expert::qkv_proj) return mot_families::kQkv;
  if (weight == &Expert::o_proj) return mot_families::kO;
  return weight == &Expert::gate_up_proj ? mot_families::kGateUp : mot_families::kDown;
}

std::array<LinearRoute, 2> routes(const MotLayer& layer, const MotPlan& plan, Matrix weight,
                                  Vector bias) {
  const auto route = [&](const QwenLayer& expert, const RowSet& rows) {
    return LinearRoute{expert.*weight, bias == nullptr ? Tensor() : expert.*bias, rows};
  };
  const auto [gen_rows, und_rows] = row_sets(plan);
  std::array<LinearRoute, 2> both = {route(layer.gen, gen_rows), route(layer.und, und_rows)};
  both[0].label = {family_of(weight), mot_families::kGen};
  both[1].label = {family_of(weight), mot_families::kUnd};
  return both;
}

Tensor empty_product(const MotLayer& layer, const MotPlan& plan, Matrix weight) {
  const QwenLayer& any = plan.gen_rows > 0 ? layer.gen : layer.und;
  return at::empty({plan.rows(), (any.*weight).values.size(0)}, any.input_layernorm.options());
}

// Each row with the weights of its kind -> [gen_rows + und_rows, outputs]. `bias`: or null.
Tensor project(const LinearOperand& x, const MotLayer& layer, const MotPlan& plan, Matrix weight,
               Vector bias, const Kernels& kernels) {
  const LaunchLabel label(family_of(weight));
  const Tensor y = empty_product(layer, plan, weight);
  routed_linear_into(y, x, routes(layer, plan, weight, bias), kernels);
  return y;
}

// Keys and values of the plan's cache rows, [cache_rows, capacity, kv_heads, head_dim] each.
std::pair<Tensor, Tensor> cached(const MotPlan& plan, const KvCache& cache, std::size_t layer) {
  const auto index = static_cast<std::int64_t>(layer);
  return {cache.keys(index).narrow(0, plan.first_cache_row, plan.cache_rows),
          cache.values(index).narrow(0, plan.first_cache_row, plan.cache_rows)};
}

// Launches the product with qkv_proj. The result makes q and stores keys and values of all rows
// (qk_norm_rope).
QkNormRope project_qkv(const LinearOperand& h, const MotLayer& layer, const MotPlan& plan,
                       const QwenConfig& c, const Tensor& keys, const Tensor& values,
                       const Kernels& kernels) {
  const auto [gen_rows, und_rows] = row_sets(plan);
  QkNormRope args;
  args.qkv = project(h, layer, plan, &QwenLayer::qkv_proj, &QwenLayer::qkv_bias, kernels);
  args.routes = {{layer.gen.q_norm, layer.gen.k_norm, gen_rows},
                 {layer.und.q_norm, layer.und.k_norm, und_rows}};
  args.cos = plan.cos;
  args.sin = plan.sin;
  args.slots = plan.slots;
  args.keys = keys;
  args.values = values;
  args.heads = c.num_attention_heads;
  args.kv_heads = c.num_key_value_heads;
  args.head_dim = c.head_dim;
  args.eps = c.rms_norm_eps;
  args.rounding = plan.rounding;
  return args;
}

// Those of other ranks are there afterwards, too, of the heads that this one attends to.
void exchange(const MotPlan& plan, const Tensor& keys, const Tensor& values) {
  const auto flat = [](const Tensor& rows) { return rows.view({-1, rows.size(2), rows.size(3)}); };
  plan.share->exchange(flat(keys), flat(values), plan.slots.narrow(0, 0, plan.gen_rows),
                       plan.all_slots);
}

double scale_of(std::int64_t head_dim) {
  return 1 / std::sqrt(static_cast<double>(head_dim));
}
double scale_of(const Tensor& q) {
  return scale_of(q.size(-1));
}

// Of ranks that have all rows of a part of the heads each: what one attends with.
MotRows rows_by_heads(const MotRows& q, const MotRowShare& share) {
  return {q.gen.defined() ? share.rows_for_heads(q.gen) : Tensor(),
          q.und.defined() ? share.own_query_heads(q.und) : Tensor()};
}

// -> of the same shape
MotRows attend_with_heads(const MotRows& q, const MotPlan& plan, const Tensor& keys,
                          const Tensor& values, const AttentionBackend& attention) {
  const MotRowShare& share = *plan.share;
  const auto part = [&](const Tensor& rows, const AttentionLengths& lengths, const char* kind) {
    if (!rows.defined()) return Tensor();
    const LaunchLabel label(LaunchName{mot_families::kAttention, kind});
    return attention.forward({rows, share.own_key_heads(keys), share.own_key_heads(values),
                              &lengths, plan.causal, scale_of(rows)});
  };
  return {part(q.gen, plan.gen, mot_families::kGen), part(q.und, plan.und, mot_families::kUnd)};
}

// As attend(), by such ranks. What attention gives in fp8 goes its way in the model's dtype.
MotOperands attend_by_heads(const MotRows& q, const MotPlan& plan, const Tensor& keys,
                            const Tensor& values, const AttentionBackend& attention) {
  const MotRowShare& share = *plan.share;
  const MotRows attended =
      attend_with_heads(rows_by_heads(q, share), plan, keys, values, attention);
  MotOperands parts;
  if (q.gen.defined()) parts.gen.values = share.heads_for_rows(attended.gen).flatten(1);
  if (q.und.defined()) parts.und.values = share.join_heads(attended.und).flatten(1);
  return parts;
}

// -> [rows, heads * head_dim] of each part, as the projections may take them
MotOperands attend(Tensor q, const MotPlan& plan, const Tensor& keys, const Tensor& values,
                   const AttentionBackend& attention, Quantization projections) {
  const double scale = scale_of(q);
  const MotRows parts = plan.split(q);
  if (plan.share && plan.share->by_heads())
    return attend_by_heads(parts, plan, keys, values, attention);
  const auto part = [&](const Tensor& rows, const AttentionLengths& lengths,
                        const char* kind) -> LinearOperand {
    if (!rows.defined()) return {};
    const LaunchLabel label(LaunchName{mot_families::kAttention, kind});
    return attention.forward_rows({rows, keys, values, &lengths, plan.causal, scale}, projections);
  };
  return {part(parts.gen, plan.gen, mot_families::kGen),
          part(parts.und, plan.und, mot_families::kUnd)};
}

// Understanding rows alone -> [rows, heads * head_dim], as the projection may take them
LinearOperand attend_text(QkNormRope rope, const MotPlan& plan, const AttentionBackend& attention,
                          Quantization projections, const Kernels& kernels) {
  const LaunchLabel label(LaunchName{mot_families::kAttention, mot_families::kUnd});
  const AttentionCall call = {{},        rope.keys,   rope.values,
                              &plan.und, plan.causal, scale_of(rope.head_dim)};
  return attention.forward_projected(std::move(rope), call, projections, kernels);
}

// -> [rows, hidden]. What attention gave is gone by then.
Tensor project_attended(MotOperands attended, const MotLayer& layer, const MotPlan& plan,
                        const Kernels& kernels) {
  const Tensor y = empty_product(layer, plan, &QwenLayer::o_proj);
  const MotRows parts = plan.split(y);
  if (parts.gen.defined()) {
    const LaunchLabel label(LaunchName{mot_families::kO, mot_families::kGen});
    linear_into(parts.gen, attended.gen, layer.gen.o_proj, {}, kernels);
  }
  if (parts.und.defined()) {
    const LaunchLabel label(LaunchName{mot_families::kO, mot_families::kUnd});
    linear_into(parts.und, attended.und, layer.und.o_proj, {}, kernels);
  }
  return y;
}

// silu(gate) * up -> [rows, intermediate], in that format.
LinearOperand activate(const LinearOperand& h, const MotLayer& layer, const MotPlan& plan,
                       Quantization format, const Kernels& kernels) {
  constexpr Matrix kGateUp = &QwenLayer::gate_up_proj;
  if (!h.scales.defined() && format == Quantization::none) {
    const LaunchLabel label(family_of(kGateUp));
    return {routed_gated_linear(h.values, routes(layer, plan, kGateUp, nullptr), kernels), {}};
  }
  return silu_mul(project(h, layer, plan, kGateUp, nullptr, kernels), format, kernels);
}

// -> [rows, hidden]. The wide rows between are gone by then.
Tensor feed_forward(const LinearOperand& h, const MotLayer& layer, const MotPlan& plan,
                    Quantization format, const Kernels& kernels) {
  const LinearOperand inner = activate(h, layer, plan, format, kernels);
  return project(inner, layer, plan, &QwenLayer::down_proj, nullptr, kernels);
}

std::array<NormRoute, 2> norms(const MotPlan& plan, const MotLayer& layer, Vector weight) {
  return norms(plan, layer.gen.*weight, layer.und.*weight);
}

// Shows q now, and what was attended once it is there, unless that is quantised on the way.
std::function<void(const MotOperands&)> show_attention(const MotObserver& observer,
                                                       std::size_t layer, const MotRows& q,
                                                       const QwenConfig& config) {
  observer(fmt::format("layer{:02}.attn.q", layer), q);
  return [&observer, layer, &config](const MotOperands& attended) {
    if (attended.gen.scales.defined() || attended.und.scales.defined()) return;
    const auto heads = [&](const Tensor& rows) {
      return rows.defined() ? rows.view({-1, config.num_attention_heads, config.head_dim}) : rows;
    };
    observer(fmt::format("layer{:02}.attn.out", layer),
             {heads(attended.gen.values), heads(attended.und.values)});
  };
}

}  // namespace

MotRows MotBackbone::forward(const MotPlan& plan, Tensor x, const KvCache& cache,
                             const AttentionBackend& attention, const Kernels& kernels,
                             const MotObserver& observer) const {
  TORCH_CHECK(x.size(0) > 0 && x.size(0) == plan.rows(), "[mot] x is ", x.sizes(),
              ", the plan is of ", plan.gen_rows, " + ", plan.und_rows, " rows");
  const double eps = config.rms_norm_eps;
  const MotParts needed{plan.und_rows > 0, plan.gen_rows > 0};
  const MotPlan wanted = observer ? plan : plan.leaving();
  const Quantization format = plan.row_format(quantization);
  LinearOperand h =
      rms_norm(x, norms(plan, layers[0], &QwenLayer::input_layernorm), eps, format, kernels);
  const bool may_stop = x.device().is_cpu();  // on a GPU the layers are only launched here
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (may_stop) check_interrupted();
    const auto [keys, values] = cached(plan, cache, i);
    const MotLayer& layer = layers.acquire(i, needed);
    QkNormRope rope = project_qkv(h, layer, plan, config, keys, values, kernels);
    const bool last = i + 1 == layers.size();
    // From here on, of the last layer, only the wanted rows.
    const MotPlan& rest = last ? wanted : plan;
    MotOperands attended;
    // Text alone, all of it wanted: one call may norm, store and attend. An observer must see q,
    // and ranks exchange keys first.
    if (rest.und_rows == plan.rows() && !plan.share && !observer) {
      attended.und = attend_text(std::move(rope), plan, attention, quantization, kernels);
    } else {
      // Keys and values of both kinds of rows are in place before either attends.
      Tensor q = qk_norm_rope(rope, kernels);
      rope = {};
      if (plan.share) exchange(plan, keys, values);
      if (rest.rows() == 0) {
        layers.release();
        return {};
      }
      std::function<void(const MotOperands&)> seen;
      if (observer) seen = show_attention(observer, i, plan.split(q), config);
      attended = attend(std::move(q), rest, keys, values, attention, quantization);
      if (seen) seen(attended);
    }
    if (last) x = x.narrow(0, 0, rest.rows());
    const Tensor out = project_attended(std::move(attended), layer, rest, kernels);
    h = add_rms_norm_(x, out, norms(rest, layer, &QwenLayer::post_attention_layernorm), eps, format,
                      kernels);
    const Tensor down = feed_forward(h, layer, rest, format, kernels);
    const auto next = last ? norms(rest, norm_gen, norm)
                           : norms(rest, layers[i + 1], &QwenLayer::input_layernorm);
    h = add_rms_norm_(x, down, next, eps, last ? Quantization::none : format, kernels);
    layers.release();
    if (observer) observer(fmt::format("layer{:02}.hidden", i), plan.split(x));
  }
  if (observer) observer("final_norm", plan.split(h.values));
  return wanted.split(h.values);
}

MotProductRows MotBackbone::product_rows(const MotPlan& plan, const Tensor& x, const KvCache& cache,
                                         const Kernels& kernels) const {
  const MotLayer& layer = layers[0];
  const Quantization format = plan.row_format(quantization);
  const auto [keys, values] = cached(plan, cache, 0);
  MotProductRows rows;
  rows.hidden = rms_norm(x, norms(plan, layer, &QwenLayer::input_layernorm), config.rms_norm_eps,
                         format, kernels);
  rows.q =
      qk_norm_rope(project_qkv(rows.hidden, layer, plan, config, keys, values, kernels), kernels);
  rows.attended = quantize_rows(rows.q.flatten(1), format, kernels);
  if (plan.share && plan.share->by_heads())
    rows.by_heads = rows_by_heads(plan.split(rows.q), *plan.share);
  rows.inner = activate(rows.hidden, layer, plan, format, kernels);
  return rows;
}

Tensor MotBackbone::products(const MotPlan& plan, const MotProductRows& rows, const KvCache& cache,
                             const AttentionBackend& attention, const Kernels& kernels) const {
  Tensor last;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto [keys, values] = cached(plan, cache, i);
    const MotPlan rest = i + 1 == layers.size() ? plan.leaving() : plan;
    const auto product = [&](const MotPlan& of, const LinearOperand& x, Matrix weight,
                             Vector bias = nullptr) {
      return project(x, layers[i], of, weight, bias, kernels);
    };
    product(plan, rows.hidden, &QwenLayer::qkv_proj, &QwenLayer::qkv_bias);
    if (rest.rows() == 0) break;
    if (plan.share && plan.share->by_heads()) {
      const Tensor und = rest.und_rows > 0 ? rows.by_heads.und : Tensor();
      attend_with_heads({rows.by_heads.gen, und}, rest, keys, values, attention);
    } else {
      attend(rows.q, rest, keys, values, attention, quantization);
    }
    // What attention gives may be quantised there; these rows are as wide, and are already.
    product(rest, rows.attended, &QwenLayer::o_proj);
    // Where one kernel multiplies and activates, that is the product.
    const LinearOperand& h = rows.hidden;
    if (quantization == Quantization::none &&
        gates_in_one_kernel(h.values.options(), rest.gen_rows, config.intermediate_size,
                            config.hidden_size, kernels)) {
      activate(h, layers[i], rest, Quantization::none, kernels);
    } else {
      product(rest, h, &QwenLayer::gate_up_proj);
    }
    last = product(rest, rows.inner, &QwenLayer::down_proj);
  }
  return last;
}

}  // namespace diptych
