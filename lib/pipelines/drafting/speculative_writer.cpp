#include "lib/pipelines/drafting/speculative_writer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "lib/base/interrupt.h"
#include "lib/models/qwen/rope.h"
#include "lib/pipelines/drafting/block_runner.h"
#include "lib/pipelines/drafting/draft_trial.h"
#include "lib/sampling/speculative.h"
#include "lib/session/result.h"

namespace diptych {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A text that is being written, in a row of the caches.
struct Growing {
  std::size_t prompt = 0;
  DecidedText text;
  SpeculativeText result;
  bool refused = false;  // by the observer
};

struct WritingParts {
  std::span<const std::vector<std::int64_t>> prompts;
  const TextContext* context = nullptr;  // of the one text, instead of prompts
  const SpeculativeRequest& request;
  const NoiseRows& noise;
  const SpeculativeObserver& observer;
  std::int64_t block = 1;  // rows of a block
  bool samples = false;
};

// One call of SpeculativeWriter::write.
class Writing {
 public:
  Writing(const WritingParts& parts, BlockRunner& runner, at::Device device)
      : parts_(parts),
        runner_(runner),
        device_(device),
        texts_(parts.context != nullptr ? 1 : parts.prompts.size()) {}

  std::vector<SpeculativeText> run() {
    if (parts_.context != nullptr) go_on();
    for (std::size_t prompt = 0; prompt < parts_.prompts.size(); ++prompt) begin(prompt);
    decoding_ = Clock::now();
    while (!growing_.empty()) {
      check_interrupted();
      iterate();
    }
    return std::move(texts_);
  }

 private:
  void go_on() {
    runner_.go_on(*parts_.context);
    const SpeculativeRequest& request = parts_.request;
    growing_.push_back({0, DecidedText({request.max_new_tokens, request.stop_ids}), {}});
    traces_.emplace_back();
  }

  void begin(std::size_t prompt) {
    const Clock::time_point began = Clock::now();
    check_interrupted();
    const SpeculativeRequest& request = parts_.request;
    Growing growing{prompt, DecidedText({request.max_new_tokens, request.stop_ids}), {}};
    TextTrace trace = parts_.observer.trace ? parts_.observer.trace(prompt) : TextTrace();
    const Tensor noise = parts_.samples ? parts_.noise(prompt, 1) : Tensor();
    const auto row = static_cast<std::int64_t>(growing_.size());
    const std::int64_t first = runner_.prefill(row, parts_.prompts[prompt], noise, trace);
    growing.result.prefill_seconds = seconds_since(began);
    decide(growing, std::span(&first, 1));
    if (growing.refused) {
      end(growing);
    } else {
      growing_.push_back(std::move(growing));
      traces_.push_back(std::move(trace));
    }
  }

  void iterate() {
    const bool may_draft = parts_.block > 1 && !trial_.switched_off();
    if (!may_draft && may_run_ahead()) return run_ahead();
    const bool drafts =
        may_draft && (!parts_.request.may_switch_off || trial_.drafts(growing_.size()));
    const std::int64_t width = drafts ? parts_.block : 1;
    runner_.prepare(width, traces_);
    const Clock::time_point began = Clock::now();
    if (drafts) runner_.draft(width, traces_);
    if (!started_) {
      synchronize(device_);
      decoding_ = Clock::now();
    }
    started_ = true;
    const std::vector<BlockResult> results = runner_.verify(width, noise(width), traces_);
    std::int64_t tokens = 0;
    for (std::size_t row = 0; row < results.size(); ++row) {
      tokens += results[row].acceptance;
      add(growing_[row], results[row]);
    }
    if (may_draft && parts_.request.may_switch_off) judge(seconds_since(began), tokens);
    remove_ended();
  }

  // Beside other texts a row that has ended would go on: those would be computed in another shape
  // than they are alone.
  bool may_run_ahead() {
    return growing_.size() == 1 && !parts_.samples && runner_.captures(1, traces_);
  }

  // Several tokens of the one text, launched before the first is looked at.
  void run_ahead() {
    Growing& growing = growing_.front();
    runner_.prepare(1, traces_);
    if (!started_) decoding_ = Clock::now();
    started_ = true;
    // One token each, until there is one more than is allowed (DecidedText::ended).
    const std::int64_t left = parts_.request.max_new_tokens + 1 - growing.text.decided();
    runner_.run_ahead(std::min(left, BlockRunner::kMostAhead), [&](const BlockResult& result) {
      add(growing, result);
      return !has_ended(growing);
    });
    remove_ended();
  }

