#include "lib/pipelines/mot/text_decoder.h"

#include <optional>

#include "lib/pipelines/mot/text_decoder_cuda.h"

namespace diptych {
namespace {

at::TensorOptions options_of(const Runtime& runtime) {
  return at::TensorOptions().device(runtime.device).dtype(runtime.dtype);
}

// Any device and attention: each step is laid out and launched anew.
class StepDecoder : public TextDecoder {
 public:
  StepDecoder(const MotBackbone& model, std::int64_t capacity, const Runtime& runtime,
              TokenObserver observers)
      : model_(model),
        runtime_(runtime),
        observers_(std::move(observers)),
        cache_(model.config.kv_shape(), 1, capacity, options_of(runtime)) {}

  KvCache& cache() override { return cache_; }

  std::vector<std::int64_t> decode(const DecodeStart& start, at::Generator& generator,
                                   const DecodeProgress& progress,
                                   const LogitsFn& logits) override {
    std::optional<RaceDraws> race;
    if (start.sampling.temperature > 0) race.emplace(generator, model_.config.vocab_size);
    std::vector<std::int64_t> fed;
    for (std::int64_t token = start.token; token != start.stop || fed.empty();) {
      progress(static_cast<std::int64_t>(fed.size()));
      const auto index = static_cast<std::int64_t>(fed.size());
      const Tensor seen =
          feed(token, start.position + index, observers_ ? observers_(index) : MotObserver());
      fed.push_back(token);
      if (logits) logits(index, seen);
      const Tensor draws = race ? race->next().to(runtime_.device) : Tensor();
      token = read_token(next_token(seen, start.sampling, draws, start.vocab_limit));
      if (index + 1 == start.max_tokens) break;
    }
    return fed;
  }

 private:
  // -> logits [vocab]
  Tensor feed(std::int64_t token, std::int64_t position, const MotObserver& observer) {
    const MotSample row{cache_.length(0), position, 0, 1};
    const MotPlan plan =
        plan_text(std::span(&row, 1), 0, cache_, model_.config, options_of(runtime_));
    Tensor rows = model_.embed(at::full({1}, token, at::kLong));
    if (observer) observer("embeds", plan.split(rows));
    const MotRows out =
        model_.forward(plan, std::move(rows), cache_,
                       runtime_.read_attention.of(AttentionRole::self), runtime_.kernels, observer);
    cache_.advance(0, 1);
    return linear(out.und, model_.lm_head, {}, runtime_.kernels)[0];
  }

  const MotBackbone& model_;
  const Runtime& runtime_;
  TokenObserver observers_;
  KvCache cache_;
};

}  // namespace

std::optional<std::string> missing_text_kernel(const QwenConfig& config, const Runtime& runtime) {
  const bool asked = runtime.device.is_cuda() && runtime.kernels != KernelPolicy::reference &&
                     runtime.read_attention.of(AttentionRole::self).name() == "auto";
  if (!asked) return std::nullopt;
  return decode_attention_unsupported(config.num_attention_heads, config.num_key_value_heads,
                                      config.head_dim, runtime.dtype);
}

std::unique_ptr<TextDecoder> make_text_decoder(const MotBackbone& model, std::int64_t capacity,
                                               const Runtime& runtime, TokenObserver observers) {
  if (!observers) {
    if (auto graph = make_graph_decoder(model, capacity, runtime)) return graph;
  }
  return std::make_unique<StepDecoder>(model, capacity, runtime, std::move(observers));
}

}  // namespace diptych
