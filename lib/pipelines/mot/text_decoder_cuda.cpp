#include "lib/pipelines/mot/text_decoder_cuda.h"

#include <algorithm>
#include <array>
#include <optional>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/models/qwen/rope.h"
#include "lib/runtime/capture.h"

namespace diptych {
namespace {

// Tokens launched at once; the host looks at them while the next ones run, so a text ends at most
// two of these late.
constexpr std::int64_t kChunk = 8;

// The kernels that read the number of keys on the device.
class GraphAttention final : public AttentionBackend {
 public:
  GraphAttention(Tensor key_count, KernelPolicy kernels)
      : key_count_(std::move(key_count)), kernels_(kernels) {}
  std::string_view name() const override { return "decode"; }
  std::optional<std::string> kind_unsupported(const AttentionKind&) const override {
    return std::nullopt;  // missing_text_kernel() has asked
  }
  Tensor forward(const AttentionCall& call) const override {
    return decode_attention({call.q, call.k, call.v, key_count_, {}, call.scale}, kernels_);
  }
  LinearOperand forward_projected(QkNormRope rope, AttentionCall call, Quantization,
                                  KernelPolicy) const override {
    const RopeAttention attention = {std::move(rope), key_count_, {}, call.scale};
    return {rope_attention(attention, kernels_).flatten(1), {}};
  }

 private:
  Tensor key_count_;
  KernelPolicy kernels_;
};

// Waits for a stream however a scope is left: what was launched may still use tensors whose owner
// goes when an exception passes.
class WaitAtEnd {
 public:
  explicit WaitAtEnd(c10::cuda::CUDAStream stream) : stream_(stream) {}
  WaitAtEnd(const WaitAtEnd&) = delete;
  WaitAtEnd& operator=(const WaitAtEnd&) = delete;
  // An error of the device is said by the next call that looks for one.
  ~WaitAtEnd() { C10_CUDA_IGNORE_ERROR(cudaStreamSynchronize(stream_.stream())); }

 private:
  c10::cuda::CUDAStream stream_;
};

bool same(const TokenSampling& a, const TokenSampling& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p;
}

class GraphDecoder : public TextDecoder {
 public:
  GraphDecoder(const MotBackbone& model, std::int64_t capacity, const Runtime& runtime)
      : model_(model),
        runtime_(runtime),
        options_(at::TensorOptions().device(runtime.device).dtype(runtime.dtype)),
        cache_(model.config.kv_shape(), 1, capacity, options_),
        stream_(capture_stream(runtime.device.index())) {
    const auto numbers = at::TensorOptions().device(runtime.device).dtype(at::kLong);
    token_ = at::zeros({1}, numbers);
    position_ = at::zeros({1}, numbers);
    slot_ = at::zeros({1}, numbers);
    place_ = at::zeros({1}, numbers);
    fed_ = at::zeros({kChunk}, numbers);
    key_count_ = at::zeros({1}, numbers.dtype(at::kInt));
    logits_ = at::zeros({model.config.vocab_size}, options_);
    // A text's positions never exceed its cache rows.
    std::tie(cos_, sin_) =
        qwen_rope_table(at::arange(capacity, numbers), model.config, runtime.dtype);
    attention_.emplace(key_count_, runtime.kernels);
    for (Tensor& host : fed_on_host_) {
      host = at::zeros({kChunk}, at::TensorOptions(at::kLong).pinned_memory(true));
    }
  }

  KvCache& cache() override { return cache_; }

  std::vector<std::int64_t> decode(const DecodeStart& start, at::Generator& generator,
                                   const DecodeProgress& progress,
                                   const LogitsFn& logits) override {
    // The context was written on the caller's stream.
    synchronize(runtime_.device);
    const c10::cuda::CUDAStreamGuard guard(stream_);
    const WaitAtEnd wait(stream_);
    std::optional<RacesAhead> race;
    if (start.sampling.temperature > 0) race.emplace(generator, model_.config.vocab_size);
    if (race && !race_.defined()) make_races();
    if (start.graph) capture(start);
    begin(start);
    const std::vector<std::int64_t> fed = run(start, race, progress, logits);
    stream_.synchronize();
    return fed;
  }

 private:
  void begin(const DecodeStart& start) {
    token_.fill_(start.token);
    position_.fill_(start.position);
    slot_.fill_(cache_.length(0));
    key_count_.fill_(cache_.length(0) + 1);
    place_.zero_();
  }

  // One token: everything that a step reads and changes is on the device.
  void step(const DecodeStart& start) {
    fed_.index_copy_(0, place_, token_);
    MotPlan plan;
    plan.und_rows = 1;
    plan.cos = cos_.index_select(0, position_);
    plan.sin = sin_.index_select(0, position_);
    plan.slots = slot_;
    plan.cache_rows = 1;
    plan.causal = true;
    const MotRows out = model_.forward(plan, model_.embed(token_.clamp_min(0)), cache_, *attention_,
                                       runtime_.kernels);
    logits_.copy_(linear(out.und, model_.lm_head, {}, runtime_.kernels)[0]);
    const Tensor draws =
        start.sampling.temperature > 0 ? race_.index_select(0, place_)[0] : Tensor();
    token_.copy_(next_token(logits_, start.sampling, draws, start.vocab_limit));
    position_.add_(1);
    slot_.add_(1);
    key_count_.add_(1);
    place_.add_(1);
  }

