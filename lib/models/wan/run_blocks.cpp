#include <cmath>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/models/wan/families.h"
#include "lib/models/wan/wan.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/layer_norm.h"
#include "lib/ops/rms_norm_rope.h"

namespace diptych {
namespace {

using namespace wan_families;  // NOLINT: all of them are used

// The rows of a block's table of modulation.
enum Modulation : std::int64_t { kShiftA, kScaleA, kGateA, kShiftF, kScaleF, kGateF };

// float32 [6, times, width]: what a timestep adds to the tables of every block.
Tensor modulation_of(const WanTime& time, std::int64_t width) {
  const std::int64_t times = time.timestep_proj.size(0);
  return time.timestep_proj.to(at::kFloat).view({times, 6, width}).transpose(0, 1);
}

// What the blocks of one call share.
class Pass {
 public:
  Pass(const WanTransformer& model, const WanPlan& plan, const WanTime& time,
       const AttentionBackend& attention, const Kernels& kernels, const WanObserver& observer)
      : config_(model.config),
        plan_(plan),
        of_row_(time.of_row),
        attention_(attention),
        kernels_(kernels),
        observer_(observer),
        quantization_(model.quantization),
        format_(quantizes_rows(quantization_, plan.rows()) ? quantization_ : Quantization::none) {
    modulation_ = model.block_tables.unsqueeze(2) + modulation_of(time, config_.width());
  }

  // Norm and modulation before the self attention of a block.
  NormTerms terms_of_attention(std::size_t block) const { return terms(block, kScaleA, kShiftA); }
  LinearOperand norm(const Tensor& x, const NormTerms& with) const {
    return layer_norm(x, with, config_.eps, format_, kernels_);
  }

  // `h`: the rows normed for the block. Returns them normed for the next one; nothing behind the
  // last one.
  LinearOperand run(Tensor& x, LinearOperand h, const WanBlock& block, const WanContext& context,
                    std::size_t index, bool last) {
    index_ = index;
    see_norm("norm1", x, {}, {});
    Tensor out = attend_self(std::move(h), block);
    h = add_and_norm_for_text(x, {out, modulation(kGateA), of_row_}, block);
    out = attend_context(std::move(h), block, context);
    h = add_layer_norm_(x, {out}, terms(index, kScaleF, kShiftF), config_.eps, format_, kernels_);
    see_norm("norm3", x, {}, {});
    out = feed_forward(std::move(h), block);
    const GatedSum sum = {out, modulation(kGateF), of_row_};
    h = {};
    if (last) {
      add_gated_(x, sum, kernels_);
    } else {
      h = add_layer_norm_(x, sum, terms_of_attention(index + 1), config_.eps, format_, kernels_);
    }
    see("hidden", x);
    return h;
  }

 private:
  Tensor table(std::size_t block, Modulation which) const {
    return modulation_[static_cast<std::int64_t>(block)][which];
  }
  Tensor modulation(Modulation which) const { return table(index_, which); }
  NormTerms terms(std::size_t block, Modulation scale, Modulation shift) const {
    return {table(block, scale), table(block, shift), /*beside_one=*/true, of_row_};
  }

  Tensor project(const char* family, const LinearOperand& x, const LinearOperand& weight,
                 const Tensor& bias) const {
    const LaunchLabel label(family);
    const Tensor y = at::empty({x.values.size(0), weight.values.size(0)}, bias.options());
    linear_into(y, x, weight, bias, kernels_);
    return y;
  }

  // [..., width] -> [..., heads, head_dim]
  Tensor heads(const Tensor& rows) const {
    return rows.unflatten(-1, {config_.num_attention_heads, config_.attention_head_dim});
  }
  AttentionCall call(const Tensor& q, const Tensor& keys, const Tensor& values,
                     const AttentionLengths& lengths) const {
    return {heads(q), heads(keys), heads(values), &lengths, /*causal=*/false, scale()};
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.attention_head_dim)); }

  // What is given is gone behind it.
  LinearOperand attend_rows(Tensor qkv) const {
    const LaunchLabel label(kSelfAttention);
    const std::int64_t width = config_.width();
    const Tensor samples = qkv.unflatten(0, {plan_.samples, plan_.own_rows()});
    if (plan_.share.divides()) {
      const Tensor split = heads(samples.unflatten(2, {3, width}));
      return {shared_attention(plan_.share, split, plan_.self, scale(), attention_), {}};
    }
    return attention_.forward_rows(call(qkv.narrow(1, 0, width), samples.narrow(2, width, width),
                                        samples.narrow(2, 2 * width, width), plan_.self),
                                   quantization_);
  }

  // -> [rows, width], to_out included.
  Tensor attend_self(LinearOperand h, const WanBlock& block) const {
    Tensor qkv = project(kQkv, h, block.attn1_qkv, block.attn1_qkv_bias);
    h = {};
    see_self(qkv, block);
    rms_norm_rope_({.x = qkv,
                    .weights = {block.attn1_norm_q, block.attn1_norm_k},
                    .cos = plan_.cos,
                    .sin = plan_.sin,
                    .eps = config_.eps},
                   kernels_);
    const LinearOperand attended = attend_rows(std::move(qkv));
    const Tensor out = project(kSelfOut, attended, block.attn1_out, block.attn1_out_bias);
    see("self_attn_out", out);
    return out;
  }