  void add(Growing& growing, const BlockResult& result) {
    growing.result.acceptance.push_back(result.acceptance);
    decide(growing, result.new_ids);
  }

  static bool has_ended(const Growing& growing) { return growing.refused || growing.text.ended(); }

  // [texts * width, vocab]
  Tensor noise(std::int64_t width) const {
    if (!parts_.samples) return {};
    std::vector<Tensor> rows;
    for (const Growing& growing : growing_) rows.push_back(parts_.noise(growing.prompt, width));
    return at::cat(rows);
  }

  void decide(Growing& growing, std::span<const std::int64_t> ids) {
    const std::span<const std::int64_t> counted = growing.text.add(ids);
    if (counted.empty() || !parts_.observer.accepted) return;
    growing.refused = !parts_.observer.accepted(growing.prompt, counted);
  }

  void judge(double seconds, std::int64_t tokens) {
    trial_.add(seconds, tokens);
    if (!trial_.switched_off()) return;
    runner_.drop_drafter();
    for (Growing& growing : growing_) growing.result.switched_off = true;
  }

  // From the last row on, so that what moves into a row has been looked at.
  void remove_ended() {
    for (std::size_t row = growing_.size(); row-- > 0;) {
      if (!has_ended(growing_[row])) continue;
      traces_[row].finish();
      end(growing_[row]);
      runner_.move(static_cast<std::int64_t>(growing_.size()) - 1, static_cast<std::int64_t>(row));
      growing_[row] = std::move(growing_.back());
      traces_[row] = std::move(traces_.back());
      growing_.pop_back();
      traces_.pop_back();
    }
  }

  void end(Growing& growing) {
    SpeculativeText& text = growing.result;
    if (started_) text.seconds = seconds_since(decoding_);
    text.ids = growing.text.ids();
    const bool itself = growing.refused || growing.text.stopped();
    text.finish_reason = itself ? kFinishedItself : kFinishedByLimit;
    texts_[growing.prompt] = std::move(text);
  }

  const WritingParts& parts_;
  BlockRunner& runner_;
  at::Device device_;
  std::vector<SpeculativeText> texts_;
  std::vector<Growing> growing_;   // by rows
  std::vector<TextTrace> traces_;  // likewise
  DraftTrial trial_;
  Clock::time_point decoding_;
  bool started_ = false;  // an iteration has begun
};

std::int64_t block_of(const SpeculativeRequest& request, const BlockDrafter* drafter) {
  const std::int64_t own = drafter == nullptr ? 1 : drafter->config.block_size;
  const std::int64_t block = request.block_size == 0 ? own : request.block_size;
  TORCH_CHECK(block >= 1 && (block == 1 || drafter != nullptr), "[speculative] a block of ", block,
              " rows", drafter == nullptr ? " without a drafter" : "");
  return block;
}

// Below this the reference takes the largest logit.
TokenSampling sampling_of(const SpeculativeRequest& request) {
  constexpr double kGreedyBelow = 1e-5;
  TokenSampling sampling = request.sampling;
  if (sampling.temperature >= 0 && sampling.temperature < kGreedyBelow) sampling.temperature = 0;
  sampling.check();
  return sampling;
}

}  // namespace

NoiseRows seeded_noise(std::span<const std::uint64_t> seeds, std::int64_t vocab_size) {
  auto draws = std::make_shared<std::vector<RaceDraws>>();
  for (const std::uint64_t seed : seeds)
    draws->emplace_back(at::detail::createCPUGenerator(seed), vocab_size);
  return [draws](std::size_t prompt, std::int64_t rows) {
    std::vector<Tensor> noise;
    for (std::int64_t row = 0; row < rows; ++row) noise.push_back(draws->at(prompt).next());
    return at::stack(noise);
  };
}

SpeculativeWriter::SpeculativeWriter(TextTarget target, const BlockDrafter* drafter,
                                     const Runtime& runtime)
    : target_(std::move(target)), drafter_(drafter), runtime_(runtime) {}

SpeculativeWriter::~SpeculativeWriter() = default;

