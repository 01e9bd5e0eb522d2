// What only some sessions can do. A verb that needs one asks for it, and says where it is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/log.h"
#include "lib/runtime/kernel_work.h"
#include "lib/session/job.h"

namespace diptych {

struct StepRecording;  // lib/sampling/step_cache/step_calibration.h

// Measures what a step cache is calibrated with.
class StepCalibrator {
 public:
  virtual ~StepCalibrator() = default;
  // How many samples the steps of a job give at most: a change for every guidance branch that two
  // of them in a row need.
  virtual std::size_t most_samples(const Job& job) const = 0;
  // Paints the jobs, a picture each, one after another, and records how their steps change: what
  // StepCalibration is fitted to. The jobs have no step cache, and serve nothing else afterwards.
  // Session::report().weights_hash is known then. Throws as Session::run().
  virtual StepRecording record_steps(const JobGroup& jobs, Progress& progress) = 0;
};

// Denoise steps of a picture that compute the same guidance branches, and so the same work.
struct StepKindWork {
  std::int64_t contexts = 0;     // branches; those that have read the same are counted once
  std::int64_t steps = 0;        // of a picture
  std::vector<KernelWork> work;  // of one: what the decoder's layers have to do
  double floor_seconds = 0;      // of one: its products and attention alone; 0: not measured
  bool operator==(const StepKindWork&) const = default;
};

// Tells what denoise steps have to do, and the least time that it takes.
class StepMeter {
 public:
  virtual ~StepMeter() = default;
  // The steps of the picture that this job paints: what they have to do. With `measures` also how
  // long their products and their attention take alone, launched as in the picture but as one CUDA
  // graph without anything between them. Reads as Session::run() does and paints nothing. Throws as
  // run(), and InputError where the weights to multiply with are not all on the device.
  virtual std::vector<StepKindWork> measure_steps(Job& job, bool measures, Progress& progress) = 0;
};

// Tells how long denoising takes as the session's ranks are grouped now.
class StepTimer {
 public:
  virtual ~StepTimer() = default;
  // Seconds of all steps of this job's picture or video, by timing one step of each kind that the
  // family tells apart: of diffusion transformers the first step alone. All ranks that share the
  // job call it. Reads as Session::run() does and paints nothing. Throws as run().
  virtual double time_steps(Job& job, Progress& progress) = 0;
};

// Keeps the steps that a run has captured, and their memory, for the next one.
class StepKeeper {
 public:
  virtual ~StepKeeper() = default;
  virtual void drop_kept_steps() = 0;  // the next run captures its own
};

struct Capabilities {
  StepCalibrator* calibrator = nullptr;
  StepMeter* meter = nullptr;
  StepKeeper* keeper = nullptr;
  StepTimer* timer = nullptr;
};

}  // namespace diptych
