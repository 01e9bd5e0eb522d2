#include <cmath>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/models/cosmos/cosmos.h"
#include "lib/models/cosmos/families.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/layer_norm.h"

namespace diptych {
namespace {

using namespace cosmos_families;  // NOLINT: all of them are used

// Shift, scale and gate of every norm and time, float32 [blocks, 3, times, 3 * width].
Tensor modulations(const CosmosTransformer& m, const CosmosTime& time, const Kernels& kernels) {
  const LaunchLabel label(kModulation);
  const std::int64_t times = time.embedded.size(0), norms = m.adaln_out.size(0);
  const Tensor inner = linear(at::silu(time.embedded), m.adaln_in, {}, kernels)
                           .view({times, norms, -1})
                           .transpose(0, 1);
  const Tensor own = at::bmm(inner, m.adaln_out.transpose(1, 2)).to(at::kFloat);
  return own.add_(time.temb.to(at::kFloat)).unflatten(0, {norms / 3, 3});
}

// What the blocks of one call share.
class Pass {
 public:
  Pass(const CosmosTransformer& model, const CosmosPlan& plan, const CosmosTime& time,
       const AttentionBackend& attention, const Kernels& kernels, const CosmosObserver& observer)
      : config_(model.config),
        plan_(plan),
        time_(time),
        attention_(attention),
        kernels_(kernels),
        observer_(observer),
        quantization_(model.quantization),
        format_(quantizes_rows(quantization_, plan.rows()) ? quantization_ : Quantization::none),
        modulations_(modulations(model, time, kernels)) {}

  LinearOperand first_norm(const Tensor& x) const {
    return layer_norm(x, terms(0, 0), CosmosConfig::kEps, format_, kernels_);
  }

  // `h`: the rows normed for the block. Returns them normed for the next one; nothing behind the
  // last one.
  LinearOperand run(Tensor& x, LinearOperand h, const CosmosBlock& block, const Tensor& text,
                    std::size_t index, bool last) {
    index_ = index;
    see_norm(0, x);
    Tensor out = attend_self(std::move(h), block);
    h = add_and_norm(x, std::move(out), 0, index, 1);
    see_norm(1, x);
    out = attend_text(std::move(h), block, text);
    h = add_and_norm(x, std::move(out), 1, index, 2);
    see_norm(2, x);
    out = feed_forward(std::move(h), block);
    h = {};
    if (last) {
      add_gated_(x, {out, gate(2), time_.of_row}, kernels_);
    } else {
      h = add_and_norm(x, std::move(out), 2, index + 1, 0);
    }
    see("hidden", x);
    return h;
  }

 private:
  Tensor table(std::size_t block, std::int64_t norm) const {
    return modulations_[static_cast<std::int64_t>(block)][norm];
  }
  NormTerms terms(std::size_t block, std::int64_t norm) const {
    const Tensor of = table(block, norm);
    const std::int64_t width = config_.width();
    return {of.narrow(1, width, width), of.narrow(1, 0, width), /*beside_one=*/true, time_.of_row};
  }
  Tensor gate(std::int64_t norm) const {
    return table(index_, norm).narrow(1, 2 * config_.width(), config_.width());
  }
  // Adds what came of one norm of this block, then norms for another. `out` ends here.
  LinearOperand add_and_norm(Tensor& x, Tensor out, std::int64_t norm, std::size_t next_block,
                             std::int64_t next_norm) const {
    return add_layer_norm_(x, {std::move(out), gate(norm), time_.of_row},
                           terms(next_block, next_norm), CosmosConfig::kEps, format_, kernels_);
  }

  Tensor project(const char* family, const LinearOperand& x, const LinearOperand& weight) const {
    const LaunchLabel label(family);
    const Tensor y = at::empty({x.values.size(0), weight.values.size(0)}, time_.embedded.options());
    linear_into(y, x, weight, {}, kernels_);
    return y;
  }
  // [..., width] -> [..., heads, head_dim]
  Tensor heads(const Tensor& rows) const {
    return rows.unflatten(-1, {config_.num_attention_heads, config_.attention_head_dim});
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.attention_head_dim)); }
  // Normed for each head: x [rows, width], contiguous -> [rows, heads, head_dim].
  Tensor head_norm(const Tensor& x, const Tensor& weight) const {
    const Tensor flat = x.view({-1, config_.attention_head_dim});
    return rms_norm(flat, weight, CosmosConfig::kEps, kernels_)
        .view({x.size(0), config_.num_attention_heads, config_.attention_head_dim});
  }

  // q [rows, heads, head_dim], keys and values [samples, own rows, heads, head_dim].
  LinearOperand attend_rows(const Tensor& q, const Tensor& keys, const Tensor& values) const {
    if (!plan_.share.divides())
      return attention_.forward_rows({q, keys, values, &plan_.self, false, scale()}, quantization_);
    const Tensor qkv = at::stack({q.view_as(keys), keys, values}, 2);
    return {shared_attention(plan_.share, qkv, plan_.self, scale(), attention_), {}};
  }

  // -> [rows, width], to_out included.
  Tensor attend_self(LinearOperand h, const CosmosBlock& block) const {
    const std::int64_t n = config_.num_attention_heads, d = config_.attention_head_dim;
    Tensor qkv = project(kQkv, h, block.attn1_qkv);
    h = {};
    see_self(qkv, block);
    const Tensor keys = at::empty({plan_.samples, plan_.own_rows(), n, d}, qkv.options());
    const Tensor values = at::empty_like(keys);
    const QkNormRoute route = {block.attn1_norm_q, block.attn1_norm_k,
                               RowSet::range(0, plan_.rows())};
    Tensor q = qk_norm_rope({.qkv = qkv,
                             .routes = {route},
                             .cos = plan_.cos,
                             .sin = plan_.sin,
                             .slots = plan_.slots,
                             .keys = keys,
                             .values = values,
                             .heads = n,
                             .kv_heads = n,
                             .head_dim = d,
                             .eps = CosmosConfig::kEps,
                             .rounding = RopeRounding::at_the_end},
                            kernels_);
    qkv.reset();
    LinearOperand attended;
    {
      const LaunchLabel label(kSelfAttention);
      attended = attend_rows(q, keys, values);
    }
    q.reset();
    const Tensor out = project(kSelfOut, attended, block.attn1_out);
    see("self_attn_out", out);
    return out;
  }

