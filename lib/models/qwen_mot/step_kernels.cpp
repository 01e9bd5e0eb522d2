#include "lib/models/qwen_mot/step_kernels.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace diptych {
namespace {

constexpr const char* kQkv = "qkv_proj";
constexpr const char* kO = "o_proj";
constexpr const char* kGateUp = "gate_up_proj";
constexpr const char* kDown = "down_proj";
constexpr const char* kAttention = "attention";
constexpr const char* kNorm = "norm";
constexpr const char* kRope = "qk norm, rope, cache write";
constexpr const char* kSilu = "silu x gate";
constexpr const char* kQuantise = "quantise rows";
constexpr const char* kQuantiseAttention = "quantise q, k and v";
constexpr const char* kDequantise = "dequantise weights";
constexpr const char* kOtherProducts = "other products";
constexpr const char* kCopies = "copies and fills";

enum class Kind {
  norm,
  rope,
  silu,
  attention,
  few_attention,   // of all samples in one call, that only few queries take
  attention_rest,  // of a call whose keys were split
  product,
  gated_product,  // and the activation
  product_rest,   // of one whose sums were split
  quantise,
  quantise_attention,  // what it reads
  dequantise,
  copy,
  other
};

struct Mark {
  std::string_view part;  // of a name, in lower case
  Kind kind;
};

// The first that a name holds says what it is. nvjet and xmma: cuBLAS; fort_native_sdpa: cuDNN;
// pytorch_flash::flash_fwd_kernel and fmha: libtorch; attend_part, attend_tile and join_parts:
// decode_attention.
constexpr std::array<Mark, 27> kMarks = {{{"rms_norm", Kind::norm},
                                          {"gated_linear", Kind::gated_product},
                                          {"qk_norm_rope", Kind::rope},
                                          {"silu_mul", Kind::silu},
                                          {"dequantize_rows", Kind::dequantise},
                                          {"quantize_rows", Kind::quantise},
                                          {"quantize_attention", Kind::quantise_attention},
                                          {"most_of_keys", Kind::quantise_attention},
                                          {"attend_part", Kind::few_attention},
                                          {"attend_tile", Kind::few_attention},
                                          {"join_parts", Kind::attention_rest},
                                          {"splitkv_combine", Kind::attention_rest},
                                          {"flash_fwd", Kind::attention},
                                          {"sdpa", Kind::attention},
                                          {"fmha", Kind::attention},
                                          {"splitkreduce", Kind::product_rest},
                                          {"nvjet", Kind::product},
                                          {"gemm", Kind::product},
                                          {"gemv", Kind::product},
                                          {"cutlass", Kind::product},
                                          {"xmma", Kind::product},
                                          {"linear_row", Kind::product},
                                          {"linear_tiles", Kind::product},
                                          {"int8_linear", Kind::product},
                                          {"catarray", Kind::copy},
                                          {"copy", Kind::copy},
                                          {"fill", Kind::copy}}};

Kind kind_of(const GpuActivity& activity) {
  if (!activity.kernel) return Kind::copy;
  std::string name = activity.name;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* const mark =
      std::ranges::find_if(kMarks, [&](const Mark& m) { return name.find(m.part) != name.npos; });
  return mark == kMarks.end() ? Kind::other : mark->kind;
}

// "void at::native::elementwise_kernel<4, ...>(int, ...)" -> "at::native::elementwise_kernel".
std::string plain_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  std::string plain;
  int depth = 0;
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  while (!name.empty()) {
    if (name.starts_with(kUnnamed)) {
      name.remove_prefix(kUnnamed.size());
      continue;
    }
    const char c = name.front();
    name.remove_prefix(1);
    if (c == '(' && depth == 0) break;
    depth += c == '<' ? 1 : 0;
    if (depth == 0) plain += c;
    depth -= c == '>' ? 1 : 0;
  }
  return plain;
}

std::string family_of(std::string_view what, bool gen) {
  return fmt::format("{} {}", what, gen ? "gen" : "und");
}

// Goes through the kernels of layer after layer. Products and attention get their family when what
// follows them shows where in a layer they stand.
class FamilyReader {
 public:
  FamilyReader(std::span<const GpuActivity> activities, std::int64_t layers)
      : activities_(activities), layers_(layers), families_(activities.size()) {}

