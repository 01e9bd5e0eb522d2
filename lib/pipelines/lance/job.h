// A request as Lance reads it, made once; and one run of it, with everything that is drawn.
// specs: lance.md sections 4 to 6, 9.4 and 9.5.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/pipelines/lance/checkpoint.h"
#include "lib/pipelines/lance/layout.h"
#include "lib/pipelines/lance/positions.h"
#include "lib/pipelines/lance/settings.h"
#include "lib/pipelines/mot/job.h"

namespace diptych {

// What a recorded case has otherwise than a user's request.
struct LanceRecording {
  bool is_recorded = false;  // of MotJob
  LanceUncondIds uncond_ids = LanceUncondIds::conditional;
  bool has_template = true;  // else the prompt alone, of t2i and t2v: LanceLayout::plain
  // The order in which the case gives its text and its picture or clip; a user's text comes first.
  bool keeps_order = false;
  std::optional<std::string> answer;  // of a question: part of the recorded sequence
};

// A picture or clip that is read.
struct LanceSource {
  std::filesystem::path file;
  bool is_clip = false;
  double seconds = 0;                // of a clip
  std::vector<std::int64_t> frames;  // those that are taken of a clip
  ImageSize size;                    // of the file
  LanceSourceSizes sizes;
  // Once they are read, on the CPU: float32 [3, frames, H, W].
  Tensor vae_pixels, vit_pixels;
};

struct LanceJob final : MotJob {
  // Throws as MotCheckpoint::make_job. Both must outlive it.
  LanceJob(const RunConfig& request, const LanceCheckpoint& checkpoint, const Runtime& runtime,
           Log& log, const LanceRecording& recording);

  std::unique_ptr<MotTurn> turn() const override;
  std::unique_ptr<MotTrace> trace(TraceSink& sink) const override;
  std::optional<ClipShape> clip_shape() const override;

  // Latent rows of source and target, for all of which noise is drawn.
  std::int64_t drawn_rows() const { return layout.latent_rows(); }
  // What is read before an answer is written; the layout itself for other tasks.
  const LanceLayout& read_layout() const { return cut_ ? *cut_ : layout; }
  bool draws_on_cuda() const;

  const LanceCheckpoint& checkpoint;
  const Runtime& runtime;
  LanceTask task;
  LanceSettings settings;
  LanceLayout layout;  // of the conditional branch, whole
  LanceUncondIds uncond_ids;
  std::optional<LanceSource> source;
  // Of a case: the start noise, float32 [rows, row width], and the posterior noise [48, t, h, w].
  Tensor recorded_noise, recorded_posterior;

 private:
  void decode_inputs() override;
  std::optional<LanceSource> plan_source() const;
  LancePrompt prompt(const LanceRecording& recording) const;
  std::vector<LanceGrid> grids(const LancePrompt& prompt) const;
  LanceGrid target_grid() const;
  void lay_out(const LanceRecording& recording);
  InputWork work_of_source() const;
  void plan_painting();
  void warn_of_other_speed(Log& log) const;
  void check_sizes() const;

  std::optional<LanceLayout> cut_;  // of a question
};

class LanceTurn final : public MotTurn {
 public:
  explicit LanceTurn(const LanceJob& job)
      : MotTurn(job), own_(job), seed_(job.config().sampling.seed) {}

  void reseed(std::uint64_t seed) override;
  ImageRows read_image(const ImageSegment& segment, const MotSample& block, const std::string& name,
                       MotTrace* trace) override;
  std::string text_of(const std::vector<std::int64_t>& fed) const override;
  void keep_plan(const GeneratedText& written) override;
  Tensor start_latent(Log& log, MotTrace* trace) override;
  Media decode(const Tensor& latent, const std::string& number, Log& log,
               MotTrace* trace) const override;

 private:
  Tensor draw_noise(Log& log) const;
  Tensor draw_posterior(at::IntArrayRef shape) const;
  const Tensor& encode_source(MotTrace* trace);
  const Tensor& look(MotTrace* trace);

  const LanceJob& own_;
  std::uint64_t seed_;
  Tensor source_latent_;  // float32 [t * h * w, row width] on the device, once encoded
  Tensor patches_;        // [patches, hidden], once looked at
};

}  // namespace diptych
