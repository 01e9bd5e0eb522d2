// A loaded checkpoint of a diffusion transformer, and what it does with requests. Which checkpoint,
// and what a step computes, the family says.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/dit/checkpoint.h"
#include "lib/pipelines/dit/job.h"
#include "lib/session/background_hash.h"
#include "lib/session/memory/budget.h"
#include "lib/session/session.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class DitSession final : public Session, StepCalibrator, StepTimer {
 public:
  // Opens the checkpoint; reads no weights. Throws InputError.
  DitSession(const RunConfig& config, const DitOpening& opening, Log& log);

  std::unique_ptr<Job> make_job(const RunConfig& request) override;
  void load(std::span<const JobGroup> expected, Progress& progress) override;
  std::string weights_hash() override;
  bool may_share(const RunConfig& a, const RunConfig& b) const override;
  void run(const JobGroup& jobs, Progress& progress, const Results& results) override;
  Report report() const override;

  // run() of jobs that record their tensors in `trace` (null: off) instead of a file; one job where
  // there is a trace.
  void run_traced(DitJobs jobs, TraceSink* trace, Progress& progress, const Results& results);
  DitCheckpoint& checkpoint() { return *checkpoint_; }
  const Runtime& runtime() const { return runtime_; }
  Capabilities capabilities() override { return {.calibrator = this, .timer = this}; }

 private:
  struct Painted {
    Tensor latents, starts;     // float32 [jobs, C, F, h, w]
    std::int64_t forwards = 0;  // of a job
    double seconds = 0;
  };
  std::size_t most_samples(const Job& job) const override;
  StepRecording record_steps(const JobGroup& jobs, Progress& progress) override;
  double time_steps(Job& job, Progress& progress) override;
  void require_attention() const;
  void require_calibration(const DitJob& job);
  // What comes before steps: inputs, weights and texts.
  void make_ready(DitJobs jobs, Progress& progress);
  void encode_texts(DitJobs jobs, Progress& progress);
  void read_weights(DitJobs jobs, Progress& progress);
  void plan_run(DitJobs jobs);
  bool batches(DitJobs jobs, DitTurn& turn, const Tensor& x);
  void tell_sequential(const std::string& why);
  bool faster_batched(DitTurn& turn, const Tensor& x, const std::string& kind);
  // The picture or clip of that index of each job. With their step cache if they have one; `cached`
  // false: without it, to compare.
  Painted paint(DitJobs jobs, DitTurn& turn, std::uint64_t index, bool cached, TraceSink* trace,
                Progress& progress);
  CacheReport compare_uncached(DitJobs jobs, DitTurn& turn, const Painted& painted, Result& result,
                               Progress& progress);
  void make(DitJobs jobs, TraceSink* trace, Progress& progress, const Results& results);
  Result result_of(DitJobs jobs, std::size_t place, DitTurn& turn, const Painted& painted,
                   std::uint64_t index, TraceSink* trace, Progress& progress);

  RunConfig config_;
  Log& log_;
  Runtime runtime_;
  Report report_;
  StageClock clock_;
  std::unique_ptr<DitCheckpoint> checkpoint_;
  MemoryBudget budget_;
  MemoryPlan plan_;
  std::exception_ptr why_not_loaded_;              // where load() found room for none of the runs
  std::vector<AddedWeightsRecord> added_weights_;  // set once weights_hash_ has its hash
  std::unique_ptr<BackgroundHash> weights_hash_;
  std::map<std::string, bool> batched_is_faster_;  // that were measured, by the sizes of a step
  std::set<std::string> told_;                     // why guidance ran sequentially
  double denoise_seconds_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace diptych