  LinearOperand add_and_norm_for_text(Tensor& x, const GatedSum& sum, const WanBlock& block) const {
    if (!block.norm2_weight.defined()) {
      add_gated_(x, sum, kernels_);
      return {x, {}};
    }
    const NormTerms affine = {block.norm2_weight.unsqueeze(0), block.norm2_bias.unsqueeze(0)};
    LinearOperand h = add_layer_norm_(x, sum, affine, config_.eps, format_, kernels_);
    see_norm("norm2", x, block.norm2_weight, block.norm2_bias);
    return h;
  }

  // What is given is gone behind it.
  LinearOperand attend_keys(Tensor q, const WanContext& context) const {
    const LaunchLabel label(kCrossAttention);
    const std::int64_t width = config_.width();
    const Tensor text = plan_.text.keys(context.text[index_]);
    AttentionCall to_text =
        call(q, text.narrow(2, 0, width), text.narrow(2, width, width), plan_.text.lengths);
    to_text.last_key_bias = plan_.text.last_key_bias;
    if (context.image.empty()) return attention_.forward_rows(to_text, quantization_);
    // Two softmaxes with the same queries; what they give is summed.
    const Tensor& image = context.image[index_];
    const AttentionCall to_image =
        call(q, image.narrow(2, 0, width), image.narrow(2, width, width), plan_.image);
    const Tensor sum = attention_.forward(to_text).flatten(1);
    sum.add_(attention_.forward(to_image).flatten(1));
    return {sum, {}};
  }

  // -> [rows, width], to_out included.
  Tensor attend_context(LinearOperand h, const WanBlock& block, const WanContext& context) const {
    Tensor q = project(kCrossQ, h, block.attn2_q, block.attn2_q_bias);
    h = {};
    rms_norm_rope_({.x = q, .weights = {block.attn2_norm_q}, .eps = config_.eps}, kernels_);
    see("cross_q_normed", q);
    const LinearOperand attended = attend_keys(std::move(q), context);
    const Tensor out = project(kCrossOut, attended, block.attn2_out, block.attn2_out_bias);
    see("cross_attn_out", out);
    return out;
  }

  Tensor feed_forward(LinearOperand h, const WanBlock& block) const {
    Tensor plain = at::empty({h.values.size(0), config_.ffn_dim}, block.ffn_in_bias.options());
    LinearOperand inner;
    {
      const LaunchLabel label(kFfnIn);
      inner = linear_gelu_into(std::move(plain), std::move(h), block.ffn_in, block.ffn_in_bias,
                               Gelu::tanh, format_, kernels_);
    }
    const Tensor out = project(kFfnOut, inner, block.ffn_out, block.ffn_out_bias);
    see("ffn_out", out);
    return out;
  }

  void see(std::string_view what, const Tensor& rows) const {
    if (!observer_) return;
    observer_(fmt::format("block{:02}.{}", index_, what),
              rows.view({plan_.samples, plan_.size.rows(), rows.size(1)}));
  }
  // The norm of x before any modulation.
  void see_norm(std::string_view what, const Tensor& x, const Tensor& weight,
                const Tensor& bias) const {
    if (!observer_) return;
    see(what, at::layer_norm(x.to(at::kFloat), {x.size(1)}, weight, bias, config_.eps));
  }
  // Queries and keys normed but not rotated, and values.
  void see_self(const Tensor& qkv, const WanBlock& block) const {
    if (!observer_) return;
    const Tensor normed = qkv.clone();
    rms_norm_rope_(
        {.x = normed, .weights = {block.attn1_norm_q, block.attn1_norm_k}, .eps = config_.eps},
        kernels_);
    const char* const names[] = {"self_q_normed", "self_k_normed", "self_v"};
    for (std::int64_t i = 0; i < 3; ++i)
      see(names[i], normed.narrow(1, i * config_.width(), config_.width()).contiguous());
  }

  const WanConfig& config_;
  const WanPlan& plan_;
  const Tensor& of_row_;
  const AttentionBackend& attention_;
  const Kernels& kernels_;
  const WanObserver& observer_;
  Quantization quantization_, format_;  // of matrices; of the rows that norms hand to them
  Tensor modulation_;                   // float32 [blocks, 6, times, width]
  std::size_t index_ = 0;               // of the block
};

}  // namespace

Tensor WanTransformer::modulated_input(const WanPlan& plan, const WanTime& time, const Tensor& x,
                                       const Kernels& kernels) const {
  const Tensor tables = block_tables[0].unsqueeze(1) + modulation_of(time, config.width());
  NormTerms terms = {tables[kScaleA], tables[kShiftA], /*beside_one=*/true, time.of_row};
  if (terms.groups.defined()) terms.groups = terms.groups.narrow(0, 0, plan.own_rows());
  return layer_norm(x.narrow(0, 0, plan.own_rows()), terms, config.eps, Quantization::none, kernels)
      .values;
}

Tensor WanTransformer::run_blocks(const WanPlan& plan, const WanContext& context,
                                  const WanTime& time, Tensor x, const AttentionBackend& attention,
                                  const Kernels& kernels, const WanObserver& observer) const {
  TORCH_CHECK(x.sizes() == at::IntArrayRef({plan.rows(), config.width()}), "[wan] x is ", x.sizes(),
              ", the plan is of ", plan.rows(), " rows");
  TORCH_CHECK(context.samples() == plan.samples, "[wan] a context of ", context.samples(),
              " samples, the plan is of ", plan.samples);
  Pass pass(*this, plan, time, attention, kernels, observer);
  LinearOperand h = pass.norm(x, pass.terms_of_attention(0));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the blocks are only launched here
    const WanBlock& block = blocks.acquire(i, BlockPart::step);
    h = pass.run(x, std::move(h), block, context, i, i + 1 == blocks.size());
    blocks.release();
  }
  return x;
}

}  // namespace diptych
