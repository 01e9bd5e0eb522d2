#include "lib/pipelines/mot/drafted_text.h"

#include <charconv>
#include <deque>
#include <optional>
#include <string_view>

namespace diptych {
namespace {

// Of "layerLL.hidden".
std::optional<std::int64_t> layer_of(std::string_view what) {
  constexpr std::string_view kLayer = "layer", kHidden = ".hidden";
  if (!what.starts_with(kLayer) || !what.ends_with(kHidden)) return std::nullopt;
  what.remove_prefix(kLayer.size());
  what.remove_suffix(kHidden.size());
  std::int64_t layer = 0;
  std::from_chars(what.data(), what.data() + what.size(), layer);
  return layer;
}

MotObserver observer_of(const QwenObserver& observer) {
  if (!observer) return {};
  return [&observer](std::string_view what, const MotRows& rows) {
    if (const auto layer = layer_of(what)) observer(*layer, rows.und);
  };
}

// Rows of text at the understanding experts.
MotPlan plan_of(const QwenRows& rows) {
  MotPlan plan;
  plan.und_rows = rows.slots.size(0);
  plan.cos = rows.cos;
  plan.sin = rows.sin;
  plan.slots = rows.slots;
  plan.und = *rows.lengths;
  plan.first_cache_row = rows.first_cache_row;
  plan.cache_rows = rows.lengths->samples();
  plan.causal = rows.causal;
  return plan;
}

// The draws of the tokens that are not decided yet. A draft that is rejected leaves its draw to the
// token in its place: nothing that is kept has depended on it.
class RaceWindow {
 public:
  RaceWindow(at::Generator& generator, std::int64_t vocab) : ahead_(generator, vocab) {}
  // Of the next tokens, float32 [count, vocab] on the CPU.
  Tensor next(std::int64_t count) {
    draw(count);
    return at::stack(std::vector<Tensor>(races_.begin(), races_.begin() + count));
  }
  void use(std::int64_t count) {
    draw(count);
    ahead_.use(static_cast<std::size_t>(count));
    races_.erase(races_.begin(), races_.begin() + count);
  }

 private:
  void draw(std::int64_t count) {
    while (std::ssize(races_) < count) races_.push_back(ahead_.next());
  }

  RacesAhead ahead_;
  std::deque<Tensor> races_;
};

SpeculativeRequest request_of(const DraftedStart& start) {
  const DecodeStart& decode = start.decode;
  SpeculativeRequest request;
  request.max_new_tokens = decode.max_tokens - 1;
  request.block_size = start.block_size;
  request.stop_ids = {decode.stop};
  request.sampling = decode.sampling;
  request.vocab_limit = decode.vocab_limit;
  return request;
}

}  // namespace

TextTarget text_target(const MotBackbone& backbone) {
  TextTarget target;
  target.config = backbone.config;
  target.captures = false;
  target.embed = [&backbone](const Tensor& ids) { return backbone.embed(ids.clamp_min(0)); };
  target.logits = [&backbone](const Tensor& hidden, const Kernels& kernels) {
    return linear(hidden, backbone.lm_head, {}, kernels);
  };
  target.forward = [&backbone](const QwenRows& rows, Tensor x, const KvCache& cache,
                               const AttentionBackend& attention, const Kernels& kernels,
                               const QwenObserver& observer) {
    return backbone
        .forward(plan_of(rows), std::move(x), cache, attention, kernels, observer_of(observer))
        .und;
  };
  return target;
}

DraftedDecoder::DraftedDecoder(const MotBackbone& backbone, const BlockDrafter& drafter,
                               const Runtime& runtime)
    : drafter_(drafter),
      config_(backbone.config),
      runtime_(runtime),
      writer_(text_target(backbone), &drafter, runtime) {}

ContextObserver DraftedDecoder::watch(std::int64_t rows, const DraftedStart& start) {
  writer_.make_room(rows, request_of(start));
  return [this](std::int64_t first, std::int64_t count) -> MotObserver {
    const Tensor features =
        at::empty({count, drafter_.config.feature_width()},
                  at::TensorOptions().device(runtime_.device).dtype(runtime_.dtype));
    return [this, first, features](std::string_view what, const MotRows& seen) {
      if (const auto layer = layer_of(what))
        drafter_.collect(*layer, in_token_order(seen), features);
      if (what != "final_norm") return;  // the last that is shown
      drafter_.collect_last(in_token_order(seen), features);
      writer_.add_features(first, features);
    };
  };
}

DraftedTokens DraftedDecoder::decode(const KvCache& contexts, std::int64_t row,
                                     const DraftedStart& start, at::Generator& generator,
                                     const DecodeProgress& progress) {
  const DecodeStart& decode = start.decode;
  const SpeculativeRequest request = request_of(start);
  const std::int64_t length = contexts.length(row);
  writer_.make_room(length, request).copy_row(0, contexts, row, length);
  std::optional<RaceWindow> races;
  NoiseRows noise;
  if (request.sampling.temperature > 0) {
    races.emplace(generator, config_.vocab_size);
    noise = [&](std::size_t, std::int64_t rows) { return races->next(rows); };
  }
  std::int64_t decided = 0;
  SpeculativeObserver observer;
  observer.accepted = [&](std::size_t, std::span<const std::int64_t> ids) {
    decided += std::ssize(ids);
    if (races) races->use(std::ssize(ids));
    progress(decided);
    return true;
  };
  progress(0);
  SpeculativeText text =
      writer_.go_on({length, decode.position, decode.token}, request, noise, observer);
  DraftedTokens tokens;
  tokens.fed = {decode.token};
  tokens.fed.insert(tokens.fed.end(), text.ids.begin(), text.ids.end());
  if (tokens.fed.back() == decode.stop && !text.ids.empty()) tokens.fed.pop_back();
  // One draw for every token that was fed.
  if (races) races->use(std::ssize(tokens.fed) - decided);
  tokens.acceptance = std::move(text.acceptance);
  return tokens;
}

}  // namespace diptych
