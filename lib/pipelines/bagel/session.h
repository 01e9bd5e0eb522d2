// BAGEL: a loaded checkpoint and what it does with requests.
#pragma once

#include <optional>

#include "lib/pipelines/bagel/reading.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/pipelines/mot/text.h"
#include "lib/session/session.h"

namespace diptych {

// Start noise of one picture: the next draw of its generator -> float32 [rows, row_width].
Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator);

// One request on its way: what is read, and the generator all its draws come from, in the official
// order: posterior noise of every picture, sampled text, start noise.
struct BagelRequest {
  std::vector<InputItem> items;    // texts and pictures in order
  std::vector<BagelImage> images;  // prepared, in order
  bool answers = false, think = false;
  std::string negative_prompt;
  TextRequest text;  // of the answer or the plan
  at::Generator generator;
  std::optional<std::string> plan;  // once written; may be empty
  std::string plan_finish_reason;

  // Starts over with another seed: what was drawn before is forgotten.
  void seed(std::uint64_t seed);
  // With the plan, where it is there.
  BagelReading reading(const BagelCheckpoint& checkpoint) const;
  // Throws InputError where what is read, together with what is still to be written or painted
  // behind it, exceeds the model's positions.
  void check_positions(const BagelCheckpoint& checkpoint) const;
  bool writes() const { return answers || think; }
  // Cache rows of the text that it writes: the context as it is read for that, which stays until
  // the picture's contexts are there, and the writer's own. `kept`: TextWriter::capacity().
  std::int64_t text_rows(const BagelCheckpoint& checkpoint, std::int64_t kept) const;
};

// Writes the answer, or the plan of think mode. `contexts` is left with what was read for it.
GeneratedText write_text(BagelRequest& request, const BagelCheckpoint& checkpoint,
                         TextWriter& writer, const Runtime& runtime, Progress& progress,
                         std::optional<PrefilledContexts>& contexts);

// Reads every request for painting. `earlier`: as PrefilledContexts, of a single request.
PrefilledContexts read_for_painting(std::span<BagelRequest> requests, const PaintRequest& paint,
                                    const BagelCheckpoint& checkpoint, const Runtime& runtime,
                                    const PrefilledContexts* earlier = nullptr);

std::unique_ptr<Session> open_bagel(const RunConfig& config, Log& log);

}  // namespace diptych
