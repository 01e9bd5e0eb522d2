#include "lib/pipelines/mot/tuning.h"

#include <algorithm>
#include <functional>
#include <set>

#include "lib/attention/attention.h"
#include "lib/base/interrupt.h"
#include "lib/ops/linear_operand.h"
#include "lib/runtime/launch_times.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

using Works = std::vector<std::function<void()>>;
using Usual = int (*)(const TunedShape& shape, std::int64_t rows);

constexpr std::int64_t kMarkers = 2;   // understanding rows around a picture
constexpr std::int64_t kBranches = 3;  // of guidance, at most
constexpr std::int64_t kContext = 64;  // tokens of a prompt

class Measurement {
 public:
  Measurement(const MotTuning& tuning, at::Device device, Progress& progress)
      : tuning_(tuning),
        rows_(MotTuningRows::of(tuning)),
        device_(device),
        options_(at::TensorOptions(device).dtype(at::kBFloat16)),
        progress_(progress),
        fp8_(multiplies_fp8(device)),
        gated_(has_gated_kernel(device)),
        mixed_(has_mixed_kernel(device)) {}

  TuningTable run() {
    const std::size_t products = kProjections * (fp8_ ? 2 : 1);
    progress_.begin("tune",
                    static_cast<std::int64_t>(products + (fp8_ ? 4 : 1) + (gated_ ? 1 : 0) + 1));
    for (const TunedShape& shape : projections()) {
      if (fp8_)
        add(TunedKernel::linear_fp8, shape, usual_fp8, products_of(shape, Quantization::fp8));
      add(TunedKernel::linear_int8, shape, usual_int8, products_of(shape, Quantization::int8));
    }
    const TunedShape gated = {tuning_.llm.intermediate_size, tuning_.llm.hidden_size, 0};
    if (gated_) add(TunedKernel::gated_linear, gated, usual_gated, gated_products(gated));
    const TunedShape width = {tuning_.llm.hidden_size, 0, 0};
    add(TunedKernel::add_rms_norm, width, usual_norm, norms(Quantization::none));
    if (fp8_) {
      const TunedShape inner = {tuning_.llm.intermediate_size, 0, 0};
      add(TunedKernel::add_rms_norm_e4m3, width, usual_norm, norms(Quantization::fp8));
      add(TunedKernel::silu_mul_e4m3, inner, usual_silu, activations(inner));
      // What attention gives; elsewhere the operation before quantises rows.
      const TunedShape attended = {tuning_.llm.q_width(), 0, 0};
      add(TunedKernel::quantize_rows, attended, usual_quantize, quantised_rows(attended));
    }
    const TunedShape heads = {tuning_.llm.num_attention_heads, tuning_.llm.num_key_value_heads,
                              tuning_.llm.head_dim};
    const bool hopper =
        !attention_unsupported(kHopper, {device_, at::kBFloat16, tuning_.llm.head_dim});
    add(TunedKernel::attention, heads, hopper ? usual_first_attention : usual_without_hopper,
        attention());
    progress_.end();
    return std::move(table_);
  }

 private:
  static constexpr std::size_t kProjections = 4;

  static int usual_fp8(const TunedShape& shape, std::int64_t rows) {
    return static_cast<int>(usual_fp8_product(rows, shape[0], shape[1]));
  }
  static int usual_int8(const TunedShape& shape, std::int64_t rows) {
    return static_cast<int>(usual_int8_product(rows, shape[0], shape[1]));
  }
  static int usual_gated(const TunedShape&, std::int64_t rows) {
    return static_cast<int>(usual_gated_product(rows));
  }
  static int usual_norm(const TunedShape&, std::int64_t) {
    return static_cast<int>(kUsualNormVectors);
  }
  static int usual_silu(const TunedShape&, std::int64_t) {
    return static_cast<int>(kUsualSiluVectors);
  }
  static int usual_quantize(const TunedShape&, std::int64_t rows) {
    return static_cast<int>(usual_quantize_vectors(rows));
  }
  static int usual_first_attention(const TunedShape&, std::int64_t queries) {
    return static_cast<int>(usual_attention(queries));
  }
  // Where there is no hopper, cudnn stands in for it.
  static int usual_without_hopper(const TunedShape&, std::int64_t queries) {
    const FirstAttention usual = usual_attention(queries);
    return static_cast<int>(usual == FirstAttention::hopper ? FirstAttention::cudnn : usual);
  }

