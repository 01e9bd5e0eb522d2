// A request as a diffusion transformer reads it, made once; and one run of some.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/pipelines/dit/texts.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/job.h"
#include "lib/session/result.h"
#include "lib/tensor/trace.h"

namespace diptych {

class DitCheckpoint;

// Pixels of what is made: of each frame.
struct DitFrames {
  std::int64_t frames = 1, height = 0, width = 0;
};

struct DitJob : Job {
  using Job::Job;

  // From one step to the next, of all branches: those that a calibration can compare.
  virtual std::int64_t changes() const { return std::max<std::int64_t>(updates - 1, 0) * branches; }
  bool is_traced() const { return !config().trace.empty() || is_recorded; }
  // What the request says of step caches, with TeaCache by a calibration. Throws as
  // read_calibration(), and for several processes.
  void plan_step_cache(const DitCheckpoint& checkpoint, const Runtime& runtime);

  std::vector<TokenIds> texts;  // the prompt's, and behind it the negative one's if it is used
  DitFrames size;               // of the result
  std::int64_t updates = 0;     // of the latent
  std::int64_t branches = 1;    // guidance branches of a step, at most
  std::optional<std::string> why_sequential;   // whatever was asked for
  std::vector<InputRecord> inputs;             // once they are read
  Tensor noise;                                // given by a file, once read: float32 [C, F, h, w]
  StepCacheConfig step_cache;                  // none: also where the family has one of its own
  std::optional<StepCalibration> calibration;  // of step_cache
  bool records_steps = false;                  // a calibration is measured
  bool is_recorded = false;                    // a recorded case, which is traced whatever it says
};

using DitJobs = std::span<DitJob* const>;

// As the family's own. All of them are.
template <typename Own>
std::vector<const Own*> jobs_as(DitJobs jobs) {
  std::vector<const Own*> own;
  for (const DitJob* job : jobs) own.push_back(&dynamic_cast<const Own&>(*job));
  return own;
}

// One run of jobs that share their forwards: one latent each, all of one size, with the same steps.
class DitTurn {
 public:
  virtual ~DitTurn() = default;

  // Everything that steps read beside the latent: texts and pictures become contexts. `seed`: of
  // what is drawn before the noise.
  virtual void read(std::uint64_t seed, TraceSink* trace) = 0;
  virtual bool reading_draws() const { return false; }  // so that each seed reads anew
  // The latents that the steps begin with, float32 [jobs, C, F, h, w] on the device; and the noise
  // of them. `seeds`: of each job.
  virtual Tensor start(std::span<const std::uint64_t> seeds, TraceSink* trace) = 0;
  // Whether branches of a step share a forward.
  virtual void use_mode(bool batched) = 0;
  // The velocities of both branches at the first step, for a measurement.
  virtual void time_step(const Tensor& x) = 0;
  // The latents behind update i.
  virtual Tensor step(const Tensor& x, std::int64_t i, TraceSink* trace) = 0;
  // Behind the last update.
  virtual Tensor finish(const Tensor& x) { return x; }
  // latent [C, F, h, w]: of one job.
  virtual Media decode(const Tensor& latent, Log& log, TraceSink* trace) = 0;
  virtual std::int64_t forwards() const = 0;  // branch forwards of all jobs so far
  // What the log says of the steps behind the last one: "TeaCache computed 3 of 4 steps". "" =
  // nothing.
  virtual std::string step_note() const { return {}; }
  // Whether the job's step cache serves, if it has one. It does unless told otherwise.
  virtual void use_cache(bool on) = 0;
  // Records how steps change, all of them computed. The recorder must outlive this.
  virtual void record_steps(StepChangeRecorder& recorder) = 0;
};

}  // namespace diptych