  void make_races() {
    const std::array<std::int64_t, 2> shape = {kChunk, model_.config.vocab_size};
    race_ = at::ones(shape, options_.dtype(at::kFloat));
    for (Tensor& host : race_on_host_)
      host = at::empty(shape, at::TensorOptions(at::kFloat).pinned_memory(true));
  }

  void capture(const DecodeStart& start) {
    if (graph_ && same(captured_, start.sampling) && captured_limit_ == start.vocab_limit) return;
    graph_.reset();
    // Libraries make their handles and workspaces at first use, which no graph may hold.
    begin(start);
    step(start);
    begin(start);
    stream_.synchronize();
    auto graph = capture_graph(at::cuda::graph_pool_handle(), [&] { step(start); });
    captured_ = start.sampling;
    captured_limit_ = start.vocab_limit;
    graph_ = std::move(graph);  // last: a graph that is there is whole
  }

  std::vector<std::int64_t> run(const DecodeStart& start, std::optional<RacesAhead>& race,
                                const DecodeProgress& progress, const LogitsFn& logits) {
    std::vector<std::int64_t> fed;
    if (logits) return run_watched(start, race, progress, logits);
    std::int64_t launched = 0;
    for (std::int64_t turn = 0;; ++turn) {
      const std::int64_t count = std::min(kChunk, start.max_tokens - launched);
      if (count > 0) launch(turn, count, start, race);
      launched += count;
      // While this chunk runs, the one before is looked at.
      if (turn > 0 && take(turn - 1, start, race, fed)) return fed;
      if (count == 0) return fed;
      progress(static_cast<std::int64_t>(fed.size()));
    }
  }

  // Token by token, each waited for: no logits behind the last one.
  std::vector<std::int64_t> run_watched(const DecodeStart& start, std::optional<RacesAhead>& race,
                                        const DecodeProgress& progress, const LogitsFn& logits) {
    std::vector<std::int64_t> fed;
    for (std::int64_t turn = 0; turn < start.max_tokens; ++turn) {
      progress(turn);
      if (turn > 0 && token_.item<std::int64_t>() == start.stop) break;
      launch(turn, 1, start, race);
      take(turn, start, race, fed);
      logits(turn, logits_);
    }
    return fed;
  }

  void launch(std::int64_t turn, std::int64_t count, const DecodeStart& start,
              std::optional<RacesAhead>& race) {
    const auto half = static_cast<std::size_t>(turn % 2);
    if (race) {
      if (turn > 1) done_[half].synchronize();  // its draws have been read
      for (std::int64_t i = 0; i < count; ++i) race_on_host_[half][i].copy_(race->next());
      race_.copy_(race_on_host_[half], /*non_blocking=*/true);
    }
    place_.zero_();
    for (std::int64_t i = 0; i < count; ++i) {
      if (start.graph) {
        graph_->replay();
      } else {
        step(start);
      }
    }
    fed_on_host_[half].copy_(fed_, /*non_blocking=*/true);
    counts_[half] = count;
    done_[half].record(stream_);
  }

  // Appends a chunk's tokens; true where the text ends in it. The races of what is launched behind
  // the end stay unused: the generator goes on where a decoder that waits for each token leaves it.
  bool take(std::int64_t turn, const DecodeStart& start, std::optional<RacesAhead>& race,
            std::vector<std::int64_t>& fed) {
    const std::size_t before = fed.size();
    const bool ended = append(turn, start, fed);
    if (race) race->use(fed.size() - before);
    return ended;
  }

  bool append(std::int64_t turn, const DecodeStart& start, std::vector<std::int64_t>& fed) {
    const auto half = static_cast<std::size_t>(turn % 2);
    done_[half].synchronize();
    const auto* tokens = fed_on_host_[half].const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < counts_[half]; ++i) {
      if (tokens[i] == start.stop && !fed.empty()) return true;
      fed.push_back(tokens[i] == kNoToken ? read_token(fed_on_host_[half][i]) : tokens[i]);
    }
    return static_cast<std::int64_t>(fed.size()) == start.max_tokens;
  }

  const MotBackbone& model_;
  const Runtime& runtime_;
  at::TensorOptions options_;
  KvCache cache_;
  c10::cuda::CUDAStream stream_;
  Tensor token_, position_, slot_, place_;  // int64 [1]; place: within the chunk
  Tensor key_count_;                        // int32 [1]
  Tensor fed_;                              // int64 [kChunk]
  Tensor logits_;                           // [vocab]
  Tensor race_;                             // float32 [kChunk, vocab], where sampled
  Tensor cos_, sin_;                        // float32 [capacity, head_dim / 2]
  std::optional<GraphAttention> attention_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  TokenSampling captured_;
  std::int64_t captured_limit_ = 0;
  std::array<Tensor, 2> fed_on_host_, race_on_host_;
  std::array<std::int64_t, 2> counts_{};
  std::array<at::cuda::CUDAEvent, 2> done_;
};

}  // namespace

std::unique_ptr<TextDecoder> make_graph_decoder(const MotBackbone& model, std::int64_t capacity,
                                                const Runtime& runtime) {
  const bool serves = runtime.device.is_cuda() && runtime.kernels != KernelPolicy::reference &&
                      runtime.read_attention.of(AttentionRole::self).name() == "auto" &&
                      !model.layers.streams({.und = true}) &&
                      !missing_text_kernel(model.config, runtime);
  if (!serves) return nullptr;
  return std::make_unique<GraphDecoder>(model, capacity, runtime);
}

}  // namespace diptych