void SpeculativeWriter::make_caches(std::int64_t rows, std::int64_t capacity, bool drafts) {
  const auto options = at::TensorOptions().device(runtime_.device).dtype(runtime_.dtype);
  const auto fits = [&](const std::optional<KvCache>& cache) {
    return cache && cache->rows() >= rows && cache->capacity() >= capacity;
  };
  if (!fits(target_cache_)) {
    // The smaller ones go first, and what has captured them before.
    for (auto& runner : runners_) runner.reset();
    target_cache_.reset();
    drafter_cache_.reset();
    target_cache_.emplace(target_.config.kv_shape(), rows, KvCache::rounded_capacity(capacity),
                          options);
  }
  if (drafts && !drafter_cache_) {
    drafter_cache_.emplace(drafter_->config.decoder.kv_shape(), target_cache_->rows(),
                           target_cache_->capacity(), options);
  }
}

// It is kept by the caller only once a call has ended well.
std::unique_ptr<BlockRunner> SpeculativeWriter::take_runner(const BlockRunnerParts& parts) {
  auto kept = std::move(runners_[parts.drafter == nullptr ? 0 : 1]);
  if (kept == nullptr || !kept->serves(parts)) {
    kept.reset();
    return std::make_unique<BlockRunner>(parts);
  }
  kept->restart();
  return kept;
}

std::vector<SpeculativeText> SpeculativeWriter::write(
    std::span<const std::vector<std::int64_t>> prompts, const SpeculativeRequest& request,
    const NoiseRows& noise, const SpeculativeObserver& observer) {
  if (prompts.empty()) return {};
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const std::int64_t block = block_of(request, drafter_);
  // The last block may begin at the last token that is allowed.
  make_caches(static_cast<std::int64_t>(prompts.size()),
              static_cast<std::int64_t>(longest) + request.max_new_tokens + block, block > 1);
  return write_with(prompts, nullptr, request, noise, observer);
}

KvCache& SpeculativeWriter::make_room(std::int64_t context, const SpeculativeRequest& request) {
  const std::int64_t block = block_of(request, drafter_);
  make_caches(1, context + request.max_new_tokens + block, block > 1);
  return *target_cache_;
}

void SpeculativeWriter::add_features(std::int64_t first, const Tensor& features) {
  QwenRows rows;
  rows.slots = at::arange(first, first + features.size(0),
                          at::TensorOptions().device(runtime_.device).dtype(at::kLong));
  std::tie(rows.cos, rows.sin) =
      qwen_rope_table(rows.slots, drafter_->config.decoder, runtime_.dtype);
  drafter_->write_context(rows, features, *drafter_cache_, runtime_.kernels);
}

SpeculativeText SpeculativeWriter::go_on(const TextContext& context,
                                         const SpeculativeRequest& request, const NoiseRows& noise,
                                         const SpeculativeObserver& observer) {
  make_room(context.length, request);
  return std::move(write_with({}, &context, request, noise, observer).front());
}

std::vector<SpeculativeText> SpeculativeWriter::write_with(
    std::span<const std::vector<std::int64_t>> prompts, const TextContext* context,
    const SpeculativeRequest& request, const NoiseRows& noise,
    const SpeculativeObserver& observer) {
  const TokenSampling sampling = sampling_of(request);
  const std::int64_t block = block_of(request, drafter_);
  const bool samples = sampling.temperature > 0;
  TORCH_CHECK(request.forced_acceptance <= block || block == 1, "[speculative] ",
              request.forced_acceptance, " tokens of a block of ", block);
  TORCH_CHECK(!samples || noise, "[speculative] tokens are sampled, there is no noise");
  const std::int64_t vocab = target_.config.vocab_size;
  auto runner = take_runner({.target = target_,
                             .drafter = block > 1 ? drafter_ : nullptr,
                             .runtime = runtime_,
                             .target_cache = *target_cache_,
                             .drafter_cache = block > 1 ? &*drafter_cache_ : nullptr,
                             .sampling = sampling,
                             .vocab_limit = request.vocab_limit == 0 ? vocab : request.vocab_limit,
                             .graphs = request.graphs,
                             .forced_acceptance = request.forced_acceptance});
  const WritingParts parts{prompts, context, request, noise, observer, block, samples};
  std::vector<SpeculativeText> texts = Writing(parts, *runner, runtime_.device).run();
  runners_[block > 1 ? 1 : 0] = std::move(runner);
  return texts;
}

}  // namespace diptych
