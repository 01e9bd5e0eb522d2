#include "lib/pipelines/mot/text.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/drafted_text.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/session/result.h"

namespace diptych {
namespace {

constexpr std::int64_t kCapacityStep = 1024;  // caches are reused, so they come in steps

DraftedStart start_of(const MotContext& context, const TextRequest& request, const MotModel& model,
                      std::int64_t block) {
  DecodeStart start;
  start.token = request.first_token;
  start.stop = model.eos;
  start.position = context.position();
  start.vocab_limit = std::min(model.tokenizer.size(), model.backbone.config.vocab_size);
  start.max_tokens = request.max_tokens;
  start.sampling = request.sampling;
  start.graph = request.graph;
  return {start, block};
}

const char* finish_reason_of(const std::vector<std::int64_t>& fed, const DecodeStart& start) {
  return std::ssize(fed) == start.max_tokens ? kFinishedByLimit : kFinishedItself;
}

}  // namespace

void check_text_positions(const MotContext& context, const TextRequest& request,
                          std::string_view stage, const MotModel& model) {
  const std::int64_t most = model.backbone.config.max_position_embeddings;
  if (context.position() + request.max_tokens <= most) return;
  // Its tokens are not those that were asked for: of Lance one more is written.
  throw InputError(Setting::of(stage == "think" ? "max_think_tokens" : "max_tokens"),
                   "{} of the model's {} positions are read, which leaves fewer for the text: {}",
                   context.position(), most, std::max<std::int64_t>(most - context.position(), 0));
}

// What a text is written from.
struct TextWriter::Task {
  const KvCache& contexts;
  std::int64_t row = 0;  // of the text's context
  DraftedStart start;
  at::Generator& generator;
  DecodeProgress progress;
};

TextWriter::TextWriter(const MotModel& model, const std::optional<OpenedDrafter>& drafter,
                       const Runtime& runtime)
    : model_(model), drafter_(drafter), runtime_(runtime) {}
TextWriter::~TextWriter() = default;

std::int64_t TextWriter::capacity_for(std::int64_t rows) {
  return (rows + kCapacityStep - 1) / kCapacityStep * kCapacityStep;
}

std::int64_t TextWriter::capacity() const {
  return (decoder_ == nullptr ? 0 : decoder_->cache().capacity()) +
         (drafted_ == nullptr ? 0 : drafted_->capacity());
}

TextDecoder& TextWriter::decoder_for(std::int64_t rows) {
  if (decoder_ == nullptr || decoder_->cache().capacity() < rows) {
    decoder_.reset();  // the old cache goes before the new one comes
    decoder_ = make_text_decoder(model_.backbone, capacity_for(rows), runtime_);
  }
  return *decoder_;
}

// Tokens that are checked at once; 1: nothing is drafted.
std::int64_t TextWriter::block_of(const TextRequest& request, const MotTrace* trace) const {
  if (trace != nullptr || request.max_tokens == 1 || !drafter_) return 1;
  return drafted_block(&*drafter_, request.block_size);
}

ContextObserver TextWriter::watch(const MotContext& context, const TextRequest& request,
                                  const MotTrace* trace) {
  const std::int64_t block = block_of(request, trace);
  if (block == 1) return {};
  decoder_.reset();  // one of the two caches is kept
  if (drafted_ == nullptr)
    drafted_ = std::make_unique<DraftedDecoder>(model_.backbone, *drafter_->loaded(), runtime_);
  return drafted_->watch(context.length(), start_of(context, request, model_, block));
}

GeneratedText TextWriter::write(const PrefilledContexts& contexts, std::int64_t sample,
                                const TextRequest& request, at::Generator& generator,
                                std::string_view stage, MotTrace* trace, Progress& progress) {
  const MotContext& context = contexts.context(0, sample);
  check_text_positions(context, request, stage, model_);
  TORCH_CHECK(model_.backbone.lm_head.defined(), "[text] lm_head is not loaded");
  const std::int64_t block = block_of(request, trace);
  const Task task{contexts.cache(), contexts.cache_row(0, sample),
                  start_of(context, request, model_, block), generator, [&](std::int64_t fed) {
                    check_interrupted();
                    progress.update(fed);
                  }};
  progress.begin(stage, request.max_tokens);
  GeneratedText written;
  if (block > 1) {
    write_drafted(written, task, block);
  } else {
    write_plain(written, task, trace);
  }
  progress.end();
  return written;
}

void TextWriter::write_drafted(GeneratedText& written, const Task& task, std::int64_t block) {
  const double began = steady_seconds();
  DraftedTokens tokens =
      drafted_->decode(task.contexts, task.row, task.start, task.generator, task.progress);
  written.seconds = steady_seconds() - began;
  written.ids = std::move(tokens.fed);
  written.finish_reason = finish_reason_of(written.ids, task.start.decode);
  written.drafting = {block, std::move(tokens.acceptance), false};
}

void TextWriter::write_plain(GeneratedText& written, const Task& task, MotTrace* trace) {
  drafted_.reset();
  const DecodeStart& start = task.start.decode;
  const std::int64_t length = task.contexts.length(task.row), rows = length + start.max_tokens;
  KvCache& cache = decoder_for(rows).cache();
  cache.copy_row(0, task.contexts, task.row, length);
  std::unique_ptr<MotTextTrace> traced;
  std::unique_ptr<TextDecoder> watched;
  if (trace != nullptr) traced = trace->text(cache, start.position);
  if (traced && traced->observers()) {
    watched = make_text_decoder(model_.backbone, rows, runtime_, traced->observers());
    watched->cache().copy_row(0, cache, 0, length);
  }
  LogitsFn on_logits;
  if (traced) on_logits = [&](std::int64_t i, const Tensor& logits) { traced->see(i, logits); };
  const double began = steady_seconds();
  TextDecoder& decoder = watched ? *watched : *decoder_;
  written.ids = decoder.decode(start, task.generator, task.progress, on_logits);
  written.seconds = steady_seconds() - began;
  written.finish_reason = finish_reason_of(written.ids, start);
  if (traced) traced->finish(written.ids, written.finish_reason == kFinishedByLimit);
}

}  // namespace diptych
