#include "lib/models/qwen_mot/kernel_work.h"

#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "lib/models/qwen_mot/families.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

using namespace mot_families;  // NOLINT: all of them are used
using namespace launch_names;  // NOLINT

std::string family_of(std::string_view what, bool gen) {
  return fmt::format("{} {}", what, gen ? kGen : kUnd);
}

// Adds up what the layers do.
class WorkSum {
 public:
  WorkSum(const MotPlan& plan, const QwenConfig& config, const MatrixFormat& format,
          const MotServedBy& served_by)
      : config_(config),
        format_(format),
        tuning_(served_by.tuning),
        fp8_attention_(served_by.fp8_attention),
        gated_(served_by.one_gated_kernel),
        mixed_(served_by.mixed_kernel),
        element_(c10::elementSize(format.dtype)),
        quantised_(plan.row_format(format.quantization) == Quantization::fp8) {
    add_norm(plan.rows(), 1, quantised_);
  }

  // `rows` enter the layer, `rest` go on behind its keys and values.
  void add_layer(const MotPlan& rows, const MotPlan& rest, bool last) {
    const std::int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
    add_projections(kQkv, rows, config_.qkv_width(), hidden, {.biased = config_.attention_bias});
    add_rope(rows.rows(), config_.qkv_width());
    const MotHeads heads = by_heads(rest)
                               ? rest.share->attending_heads()
                               : MotHeads{config_.num_attention_heads, config_.num_key_value_heads};
    if (rest.gen_rows > 0) add_attention(true, heads, rest.gen);
    if (rest.und_rows > 0) add_attention(false, heads, rest.und);
    add_projections(kO, rest, hidden, config_.q_width(), {.plain_rows = true});
    if (rest.rows() == 0) return;
    add_norm(rest.rows(), 3, quantised_);
    add_projections(kGateUp, rest, 2 * inner, hidden, {.gated = gated_});
    const std::int64_t activated = rest.rows() - (gated_ ? rest.gen_rows : 0);
    if (activated > 0) {
      add(kSilu, 0,
          rows_bytes(activated, 2 * inner, false) + rows_bytes(activated, inner, quantised_));
    }
    add_projections(kDown, rest, hidden, inner, {});
    add_norm(rest.rows(), 3, quantised_ && !last);
  }

  std::vector<KernelWork> take() { return std::move(all_); }

 private:
  // `plain`: passes over plain rows. Of a norm behind a sum three: both terms, and the sum.
  void add_norm(std::int64_t rows, double plain, bool quantised) {
    add(kNorm, 0,
        plain * rows_bytes(rows, config_.hidden_size, false) +
            rows_bytes(rows, config_.hidden_size, quantised));
  }

  double rows_bytes(std::int64_t rows, std::int64_t width, bool quantised) const {
    constexpr std::int64_t kScale = 4;
    const auto element = static_cast<std::int64_t>(element_);
    return static_cast<double>(rows * (quantised ? width + kScale : width * element));
  }

  // Whether so many rows meet a plain copy of weights of int8.
  bool copies(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) const {
    if (format_.quantization != Quantization::int8) return false;
    const Int8Product product = choose_int8_product(tuning_, rows, outputs, inputs);
    return !row_kernel_shape(product) && !(mixed_ && mixed_shape(product));
  }

  // Whether e4m3 values are multiplied as such, by a library, and not widened for a few rows.
  bool multiplies_fp8(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) const {
    return quantizes_rows(format_.quantization, rows) &&
           !row_kernel_shape(choose_fp8_product(tuning_, rows, outputs, inputs));
  }

