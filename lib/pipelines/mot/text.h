// Text from a MoT backbone: answers, and the plan of think mode. specs: bagel.md section 6 and
// lance.md section 11; ByteDance-Seed/Bagel @056b5fd, modeling/bagel/bagel.py (generate_text).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/log.h"
#include "lib/pipelines/drafting/drafter.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/sampling/token_sampler.h"
#include "lib/session/drafting_report.h"

namespace diptych {

struct TextRequest {
  std::int64_t first_token = 0;    // fed first: the begin marker, or the last token of the prompt
  std::int64_t max_tokens = 1000;  // fed to the model, the first among them
  TokenSampling sampling;
  bool graph = true;            // as DecodeStart::graph
  std::int64_t block_size = 0;  // of drafts, as DraftSettings
};

struct GeneratedText {
  std::vector<std::int64_t> ids;  // fed tokens, first_token first; without the end marker
  double seconds = 0;             // of decoding
  std::string finish_reason;      // kFinishedItself or kFinishedByLimit
  std::optional<DraftingReport> drafting;
};

// Throws InputError where the context and max_tokens exceed the model's positions. `stage` as
// TextWriter::write.
void check_text_positions(const MotContext& context, const TextRequest& request,
                          std::string_view stage, const MotModel& model);

class DraftedDecoder;
class TextDecoder;

// Keeps its caches (and on CUDA its graph) from one text to the next.
class TextWriter {
 public:
  // `drafter`: opened and loaded before it is needed; must outlive it.
  TextWriter(const MotModel& model, const std::optional<OpenedDrafter>& drafter,
             const Runtime& runtime);
  ~TextWriter();
  // Rows of the cache for a context and a text of `rows` together: they come in steps, as the cache
  // is kept.
  static std::int64_t capacity_for(std::int64_t rows);
  std::int64_t capacity() const;  // of the caches that are kept, 0 = none
  // What is to look on while the first context of a text is read. Empty where the text is not
  // drafted: without a drafter, in blocks of one token, and where it is traced.
  ContextObserver watch(const MotContext& context, const TextRequest& request,
                        const MotTrace* trace);
  // Needs the backbone's lm_head, and that watch() has seen what it is to. Continues sample
  // `sample` of the first context. `generator` is drawn from only where sampling is on. `stage`:
  // "think" or "answer", for the progress line. `trace`: null where off. Throws as
  // check_text_positions.
  GeneratedText write(const PrefilledContexts& contexts, std::int64_t sample,
                      const TextRequest& request, at::Generator& generator, std::string_view stage,
                      MotTrace* trace, Progress& progress);

 private:
  struct Task;                                  // of one call
  TextDecoder& decoder_for(std::int64_t rows);  // with a cache of at least so many
  std::int64_t block_of(const TextRequest& request, const MotTrace* trace) const;
  void write_plain(GeneratedText& written, const Task& task, MotTrace* trace);
  void write_drafted(GeneratedText& written, const Task& task, std::int64_t block);

  MotModel model_;
  const std::optional<OpenedDrafter>& drafter_;
  const Runtime& runtime_;
  std::unique_ptr<TextDecoder> decoder_;
  std::unique_ptr<DraftedDecoder> drafted_;
};

}  // namespace diptych
