// What the first result of a session needs only once, done beside the load of its weights
// (lib/session/rehearsal.h).
#include <algorithm>
#include <utility>

#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/session.h"
#include "lib/pipelines/mot/step_capture.h"

namespace diptych {

FirstRun MotSession::describe_first_run(MotJobs jobs) const {
  FirstRun run;
  run.reads_files = !checkpoint_->is_dummy;
  if (jobs.empty()) return run;
  const MotJob& first = *jobs.front();
  const auto reads_more = [](const MotJob* job) {
    return job->writes() || !job->input_work.empty();
  };
  const auto is_watched = [](const MotJob* job) { return job->is_traced() || job->records_steps; };
  run.is_known = true;
  run.paints_at_once = stage_ != StageRole::reads && std::ranges::none_of(jobs, reads_more);
  run.is_alone = runtime_.ranks == nullptr;
  run.has_cfg_mode = first.config().cfg_mode.has_value();
  run.captures_steps = std::ranges::none_of(jobs, is_watched) && !first.paint.caches() &&
                       captures_steps(first.paint, checkpoint_->mot(), runtime_);
  run.keeps_steps_fits = memory_->room_beside_kept_step() >= 0;
  return run;
}

std::vector<Rehearsal::Part> MotSession::rehearsal_parts(MotJobs jobs) {
  struct Shared {
    MotTurns turns;
    PaintRequest paint;
    std::optional<PrefilledContexts> contexts;
  };
  const auto shared = std::make_shared<Shared>();
  shared->turns = turns_of(jobs);
  shared->paint = packed_request(jobs);
  shared->paint.keep_graphs = keeps_graphs(*jobs.front());
  const auto read = [this, shared] {
    shared->contexts = read_contexts(shared->turns, packed_reading(shared->turns, shared->paint));
  };
  const auto capture = [this, shared] {
    auto painter = std::make_unique<MotPainter>(checkpoint_->mot(), shared->paint,
                                                std::move(*shared->contexts), runtime_);
    painter->prepare();
    keep(std::move(painter));
  };
  const auto decode = [this, strips = memory_->plan().choice.strips, sizes = shared->paint.sizes] {
    for (const LatentSize& size : sizes) checkpoint_->rehearse_decoding(size, strips);
  };
  return {{"prefill", read}, {"steps", capture}, {"decoding", decode}};
}

// The autoencoder's part, the last, may go on beside prefill and steps in bfloat16: its TF32, which
// holds for the whole process, leaves these as they are.
void MotSession::wait_for_rehearsed_steps() {
  const bool decoding_goes_on = runtime_.dtype == at::kBFloat16 || !runtime_.vae_tf32;
  if (!rehearsal_.wait(decoding_goes_on ? 2 : 3)) drop_kept_steps();
}

}  // namespace diptych