  struct Projection {
    // plain_rows: nothing before it quantises them, unless attention of latents does
    // gated: of generation rows half as many outputs leave
    bool biased = false, plain_rows = false, gated = false;
  };
  void add_projections(const char* what, const MotPlan& plan, std::int64_t outputs,
                       std::int64_t inputs, Projection projection) {
    for (const bool gen : {true, false}) {
      const std::int64_t rows = gen ? plan.gen_rows : plan.und_rows;
      if (rows == 0) continue;
      const bool copied = copies(rows, outputs, inputs);
      if (copied)
        add(kDequantise, 0, rows_bytes(outputs, inputs, true) + rows_bytes(outputs, inputs, false));
      const bool rows_quantised = quantizes_rows(format_.quantization, rows);
      const bool weights_quantised = !copied && format_.quantization != Quantization::none;
      // What ranks attend by heads comes back plain.
      const bool plain_rows = projection.plain_rows && !(gen && fp8_attention_ && !by_heads(plan));
      if (rows_quantised && (plain_rows || !quantised_))
        add(kQuantise, 0, rows_bytes(rows, inputs, false) + rows_bytes(rows, inputs, true));
      add(family_of(what, gen),
          2.0 * static_cast<double>(rows * outputs) * static_cast<double>(inputs),
          rows_bytes(outputs, inputs, weights_quantised) +
              rows_bytes(rows, inputs, rows_quantised) +
              rows_bytes(rows, gen && projection.gated ? outputs / 2 : outputs, false) +
              (projection.biased ? rows_bytes(1, outputs, false) : 0),
          multiplies_fp8(rows, outputs, inputs));
    }
  }

  // qkv comes in, as much goes out to queries and cache; with cos and sin in float32, and slots.
  void add_rope(std::int64_t rows, std::int64_t width) {
    constexpr std::int64_t kFloat = 4, kSlot = 8;
    add(kRope, 0,
        2 * rows_bytes(rows, width, false) +
            static_cast<double>(rows * (config_.head_dim * kFloat + kSlot)));
  }

  static bool by_heads(const MotPlan& plan) { return plan.share && plan.share->by_heads(); }

  void add_attention(bool gen, const MotHeads& heads, const AttentionLengths& lengths) {
    const std::int64_t rows = std::accumulate(lengths.q.begin(), lengths.q.end(), std::int64_t{0});
    const std::int64_t width = heads.heads * config_.head_dim;
    const std::int64_t kv_width = heads.kv_heads * config_.head_dim;
    const std::int64_t keys = std::accumulate(lengths.k.begin(), lengths.k.end(), std::int64_t{0});
    const std::int64_t pairs =
        std::inner_product(lengths.q.begin(), lengths.q.end(), lengths.k.begin(), std::int64_t{0});
    const double flops = 4.0 * static_cast<double>(pairs * width);
    if (gen && fp8_attention_) {
      // k and v are read once for their scales and once to be quantised; each row gets its scale.
      const auto e4m3 = static_cast<double>(rows * width + 2 * keys * kv_width);
      add(kQuantiseAttention, 0,
          rows_bytes(rows, width, false) + 4 * rows_bytes(keys, kv_width, false) + e4m3 +
              rows_bytes(rows, 0, true));
      add(family_of(kAttention, gen), flops, e4m3 + static_cast<double>(rows * width), true);
      return;
    }
    add(family_of(kAttention, gen), flops,
        2 * rows_bytes(rows, width, false) + 2 * rows_bytes(keys, kv_width, false));
  }

  void add(const std::string& family, double flops, double bytes, bool fp8 = false) {
    const KernelWork work = {family, flops, bytes, fp8};
    add_work(all_, 1, std::span(&work, 1));
  }

  const QwenConfig& config_;
  MatrixFormat format_;
  const TuningTable* tuning_;
  bool fp8_attention_, gated_, mixed_;
  std::size_t element_;
  bool quantised_;  // by the norms and the activation
  std::vector<KernelWork> all_;
};

}  // namespace

std::vector<KernelWork> mot_work(const MotPlan& plan, const QwenConfig& config,
                                 const MatrixFormat& format, const MotServedBy& served_by) {
  WorkSum sum(plan, config, format, served_by);
  const MotPlan rest = plan.leaving();
  for (std::int64_t layer = 1; layer <= config.num_hidden_layers; ++layer) {
    const bool last = layer == config.num_hidden_layers;
    sum.add_layer(plan, last ? rest : plan, last);
  }
  return sum.take();
}

}  // namespace diptych
