#include "lib/pipelines/mot/text.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/session/result.h"

namespace diptych {
namespace {

constexpr std::int64_t kCapacityStep = 1024;  // caches are reused, so they come in steps

// decode.*: the logits are kept for the first three and the last token, as recordings have them.
class DecodeTrace {
 public:
  explicit DecodeTrace(TraceSink& trace) : trace_(trace) {}

  void start(const KvCache& cache, std::int64_t position) {
    const std::int64_t length = cache.length(0);
    trace_.record("decode.start_kv_len", at::full({1}, length, at::kLong));
    trace_.record("decode.start_position", at::full({1}, position, at::kLong));
    for (std::int64_t layer = 0; layer < cache.shape().layers; ++layer) {
      const auto record = [&](const char* what, const Tensor& rows) {
        trace_.record(fmt::format("decode.kv.layer{:02}.{}", layer, what),
                      rows[0].narrow(0, 0, length));
      };
      record("key", cache.keys(layer));
      record("value", cache.values(layer));
    }
  }

  void see(std::int64_t index, const Tensor& logits) {
    const Tensor values = logits.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    const Tensor best = std::get<0>(values.topk(2));
    margins_.push_back(best[0].item<float>() - best[1].item<float>());
    if (index > static_cast<std::int64_t>(kFirst)) {
      steps_.pop_back();
      logits_.pop_back();
    }
    steps_.push_back(index);
    logits_.push_back(values);
  }

  void finish(const std::vector<std::int64_t>& ids) {
    trace_.record("decode.token_ids", at::tensor(ids, at::kLong));
    trace_.record("decode.margin", at::tensor(margins_, at::kFloat));
    trace_.record("decode.logits_steps", at::tensor(steps_, at::kLong));
    trace_.record("decode.logits", at::stack(logits_));
  }

 private:
  static constexpr std::size_t kFirst = 3;
  TraceSink& trace_;
  std::vector<float> margins_;
  std::vector<std::int64_t> steps_;
  std::vector<Tensor> logits_;
};

}  // namespace

void check_text_positions(const MotContext& context, const TextRequest& request,
                          std::string_view stage, const MotModel& model) {
  const std::int64_t most = model.backbone.config.max_position_embeddings;
  if (context.position() + request.max_tokens <= most) return;
  throw InputError(Setting::of(stage == "think" ? "max_think_tokens" : "max_tokens"),
                   "{} positions are read and {} tokens may follow, expected at most {}",
                   context.position(), request.max_tokens, most);
}

TextWriter::TextWriter(const MotModel& model, const Runtime& runtime)
    : model_(model), runtime_(runtime) {}
TextWriter::~TextWriter() = default;

std::int64_t TextWriter::capacity_for(std::int64_t rows) {
  return (rows + kCapacityStep - 1) / kCapacityStep * kCapacityStep;
}

std::int64_t TextWriter::capacity() const {
  return decoder_ == nullptr ? 0 : decoder_->cache().capacity();
}

GeneratedText TextWriter::write(const PrefilledContexts& contexts, std::int64_t sample,
                                const TextRequest& request, at::Generator& generator,
                                std::string_view stage, TraceSink* trace, Progress& progress) {
  const MotContext& context = contexts.context(0, sample);
  const MotBackbone& backbone = model_.backbone;
  check_text_positions(context, request, stage, model_);
  TORCH_CHECK(backbone.lm_head.defined(), "[text] lm_head is not loaded");
  const std::int64_t rows = context.length() + request.max_tokens;
  if (decoder_ == nullptr || decoder_->cache().capacity() < rows) {
    decoder_.reset();  // the old cache goes before the new one comes
    decoder_ = make_text_decoder(backbone, capacity_for(rows), runtime_);
  }
  KvCache& cache = decoder_->cache();
  cache.copy_row(0, contexts.cache(), contexts.cache_row(0, sample), context.length());

  std::optional<DecodeTrace> traced;
  if (trace != nullptr) traced.emplace(*trace).start(cache, context.position());
  DecodeStart start;
  start.token = model_.bos;
  start.stop = model_.eos;
  start.position = context.position();
  start.vocab_limit = std::min(model_.tokenizer.size(), backbone.config.vocab_size);
  start.max_tokens = request.max_tokens;
  start.sampling = request.sampling;
  start.graph = request.graph;
  progress.begin(stage, request.max_tokens);
  const auto on_token = [&](std::int64_t fed) {
    check_interrupted();
    progress.update(fed);
  };
  LogitsFn on_logits;
  if (traced) on_logits = [&](std::int64_t i, const Tensor& logits) { traced->see(i, logits); };
  const double began = steady_seconds();
  GeneratedText written;
  written.ids = decoder_->decode(start, generator, on_token, on_logits);
  written.seconds = steady_seconds() - began;
  progress.end();
  if (traced) traced->finish(written.ids);
  written.text = text_of(model_.tokenizer, written.ids);
  const bool by_limit = std::ssize(written.ids) == request.max_tokens;
  written.finish_reason = by_limit ? kFinishedByLimit : kFinishedItself;
  return written;
}

std::string text_of(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  constexpr std::string_view kBegin = "<|im_start|>", kEnd = "<|im_end|>";
  std::string text = tokenizer.decode(ids);
  text = text.substr(0, text.find(kEnd));
  const std::size_t begin = text.find(kBegin);
  if (begin == std::string::npos) return text;
  text.erase(0, begin + kBegin.size());
  return text.substr(0, text.find(kBegin));
}

}  // namespace diptych