  // -> [rows, width], to_out included.
  Tensor attend_text(LinearOperand h, const CosmosBlock& block, const Tensor& kept) const {
    Tensor q = project(kCrossQ, h, block.attn2_q);
    h = {};
    q = head_norm(q, block.attn2_norm_q);
    LinearOperand attended;
    {
      const LaunchLabel label(kCrossAttention);
      const std::int64_t width = config_.width();
      const Tensor text = plan_.text.keys(kept);
      AttentionCall call{q,
                         heads(text.narrow(2, 0, width)),
                         heads(text.narrow(2, width, width)),
                         &plan_.text.lengths,
                         false,
                         scale()};
      call.last_key_bias = plan_.text.last_key_bias;
      attended = attention_.forward_rows(call, quantization_);
    }
    q.reset();
    const Tensor out = project(kCrossOut, attended, block.attn2_out);
    see("cross_attn_out", out);
    return out;
  }

  Tensor feed_forward(LinearOperand h, const CosmosBlock& block) const {
    Tensor inner = project(kFfIn, h, block.ff_in);
    h = {};
    const LinearOperand rows = gelu_(std::move(inner), Gelu::exact, format_, kernels_);
    const Tensor out = project(kFfOut, rows, block.ff_out);
    see("ff_out", out);
    return out;
  }

  void see(std::string_view what, const Tensor& rows) const {
    if (!observer_) return;
    observer_(fmt::format("block{:02}.{}", index_, what),
              rows.view({plan_.samples, plan_.size.rows(), rows.size(1)}));
  }
  // What a norm of this block makes of x, and the gate of what comes of it.
  void see_norm(std::int64_t norm, const Tensor& x) const {
    if (!observer_) return;
    see(fmt::format("norm{}_modulated", norm + 1),
        layer_norm(x, terms(index_, norm), CosmosConfig::kEps, Quantization::none, kernels_)
            .values);
    const Tensor of_rows = gate(norm)
                               .index_select(0, time_.of_row)
                               .view({plan_.samples, plan_.size.rows(), config_.width()});
    observer_(fmt::format("block{:02}.norm{}_gate", index_, norm + 1),
              time_.by_frame ? of_rows : of_rows.narrow(1, 0, 1));
  }
  // Queries and keys normed but not rotated, [samples, heads, rows, head_dim].
  void see_self(const Tensor& qkv, const CosmosBlock& block) const {
    if (!observer_) return;
    const std::int64_t width = config_.width();
    const auto show = [&](const char* what, std::int64_t first, const Tensor& weight) {
      const Tensor normed = head_norm(qkv.narrow(1, first, width).contiguous(), weight);
      observer_(fmt::format("block{:02}.{}", index_, what),
                normed.unflatten(0, {plan_.samples, plan_.size.rows()}).transpose(1, 2));
    };
    show("self_q_normed", 0, block.attn1_norm_q);
    show("self_k_normed", width, block.attn1_norm_k);
  }

  const CosmosConfig& config_;
  const CosmosPlan& plan_;
  const CosmosTime& time_;
  const AttentionBackend& attention_;
  const Kernels& kernels_;
  const CosmosObserver& observer_;
  Quantization quantization_, format_;  // of matrices; of the rows that norms hand to them
  Tensor modulations_;                  // float32 [blocks, 3, times, 3 * width]
  std::size_t index_ = 0;               // of the block
};

}  // namespace

Tensor CosmosTransformer::modulated_input(const CosmosPlan& plan, const CosmosTime& time,
                                          const Tensor& x, const Kernels& kernels) const {
  const std::int64_t width = config.width();
  const Tensor table = modulations(*this, time, kernels)[0][0];
  NormTerms terms = {table.narrow(1, width, width), table.narrow(1, 0, width), /*beside_one=*/true,
                     time.of_row};
  if (terms.groups.defined()) terms.groups = terms.groups.narrow(0, 0, plan.own_rows());
  return layer_norm(x.narrow(0, 0, plan.own_rows()), terms, CosmosConfig::kEps, Quantization::none,
                    kernels)
      .values;
}

Tensor CosmosTransformer::run_blocks(const CosmosPlan& plan, const CosmosContext& context,
                                     const CosmosTime& time, Tensor x,
                                     const AttentionBackend& attention, const Kernels& kernels,
                                     const CosmosObserver& observer) const {
  TORCH_CHECK(x.sizes() == at::IntArrayRef({plan.rows(), config.width()}), "[cosmos] x is ",
              x.sizes(), ", the plan is of ", plan.rows(), " rows");
  TORCH_CHECK(context.samples() == plan.samples, "[cosmos] a context of ", context.samples(),
              " samples, the plan is of ", plan.samples);
  Pass pass(*this, plan, time, attention, kernels, observer);
  LinearOperand h = pass.first_norm(x);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the blocks are only launched here
    const CosmosBlock& block = blocks.acquire(i, BlockPart::step);
    h = pass.run(x, std::move(h), block, context.text[i], i, i + 1 == blocks.size());
    blocks.release();
  }
  return x;
}

}  // namespace diptych
