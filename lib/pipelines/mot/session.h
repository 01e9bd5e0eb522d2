// A loaded checkpoint on a MoT backbone, and what it does with requests. Which checkpoint, and what
// its requests are made of, the family says.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/drafting/drafter.h"
#include "lib/pipelines/mot/checkpoint.h"
#include "lib/pipelines/mot/job.h"
#include "lib/pipelines/mot/memory_planner.h"
#include "lib/pipelines/mot/picture_maker.h"
#include "lib/runtime/handoff.h"
#include "lib/session/background_hash.h"
#include "lib/session/kept_steps.h"
#include "lib/session/rehearsal.h"
#include "lib/session/session.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class MotSession final : public Session, StepCalibrator, StepMeter, StepKeeper, StepTimer {
 public:
  // Opens the checkpoint; reads no weights, but begins to where the run says load_ahead. Throws
  // InputError.
  MotSession(const RunConfig& config, const MotOpening& opening, Log& log);

  std::unique_ptr<Job> make_job(const RunConfig& request) override;
  void load(std::span<const JobGroup> expected, Progress& progress) override;
  std::string weights_hash() override;
  bool may_share(const RunConfig& a, const RunConfig& b) const override;
  void run(const JobGroup& jobs, Progress& progress, const Results& results) override;
  Capabilities capabilities() override { return {this, this, this, this}; }
  // Where the other stage is another process, it takes the next jobs by itself.
  bool reads_ahead() const override { return stage_ == StageRole::paints; }
  Report report() const override;

  // run() of jobs that record their tensors in `trace` (null: off) instead of a file.
  void run_traced(MotJobs jobs, MotTrace* trace, Progress& progress, const Results& results);
  const MotCheckpoint& checkpoint() const { return *checkpoint_; }
  const Runtime& runtime() const { return runtime_; }
  // Reads the weights, unless they are there, without a plan of what fits beside them.
  void load_unplanned(Progress& progress);

 private:
  // session.cpp
  const QwenConfig& llm_config() const { return checkpoint_->mot().backbone.config; }
  bool loads_all() const;
  void require_attention() const;
  void require_quantizable() const;

  // session_steps.cpp
  std::size_t most_samples(const Job& job) const override;
  StepRecording record_steps(const JobGroup& jobs, Progress& progress) override;
  std::vector<StepKindWork> measure_steps(Job& job, bool measures, Progress& progress) override;
  void drop_kept_steps() override { kept_.clear(); }
  double time_steps(Job& job, Progress& progress) override;
  // Of a run that paints nothing: the weights are there and the job is read.
  std::unique_ptr<MotPainter> read_alone(Job& job, Progress& progress);

  // session_load.cpp
  void get_ready(MotJobs jobs, Progress& progress);  // loads what is missing for these
  void load_for(std::span<const MotJobs> runs, Progress& progress);
  // `is_planned`: the plan was just made for exactly these jobs.
  void make_ready(MotJobs jobs, bool is_planned);
  void apply_plan(const MotJob& job);
  // `first`: what will be run first, if it is known.
  void read_weights(MotJobs first, Progress& progress);
  void warn_of_slow_weights(bool offloads);
  void begin_hash();

  // session_rehearsal.cpp
  FirstRun describe_first_run(MotJobs jobs) const;
  std::vector<Rehearsal::Part> rehearsal_parts(MotJobs jobs);
  void wait_for_rehearsed_steps();

  // session_run.cpp
  static MotTurns turns_of(MotJobs jobs);
  bool keeps_graphs(const MotJob& job) const;
  void require_calibration(const MotJob& job);
  void answer(MotJob& job, MotTrace* trace, Progress& progress, const Results& results);
  void paint(MotJobs jobs, MotTrace* trace, Progress& progress, const Results& results);
  static bool reads_anew(MotJobs jobs);
  static void seed(MotTurns& turns, std::int64_t index, bool reads);
  void hand_over(MotJobs jobs, Progress& progress);
  PrefilledContexts take_over(MotTurns& turns, const PaintRequest& paint, const Results& results);
  void paint_once(MotPainter& painter, MotTurns& turns, std::uint64_t index, MotTrace* trace,
                  Progress& progress, const Results& results);
  // `taken`: from the stage that reads, where there is one.
  std::unique_ptr<MotPainter> read(MotTurns& turns, const PaintRequest& packed, bool taken,
                                   MotTrace* trace, Progress& progress, const Results& results);
  PrefilledContexts read_all(MotTurns& turns, const PaintRequest& paint, MotTrace* trace,
                             Progress& progress, const Results& results);
  GeneratedText write(const std::unique_ptr<MotTurn>& turn, MotTrace* trace, Progress& progress,
                      std::optional<PrefilledContexts>& contexts);
  void warn_of_limit(const MotJob& job, const GeneratedText& written);
  // `request`: all but how pictures are read.
  PrefilledContexts read_contexts(std::span<const std::unique_ptr<MotTurn>> turns,
                                  ContextsRequest request);
  CfgMode choose_cfg_mode(const PaintRequest& paint, const PrefilledContexts& contexts,
                          bool looked_into);
  void log_why_uncaptured(const PaintRequest& paint);

  // Captured steps that are kept.
  KeptSteps<MotPainter>::Matches has_captured(MotJobs jobs) const;
  void give_up_kept_steps();
  std::unique_ptr<MotPainter> painter_of(const PaintRequest& paint, PrefilledContexts contexts,
                                         MotTrace* trace);
  void keep(std::unique_ptr<MotPainter> painter);

  RunConfig config_;
  std::optional<StageRole> stage_;  // set where another session does the other stage
  Log& log_;
  Runtime runtime_;
  Report report_;
  StageClock clock_;
  std::unique_ptr<MotCheckpoint> checkpoint_;
  MotPictureMaker maker_{runtime_, log_, report_, clock_, rehearsal_};
  std::optional<OpenedDrafter> drafter_;  // once there is a text to write
  std::unique_ptr<MotMemoryPlanner> memory_;
  std::unique_ptr<TextWriter> writer_;  // null until the weights are loaded
  std::unique_ptr<BackgroundHash> weights_hash_;
  std::exception_ptr why_not_loaded_;         // where load() found room for none of the runs
  bool expects_more_ = false;                 // of run()
  KeptSteps<MotPainter> kept_;                // of earlier runs, where they may serve the next
  std::map<std::string, CfgMode> cfg_modes_;  // that were measured, by describe_step()
  Rehearsal rehearsal_;                       // ends before all that it uses
};

}  // namespace diptych
