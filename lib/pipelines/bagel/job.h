// A request as BAGEL reads it, made once; and one run of it, with everything that is drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/image.h"
#include "lib/pipelines/bagel/reading.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/pipelines/mot/text.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/job.h"
#include "lib/session/result.h"

namespace diptych {

// What a recorded case has otherwise than a user's request.
struct BagelRecording {
  std::optional<ImageTransforms> transforms;  // of input pictures
  // As the official code's batches: one generator draws for all pictures, in their order, and the
  // `global` renorm takes its norms over all of them.
  bool official_batch = false;
  bool is_traced = false;  // by run_traced(), whatever the request says
  Tensor noise;            // the recorded start noise, float32 [rows, row width]
};

struct BagelJob final : Job {
  using Job::Job;
  // Throws InputError for whatever the checkpoint and what is on this machine cannot serve. Logs
  // once where texts are to be written without their kernel.
  static std::unique_ptr<BagelJob> make(const RunConfig& request, const BagelCheckpoint& checkpoint,
                                        const Runtime& runtime, Log& log,
                                        const BagelRecording& recording = {});
  void read_inputs() override;

  bool answers() const { return config().answers(); }
  bool is_traced() const { return !config().trace.empty() || recording.is_traced; }
  bool writes() const { return answers() || config().think; }
  // Whether what is read depends on the seed, so that each picture of the request reads anew.
  bool reading_draws() const;

  std::vector<BagelImage> images;              // in order; pixels once they are read
  std::vector<InputRecord> inputs;             // likewise
  BagelReading reading;                        // without the plan
  TextRequest text;                            // the answer or the plan
  PaintRequest paint;                          // this picture alone
  std::optional<StepCalibration> calibration;  // of TeaCache
  Tensor noise;  // given by a file, once read: float32 [rows, row width]
  BagelRecording recording;
  bool records_steps = false;  // how they change

  LatentSize size() const { return paint.sizes.empty() ? LatentSize{} : paint.sizes.front(); }

 private:
  const BagelConfig* model_ = nullptr;
  ImageTransforms transforms_;
  bool inputs_read_ = false;
};

using BagelJobs = std::span<BagelJob* const>;

// Throws InputError where what is read, together with what is still to be written or painted behind
// it, exceeds the model's positions. `planned`: the plan is among it.
void check_positions(const BagelJob& job, const BagelReading& reading, bool planned,
                     const MotModel& model);

// Of jobs that are painted together.
PaintRequest packed_request(BagelJobs jobs);

// One run of a job, or one picture of it. All draws come from one generator, in the official order:
// posterior noise of every picture, sampled text, start noise.
struct BagelTurn {
  explicit BagelTurn(const BagelJob& of) : job(&of), images(of.images), reading(of.reading) {}

  // Starts over with another seed: what was drawn before is forgotten.
  void seed(std::uint64_t seed);
  void keep_plan(const GeneratedText& written, const MotModel& model);
  // Of the next picture, float32 [rows, row_width]: as given, or the next draw.
  Tensor start_noise(std::int64_t row_width, Log& log);

  const BagelJob* job;
  std::vector<BagelImage> images;  // encoded and drawn as they are needed
  BagelReading reading;            // with the plan, where it is there
  at::Generator generator;
  std::optional<std::string> plan;  // once written; may be empty
  std::string plan_finish_reason;
};

// Start noise of one picture: the next draw of its generator -> float32 [rows, row_width].
Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator);

}  // namespace diptych
