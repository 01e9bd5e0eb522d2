// What a session can tell of denoise steps without a request for a picture: how they change, what
// they have to do, how long they take.
#include <algorithm>

#include <c10/core/InferenceMode.h>

#include "lib/pipelines/mot/cfg_mode.h"
#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/session.h"
#include "lib/pipelines/mot/step_floor.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/make_runtime.h"

namespace diptych {

std::size_t MotSession::most_samples(const Job& job) const {
  const auto& own = dynamic_cast<const MotJob&>(job);
  const PaintRequest& paint = own.paint;
  std::size_t samples = 0;
  for (std::int64_t i = 1; i < paint.schedule.updates(); ++i) {
    const std::size_t terms = std::min(paint.terms_in(i - 1), paint.terms_in(i));
    // Without pictures the image branch reads what cond does, and is one with it.
    samples += 1 + (own.looks ? terms : std::min<std::size_t>(terms, 1));
  }
  return samples;
}

StepRecording MotSession::record_steps(const JobGroup& jobs, Progress& progress) {
  drop_kept_steps();
  std::vector<MotJob*> own = mot_jobs(jobs);
  std::vector<MotJobs> runs;
  for (MotJob*& job : own) {
    TORCH_CHECK(!job->paint.caches(), "[calibrate] steps are recorded without a step cache");
    job->records_steps = true;
    job->read_inputs();
    runs.emplace_back(&job, 1);
  }
  load_for(runs, progress);
  StepChangeRecorder recorder;
  for (const MotJobs run : runs) {
    make_ready(run, /*is_planned=*/false);
    MotTurns turns = turns_of(run);
    const std::unique_ptr<MotPainter> painter =
        read(turns, packed_request(run), false, nullptr, progress, {});
    recorder.begin_picture();
    painter->observe([&](std::int64_t step, std::int64_t context, const Tensor& input,
                         const Tensor& output) { recorder.record(step, context, input, output); });
    maker_.paint_latent(*painter, turns.front()->start_latent(log_, nullptr), StepCaching::off,
                        nullptr, progress);
  }
  report_.weights_hash = weights_hash();
  clock_.lap(report_, "hash", runtime_.device);
  return recorder.recording();
}

std::unique_ptr<MotPainter> MotSession::read_alone(Job& job, Progress& progress) {
  // The plan is of a run without others beside it.
  if (memory_->budget().limited) drop_kept_steps();
  MotJob* own = &dynamic_cast<MotJob&>(job);
  const MotJobs jobs(&own, 1);
  own->read_inputs();
  get_ready(jobs, progress);
  MotTurns turns = turns_of(jobs);
  return read(turns, packed_request(jobs), false, nullptr, progress, {});
}

double MotSession::time_steps(Job& job, Progress& progress) {
  const c10::InferenceMode inference;
  drop_kept_steps();  // what is measured captures steps, too
  const std::unique_ptr<MotPainter> painter = read_alone(job, progress);
  clock_.lap(report_, "prefill", runtime_.device);
  Log quiet(LogLevel::quiet);
  // Its attention notes what served these steps, which the picture's record does not tell.
  const Runtime apart = make_runtime(config_, quiet);
  const double seconds =
      diptych::time_steps(checkpoint_->mot(), painter->request(), painter->contexts(), apart);
  clock_.lap(report_, "measure", runtime_.device);
  return seconds;
}

std::vector<StepKindWork> MotSession::measure_steps(Job& job, bool measures, Progress& progress) {
  std::unique_ptr<MotPainter> painter = read_alone(job, progress);
  std::vector<StepKindWork> kinds = measure_step_kinds(checkpoint_->mot(), painter->request(),
                                                       painter->contexts(), runtime_, measures);
  keep(std::move(painter));
  return kinds;
}

}  // namespace diptych
