// A request as a model on a MoT backbone reads it, made once; and one run of it, with everything
// that is drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/mot/memory.h"
#include "lib/pipelines/mot/paint_request.h"
#include "lib/pipelines/mot/text.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/job.h"
#include "lib/session/result.h"

namespace diptych {

class MotTurn;

// What reading an input picture or clip takes, for the memory plan.
struct InputWork {
  FrameSize encoded;         // by the autoencoder; none where it is only looked at
  std::int64_t patches = 0;  // that the vision model sees at once
};

struct MotJob : Job {
  using Job::Job;

  virtual std::unique_ptr<MotTurn> turn() const = 0;
  virtual std::unique_ptr<MotTrace> trace(TraceSink& sink) const = 0;

  bool answers() const { return config().answers(); }
  bool is_traced() const { return !config().trace.empty() || is_recorded; }
  bool writes() const { return answers() || config().think; }
  LatentSize size() const { return paint.sizes.empty() ? LatentSize{} : paint.sizes.front(); }

  // What each guidance branch reads, cond first, of this one sample and without a plan: of a
  // picture those that are needed, of an answer all.
  std::vector<BranchContexts> branches;
  bool looks = false;  // its inputs are pictures or clips
  // What is read depends on the seed, so that each picture of the request reads anew.
  bool reading_draws = false;
  std::int64_t decoded_frames = 1;             // of the result
  std::vector<InputRecord> inputs;             // in order, once they are read
  std::vector<InputWork> input_work;           // likewise, from the start
  TextRequest text;                            // the answer or the plan
  PaintRequest paint;                          // this picture alone
  std::optional<StepCalibration> calibration;  // of TeaCache
  Tensor noise;                // given by a file, once read: float32 [rows, row width]
  bool records_steps = false;  // how they change
  // A recorded case, which is traced whatever the request says.
  bool is_recorded = false;
  // As the official code's batches: one generator draws for all pictures, in their order, and the
  // `global` renorm takes its norms over all of them.
  bool official_batch = false;
};

using MotJobs = std::span<MotJob* const>;
// The jobs that a session gets: each is given what it has made itself.
inline std::vector<MotJob*> mot_jobs(const JobGroup& jobs) {
  std::vector<MotJob*> own;
  for (Job* job : jobs) own.push_back(&dynamic_cast<MotJob&>(*job));
  return own;
}

// One run of a job, or one picture of it, which begins with the seed of the job. The job must
// outlive it.
class MotTurn {
 public:
  virtual ~MotTurn() = default;

  const MotJob& job() const { return *job_; }
  // Starts over with another seed: what was drawn before is forgotten.
  virtual void seed(std::uint64_t seed);
  // The next picture has this seed; what was read stays.
  virtual void reseed(std::uint64_t seed);
  virtual ImageRows read_image(const ImageSegment& segment, const MotSample& block,
                               const std::string& name, MotTrace* trace) = 0;
  // The text of fed tokens, as the official code shows it.
  virtual std::string text_of(const std::vector<std::int64_t>& fed) const = 0;
  virtual void keep_plan(const GeneratedText& written) = 0;
  // Of the next picture: noise, and what has none, float32 [rows, row width].
  virtual Tensor start_latent(Log& log, MotTrace* trace) = 0;
  // The picture or clip of a final latent; a clip is decoded when it is taken (Clip::decode), which
  // this must outlive. `number`: of its names in the trace, "" = it is the only one. Throws
  // RunError for what is not finite.
  virtual Media decode(const Tensor& latent, const std::string& number, Log& log,
                       MotTrace* trace) const = 0;

  at::Generator generator;  // of everything that follows the seed
  // As MotJob::branches, with the plan where it is there.
  std::vector<BranchContexts> branches;
  std::optional<std::string> plan;  // once written; may be empty
  std::string plan_finish_reason;
  std::vector<std::int64_t> plan_ids;  // fed tokens, as GeneratedText has them

 protected:
  explicit MotTurn(const MotJob& job);

 private:
  const MotJob* job_;
};

using MotTurns = std::vector<std::unique_ptr<MotTurn>>;

// Throws InputError where what is read, together with what is still to be written or painted behind
// it, exceeds the model's positions. `branches`: of the job's one sample. `planned`: the plan is
// among it.
void check_positions(const MotJob& job, const std::vector<BranchContexts>& branches, bool planned,
                     const MotModel& model);

// Before anything is loaded: texts may be written without a graph, but not without a word. Throws
// InputError where kernels are asked for.
void require_text_kernel(const QwenConfig& llm, const Runtime& runtime, Log& log);

}  // namespace diptych
