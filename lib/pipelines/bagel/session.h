// BAGEL: a loaded checkpoint and what it does with requests.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/bagel/memory_planner.h"
#include "lib/pipelines/bagel/picture_maker.h"
#include "lib/session/hashes.h"
#include "lib/session/kept_steps.h"
#include "lib/session/rehearsal.h"
#include "lib/session/session.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class BagelSession final : public Session, StepCalibrator, StepMeter, StepKeeper {
 public:
  // Opens the checkpoint; reads no weights. Throws InputError.
  BagelSession(const RunConfig& config, Log& log);

  std::unique_ptr<Job> make_job(const RunConfig& request) override;
  void load(std::span<const JobGroup> expected, Progress& progress) override;
  std::string weights_hash() override;
  bool may_share(const RunConfig& a, const RunConfig& b) const override;
  void run(const JobGroup& jobs, Progress& progress, const Results& results) override;
  Capabilities capabilities() override { return {this, this, this}; }
  Report report() const override;

  // A job of a recorded case, and a run that records its tensors in `trace` (null: off) instead of
  // a file.
  std::unique_ptr<BagelJob> make_recorded_job(const RunConfig& request,
                                              const BagelRecording& recording);
  void run_traced(BagelJobs jobs, TraceSink* trace, Progress& progress, const Results& results);
  const BagelCheckpoint& checkpoint() const { return checkpoint_; }
  const Runtime& runtime() const { return runtime_; }
  // Reads the weights, unless they are there, without a plan of what fits beside them.
  void load_unplanned(Progress& progress);

 private:
  std::size_t most_samples(const Job& job) const override;
  StepRecording record_steps(const JobGroup& jobs, Progress& progress) override;
  std::vector<StepKindWork> measure_steps(Job& job, bool measures, Progress& progress) override;
  void drop_kept_steps() override { kept_.clear(); }

  void require_attention() const;
  void require_quantizable() const;

  // Loading.
  void plan_run(BagelJobs jobs);
  void load_for(std::span<const BagelJobs> runs, Progress& progress);
  void make_ready(BagelJobs jobs);
  // `first`: what will be run first, if it is known.
  void read_weights(BagelJobs first, Progress& progress);
  FirstRun describe_first_run(BagelJobs jobs) const;
  std::vector<Rehearsal::Part> rehearsal_parts(BagelJobs jobs);
  void wait_for_rehearsed_steps();
  void finish_rehearsal();  // says how it went
  bool keeps_graphs(const BagelJob& job) const;

  // One run.
  void require_calibration(const BagelJob& job);
  void answer(BagelJob& job, TraceSink* trace, Progress& progress, const Results& results);
  void paint(BagelJobs jobs, TraceSink* trace, Progress& progress, const Results& results);
  void paint_once(MotPainter& painter, std::span<BagelTurn> turns, std::uint64_t index,
                  TraceSink* trace, Progress& progress, const Results& results);
  std::unique_ptr<MotPainter> read(std::span<BagelTurn> turns, const PaintRequest& packed,
                                   TraceSink* trace, Progress& progress, const Results& results);
  GeneratedText write(BagelTurn& turn, TraceSink* trace, Progress& progress,
                      std::optional<PrefilledContexts>& contexts);
  PrefilledContexts read_contexts(std::span<BagelTurn> turns, std::vector<BranchContexts> branches,
                                  std::vector<std::int64_t> own_rows,
                                  const PrefilledContexts* earlier, TraceSink* trace);
  ImageRows read_image(BagelTurn& turn, const ImageSegment& segment, const MotSample& block,
                       const ImageTrace& trace);
  CfgMode choose_cfg_mode(const PaintRequest& paint, const PrefilledContexts& contexts,
                          bool looked_into);
  void log_why_uncaptured(const PaintRequest& paint);

  // Captured steps that are kept.
  KeptSteps<MotPainter>::Matches has_captured(BagelJobs jobs) const;
  void give_up_kept_steps();
  std::unique_ptr<MotPainter> painter_of(const PaintRequest& paint, PrefilledContexts contexts,
                                         TraceSink* trace);
  void keep(std::unique_ptr<MotPainter> painter);

  RunConfig config_;
  Log& log_;
  Runtime runtime_;
  Report report_;
  StageClock clock_;
  BagelCheckpoint checkpoint_;
  BagelPictureMaker maker_{
      {checkpoint_, runtime_, log_, report_, clock_, [this] { finish_rehearsal(); }}};
  std::unique_ptr<BagelMemoryPlanner> memory_;
  std::unique_ptr<TextWriter> writer_;  // null until the weights are loaded
  std::unique_ptr<BackgroundHash> weights_hash_;
  std::exception_ptr why_not_loaded_;         // where load() found room for none of the runs
  bool expects_more_ = false;                 // of run()
  KeptSteps<MotPainter> kept_;                // of earlier runs, where they may serve the next
  std::map<std::string, CfgMode> cfg_modes_;  // that were measured, by describe_step()
  Rehearsal rehearsal_;                       // ends before all that it uses
};

std::unique_ptr<Session> open_bagel(const RunConfig& config, Log& log);

}  // namespace diptych
