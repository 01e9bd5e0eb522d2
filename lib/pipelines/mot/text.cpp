#include "lib/pipelines/mot/text.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/session/result.h"

namespace diptych {
namespace {

constexpr std::int64_t kCapacityStep = 1024;  // caches are reused, so they come in steps

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

TextDecoder& TextWriter::decoder_for(std::int64_t rows) {
  if (decoder_ == nullptr || decoder_->cache().capacity() < rows) {
    decoder_.reset();  // the old cache goes before the new one comes
    decoder_ = make_text_decoder(model_.backbone, capacity_for(rows), runtime_);
  }
  return *decoder_;
}

GeneratedText TextWriter::write(const PrefilledContexts& contexts, std::int64_t sample,
                                const TextRequest& request, at::Generator& generator,
                                std::string_view stage, MotTrace* trace, Progress& progress) {
  const MotContext& context = contexts.context(0, sample);
  const MotBackbone& backbone = model_.backbone;
  check_text_positions(context, request, stage, model_);
  TORCH_CHECK(backbone.lm_head.defined(), "[text] lm_head is not loaded");
  const std::int64_t rows = context.length() + request.max_tokens;
  KvCache& cache = decoder_for(rows).cache();
  cache.copy_row(0, contexts.cache(), contexts.cache_row(0, sample), context.length());

  std::unique_ptr<MotTextTrace> traced;
  std::unique_ptr<TextDecoder> watched;
  if (trace != nullptr) traced = trace->text(cache, context.position());
  if (traced && traced->observers()) {
    watched = make_text_decoder(backbone, rows, runtime_, traced->observers());
    watched->cache().copy_row(0, cache, 0, context.length());
  }
  DecodeStart start;
  start.token = request.first_token;
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
  TextDecoder& decoder = watched ? *watched : *decoder_;
  written.ids = decoder.decode(start, generator, on_token, on_logits);
  written.seconds = steady_seconds() - began;
  progress.end();
  const bool by_limit = std::ssize(written.ids) == request.max_tokens;
  written.finish_reason = by_limit ? kFinishedByLimit : kFinishedItself;
  if (traced) traced->finish(written.ids, by_limit);
  return written;
}

}  // namespace diptych