  std::vector<std::string> read() {
    for (std::size_t i = 0; i < activities_.size(); ++i) take(i, kind_of(activities_[i]));
    name_products({});
    name_attention();
    return std::move(families_);
  }

 private:
  void take(std::size_t i, Kind kind) {
    switch (kind) {
      case Kind::norm:
        return pass(i, kind, kNorm);
      case Kind::rope:
        ++ropes_;
        return pass(i, kind, kRope);
      case Kind::silu:
        return pass(i, kind, kSilu);
      case Kind::few_attention:
        if (!first_few_) first_few_ = attentions_.size();
        [[fallthrough]];
      case Kind::attention:
        if (before_ == Kind::rope) pass(i, Kind::attention, kAttention);
        attentions_.push_back({i});
        return;
      case Kind::product:
        products_.push_back({i});
        return;
      case Kind::gated_product:
        families_[i] = family_of(kGateUp, !gated_);
        gated_ = true;
        return;
      case Kind::attention_rest:
        return join(attentions_, i, kAttention);
      case Kind::product_rest:
        return join(products_, i, kOtherProducts);
      default:
        families_[i] = kind == Kind::quantise             ? kQuantise
                       : kind == Kind::quantise_attention ? kQuantiseAttention
                       : kind == Kind::dequantise         ? kDequantise
                       : kind == Kind::copy               ? kCopies
                                                          : plain_name(activities_[i].name);
    }
  }

  using Calls = std::vector<std::vector<std::size_t>>;  // the activities of each

  void join(Calls& calls, std::size_t i, const char* otherwise) {
    if (calls.empty()) {
      families_[i] = otherwise;
    } else {
      calls.back().push_back(i);
    }
  }

  // A kernel between projections.
  void pass(std::size_t i, Kind kind, const char* family) {
    families_[i] = family;
    name_products(kind);
    if (kind == Kind::norm) name_attention();
    before_ = kind;
  }

  void name_products(std::optional<Kind> next) {
    const char* what = nullptr;
    std::size_t gen = half(products_);
    if (next == Kind::rope) {
      what = kQkv;
    } else if (next == Kind::silu && before_ == Kind::norm) {
      what = kGateUp;
      if (gated_) gen = 0;  // those of generation were activated at once
    } else if (next == Kind::norm && before_ == Kind::attention) {
      what = kO;
    } else if (next == Kind::norm && (before_ == Kind::silu || gated_)) {
      what = kDown;
    }
    name(products_, what, kOtherProducts, gen);
    if (next == Kind::norm) gated_ = false;
  }

  void name_attention() {
    std::size_t gen = half(attentions_);
    // The latents' calls may be one for each sample, where their markers' is one for all.
    if (first_few_.value_or(0) > 0) gen = *first_few_;
    // Of the last layer only the generation rows attend: its markers are done with.
    if (ropes_ % layers_ == 0) gen = attentions_.size();
    name(attentions_, kAttention, kAttention, gen);
    first_few_.reset();
  }

  // Both kinds of rows take as many calls, those of generation first.
  static std::size_t half(const Calls& calls) { return (calls.size() + 1) / 2; }

  // The first `gen` calls are those of generation.
  void name(Calls& calls, const char* what, const char* otherwise, std::size_t gen) {
    for (std::size_t c = 0; c < calls.size(); ++c) {
      for (const std::size_t i : calls[c])
        families_[i] = what == nullptr ? otherwise : family_of(what, c < gen);
    }
    calls.clear();
  }

  std::span<const GpuActivity> activities_;
  std::int64_t layers_, ropes_ = 0;
  std::optional<Kind> before_;  // the kernel before the products that wait for their name
  Calls products_, attentions_;
  bool gated_ = false;                    // since the last norm
  std::optional<std::size_t> first_few_;  // of attentions_
  std::vector<std::string> families_;
};

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
    add_attention(true, rest.gen_rows, rest.gen);
    add_attention(false, rest.und_rows, rest.und);
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
      const bool plain_rows = projection.plain_rows && !(gen && fp8_attention_);
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

  void add_attention(bool gen, std::int64_t rows, const AttentionLengths& lengths) {
    if (rows == 0) return;
    const std::int64_t width = config_.q_width(), kv_width = config_.kv_width();
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

std::vector<std::string> kernel_families(std::span<const GpuActivity> activities,
                                         std::int64_t layers) {
  return FamilyReader(activities, layers).read();
}

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