  std::array<TunedShape, kProjections> projections() const {
    const QwenConfig& c = tuning_.llm;
    return {{{c.qkv_width(), c.hidden_size, 0},
             {c.hidden_size, c.q_width(), 0},
             {2 * c.intermediate_size, c.hidden_size, 0},
             {c.hidden_size, c.intermediate_size, 0}}};
  }

  void add(TunedKernel kernel, const TunedShape& shape, Usual usual,
           const std::vector<TunedTimes>& measured) {
    for (TunedClass& tuned : make_classes(kernel, shape, measured, usual))
      table_.add(std::move(tuned));
    progress_.update(++done_);
  }

  double milliseconds(const Works& works) const {
    check_interrupted();
    return launch_milliseconds(works, tuning_.repeats, device_);
  }

  Tensor draw(at::IntArrayRef sizes) const { return at::randn(sizes, options_); }

  // The table that makes an operation take that choice.
  static TuningTable forced(TunedKernel kernel, const TunedShape& shape, std::int64_t rows,
                            int choice) {
    TuningTable table;
    table.add({kernel, shape, rows, rows, choice, {}});
    return table;
  }

  // Weights that together exceed the level 2 cache of any GPU served, as a layer's do.
  std::vector<LinearOperand> weights(const TunedShape& shape, Quantization kind) const {
    constexpr std::int64_t kRotatedBytes = std::int64_t{256} << 20;
    const std::int64_t count = kRotatedBytes / (shape[0] * shape[1]) + 2;
    std::vector<LinearOperand> weights;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 16); ++i)
      weights.push_back(quantize_rows(draw({shape[0], shape[1]}), kind, KernelPolicy::strict));
    return weights;
  }

  std::vector<TunedTimes> products_of(const TunedShape& shape, Quantization kind) const {
    const bool fp8 = kind == Quantization::fp8;
    const TunedKernel kernel = fp8 ? TunedKernel::linear_fp8 : TunedKernel::linear_int8;
    const std::vector<LinearOperand> all = weights(shape, kind);
    std::vector<TunedTimes> measured;
    for (const std::int64_t rows : rows_.products) {
      const Tensor plain = draw({rows, shape[1]}), y = at::empty({rows, shape[0]}, options_);
      const LinearOperand x =
          fp8 ? quantize_rows(plain, kind, KernelPolicy::strict) : LinearOperand{plain, {}};
      measured.push_back(times_of(kernel, shape, rows, [&](const TuningTable& table) {
        Works works;
        for (const LinearOperand& weight : all) {
          works.emplace_back([&] {
            linear_into(y, x, weight, {}, {KernelPolicy::strict, &table});
          });
        }
        return milliseconds(works);
      }));
    }
    return measured;
  }

  std::vector<TunedTimes> gated_products(const TunedShape& shape) const {
    std::vector<LinearOperand> all = weights({2 * shape[0], shape[1], 0}, Quantization::none);
    // Gates as a model has them: the largest ones take another way through the activation.
    for (LinearOperand& weight : all) weight.values.div_(std::sqrt(static_cast<double>(shape[1])));
    std::vector<TunedTimes> measured;
    for (const std::int64_t rows : rows_.products) {
      const Tensor x = draw({rows, shape[1]});
      measured.push_back(
          times_of(TunedKernel::gated_linear, shape, rows, [&](const TuningTable& table) {
            Works works;
            for (const LinearOperand& weight : all) {
              works.emplace_back([&] {
                const LinearRoute route{weight, {}, RowSet::range(0, rows)};
                routed_gated_linear(x, std::span(&route, 1), {KernelPolicy::strict, &table});
              });
            }
            return milliseconds(works);
          }));
    }
    return measured;
  }

  // Whether the device has nothing for that choice, and takes another.
  bool stands_in(TunedKernel kernel, int choice) const {
    return kernel == TunedKernel::linear_int8 && !mixed_ &&
           mixed_shape(static_cast<Int8Product>(choice));
  }

  // Of each possible choice; none where there is but one.
  TunedTimes times_of(TunedKernel kernel, const TunedShape& shape, std::int64_t rows,
                      const std::function<double(const TuningTable&)>& time) const {
    TunedTimes times{rows, {}};
    times.milliseconds.resize(info_of(kernel).choices.size());
    std::vector<int> possible;
    for (int choice = 0; choice < static_cast<int>(times.milliseconds.size()); ++choice) {
      if (!impossible_choice(kernel, shape, rows, choice) && !stands_in(kernel, choice))
        possible.push_back(choice);
    }
    if (possible.size() < 2) return times;
    // The first one again: behind other work it was seen slower than with more rows.
    possible.push_back(possible.front());
    for (const int choice : possible) {
      try {
        times.milliseconds[static_cast<std::size_t>(choice)] =
            time(forced(kernel, shape, rows, choice));
      } catch (const c10::OutOfMemoryError&) {
        throw;
      } catch (const c10::AcceleratorError&) {  // the device takes no more work
        throw;
      } catch (const c10::Error&) {  // cuBLASLt says only when it is asked that it has no such one
      }
    }
    return times;
  }

  std::vector<TunedTimes> norms(Quantization kind) const {
    const TunedKernel kernel =
        kind == Quantization::fp8 ? TunedKernel::add_rms_norm_e4m3 : TunedKernel::add_rms_norm;
    const std::int64_t width = tuning_.llm.hidden_size;
    const Tensor weight = draw({width});
    std::vector<TunedTimes> measured;
    for (const std::int64_t rows : rows_.norms) {
      // In a run the same buffers come again, too, layer by layer.
      Tensor x = draw({rows, width});
      const Tensor delta = draw({rows, width});
      const NormRoute route{weight, RowSet::range(0, rows)};
      measured.push_back(times_of(kernel, {width, 0, 0}, rows, [&](const TuningTable& table) {
        const Works works = {[&] {
          add_rms_norm_(x, delta, std::span(&route, 1), tuning_.llm.rms_norm_eps, kind,
                        Kernels{KernelPolicy::strict, &table});
        }};
        return milliseconds(works);
      }));
    }
    return measured;
  }

  std::vector<TunedTimes> activations(const TunedShape& shape) const {
    std::vector<TunedTimes> measured;
    for (const std::int64_t rows : rows_.norms) {
      const Tensor gate_up = draw({rows, 2 * shape[0]});
      const LinearOperand y =
          LinearOperand::empty({rows, shape[0]}, gate_up.options(), Quantization::fp8);
      measured.push_back(
          times_of(TunedKernel::silu_mul_e4m3, shape, rows, [&](const TuningTable& table) {
            const Works works = {[&] {
              silu_mul_into(y, gate_up, Kernels{KernelPolicy::strict, &table});
            }};
            return milliseconds(works);
          }));
    }
    return measured;
  }

  std::vector<TunedTimes> quantised_rows(const TunedShape& shape) const {
    std::vector<TunedTimes> measured;
    for (const std::int64_t rows : rows_.products) {  // of a projection, of one expert
      const Tensor x = draw({rows, shape[0]});
      const LinearOperand y = LinearOperand::empty(x.sizes(), x.options(), Quantization::fp8);
      measured.push_back(
          times_of(TunedKernel::quantize_rows, shape, rows, [&](const TuningTable& table) {
            const Works works = {[&] {
              quantize_rows(x, y, Kernels{KernelPolicy::strict, &table});
            }};
            return milliseconds(works);
          }));
    }
    return measured;
  }

  // Two samples, as guidance has them; markers look at the largest picture.
  struct AttentionInputs {
    AttentionLengths lengths;
    Tensor q, k, v;
    AttentionCall call() const {
      AttentionCall call{q, k, v, &lengths};
      call.scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
      return call;
    }
  };
  AttentionInputs attention_inputs(std::int64_t queries) const {
    const QwenConfig& c = tuning_.llm;
    const std::int64_t largest = std::ranges::max(tuning_.picture_rows);
    const std::int64_t own = (queries < kFewQueries ? largest : queries) + kMarkers;
    const std::int64_t capacity = own + kContext;
    AttentionInputs inputs;
    inputs.lengths = AttentionLengths::make({queries, queries}, {capacity, own}, capacity, device_);
    inputs.q = draw({2 * queries, c.num_attention_heads, c.head_dim});
    inputs.k = draw({2, capacity, c.num_key_value_heads, c.head_dim});
    inputs.v = draw({2, capacity, c.num_key_value_heads, c.head_dim});
    return inputs;
  }

  std::vector<TunedTimes> attention() const {
    const auto names = info_of(TunedKernel::attention).choices;
    std::vector<TunedTimes> measured;
    for (const std::int64_t queries : rows_.attention)
      measured.push_back({queries, std::vector<std::optional<double>>(names.size())});
    for (std::size_t choice = 0; choice < names.size(); ++choice) {
      const auto why_not =
          attention_unsupported(names[choice], {device_, at::kBFloat16, tuning_.llm.head_dim});
      if (why_not) continue;
      const auto backend = make_attention(names[choice], device_);
      backend->prepare(attention_inputs(1).call());  // loads its libraries
      for (std::size_t i = 0; i < measured.size(); ++i) {
        const std::int64_t queries = rows_.attention[i];
        if (impossible_choice(TunedKernel::attention, {}, queries, static_cast<int>(choice)))
          continue;
        measured[i].milliseconds[choice] =
            attention_milliseconds(*backend, attention_inputs(queries).call());
      }
    }
    return measured;
  }

  std::optional<double> attention_milliseconds(const AttentionBackend& backend,
                                               const AttentionCall& call) const {
    constexpr double kUpdates = 49;  // of a picture at the official 50 timesteps
    const double begin = steady_seconds();
    if (backend.prepare(call)) return std::nullopt;
    const double plan = 1e3 * (steady_seconds() - begin);
    const Works works = {[&] { backend.forward(call); }};
    return milliseconds(works) +
           plan / (kUpdates * static_cast<double>(tuning_.llm.num_hidden_layers));
  }

  const MotTuning& tuning_;
  MotTuningRows rows_;
  at::Device device_;
  at::TensorOptions options_;
  Progress& progress_;
  bool fp8_;    // its operations are measured
  bool gated_;  // so are both ways through a gated layer's first half
  bool mixed_;  // and products with weights of int8 as they are
  TuningTable table_;
  std::int64_t done_ = 0;
};

}  // namespace

MotTuningRows MotTuningRows::of(const MotTuning& tuning) {
  std::set<std::int64_t> products = {2, 3, 4, 6, 8, 16, 32, 64, 128};
  std::set<std::int64_t> norms = {1, 4, 16, 64, 128}, attention = {kMarkers};
  for (const std::int64_t rows : tuning.picture_rows) {
    attention.insert(rows);
    for (std::int64_t branches = 1; branches <= kBranches; ++branches) {
      products.insert(branches * rows);
      norms.insert(branches * (rows + kMarkers));
    }
  }
  const auto sorted = [](const std::set<std::int64_t>& rows) {
    return std::vector<std::int64_t>(rows.begin(), rows.end());
  };
  return {sorted(products), sorted(norms), sorted(attention)};
}

TuningTable measure_mot(const MotTuning& tuning, at::Device device, Progress& progress) {
  return Measurement(tuning, device, progress).run();
}

}  // namespace diptych
