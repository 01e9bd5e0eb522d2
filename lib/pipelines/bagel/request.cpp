#include <algorithm>
#include <optional>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/session.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/tensor/noise.h"

namespace diptych {

Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator) {
  return randn({size.rows(), row_width}, generator);
}

void BagelRequest::seed(std::uint64_t seed) {
  generator = cpu_generator(seed);
  for (BagelImage& image : images) image.latent_rows.reset();
  plan.reset();
  plan_finish_reason.clear();
}

BagelReading BagelRequest::reading(const BagelCheckpoint& checkpoint) const {
  BagelReading reading(checkpoint);
  if (think) reading.add_system(answers ? kThinkBeforeAnswer : kThinkBeforePicture);
  std::size_t image = 0;
  for (const InputItem& item : items) {
    if (item.is_image()) {
      reading.add_image(images.at(image++), /*with_latent=*/!answers);
    } else {
      reading.add_text(item.text);
    }
  }
  if (think && !answers && plan) reading.add_plan(*plan);
  if (!negative_prompt.empty()) reading.add_negative(negative_prompt);
  return reading;
}

void BagelRequest::check_positions(const BagelCheckpoint& checkpoint) const {
  const BagelReading read = reading(checkpoint);
  const std::vector<BranchContexts> branches = BagelReading::branches(std::span(&read, 1));
  const bool writes = answers || (think && !plan);
  if (writes)
    check_text_positions(branches[0].samples[0], text, answers ? "answer" : "think", checkpoint);
  if (answers) return;
  const std::int64_t most = checkpoint.model.config.llm.max_position_embeddings;
  for (const BranchContexts& branch : branches) {
    const std::int64_t position = branch.samples[0].position();  // of the picture
    if (position < most) continue;
    throw InputError(Setting::of(plan ? "max_think_tokens" : "prompt"),
                     "{} positions are read in all, expected at most {}", position, most - 1);
  }
}

std::int64_t BagelRequest::text_rows(const BagelCheckpoint& checkpoint, std::int64_t kept) const {
  if (!writes()) return kept;
  const BagelReading read = reading(checkpoint);
  const std::int64_t context = BagelReading::branches(std::span(&read, 1))[0].samples[0].length();
  return context + std::max(kept, TextWriter::capacity_for(context + text.max_tokens));
}

GeneratedText write_text(BagelRequest& request, const BagelCheckpoint& checkpoint,
                         TextWriter& writer, const Runtime& runtime, Progress& progress,
                         std::optional<PrefilledContexts>& contexts) {
  const BagelReading reading = request.reading(checkpoint);
  std::vector<BranchContexts> branches = BagelReading::branches(std::span(&reading, 1));
  const bool last_reader = request.answers && runtime.trace != nullptr;
  if (!last_reader) branches.resize(1);  // an answer has one branch; a trace names all
  BagelPictures pictures{request.images, &request.generator};
  const std::int64_t own_rows = 0;  // the writer has a cache of its own
  contexts.emplace(checkpoint, std::move(branches), std::span(&own_rows, 1),
                   std::span(&pictures, 1), runtime);
  if (last_reader) trace_contexts(*contexts, runtime);
  GeneratedText written = writer.write(*contexts, 0, request.text, request.generator,
                                       request.answers ? "answer" : "think", progress);
  if (!request.answers) {
    request.plan = written.text;
    request.plan_finish_reason = written.finish_reason;
  }
  return written;
}

PrefilledContexts read_for_painting(std::span<BagelRequest> requests, const PaintRequest& paint,
                                    const BagelCheckpoint& checkpoint, const Runtime& runtime,
                                    const PrefilledContexts* earlier) {
  std::vector<BagelReading> readings;
  std::vector<BagelPictures> pictures;
  for (BagelRequest& request : requests) {
    request.check_positions(checkpoint);  // the plan has come since
    readings.push_back(request.reading(checkpoint));
    pictures.push_back({request.images, &request.generator});
  }
  const std::vector<std::int64_t> own_rows = paint.block_rows();
  PrefilledContexts contexts(
      checkpoint, paint.needed(BagelReading::branches(readings), runtime.trace != nullptr),
      own_rows, pictures, runtime, earlier);
  if (runtime.trace != nullptr) trace_contexts(contexts, runtime);
  return contexts;
}

}  // namespace diptych
