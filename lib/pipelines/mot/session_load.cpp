// The weights of a session: where they lie, so that what is expected fits, and reading them.
#include <algorithm>
#include <functional>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/session.h"

namespace diptych {
namespace {

void log_quantization(Log& log, Quantization kind, const QwenConfig& llm, at::ScalarType dtype) {
  if (kind == Quantization::none) return;
  const auto bytes = [&](const MatrixFormat& format) {
    return 2 * llm.num_hidden_layers * QwenLayer::matrix_bytes(llm, format);
  };
  log.info("{} stay {}",
           quantization_note({dtype, kind}, "the projections of the decoder layers", bytes,
                             "embeddings, norms, biases, lm_head, vision, latent projections and "
                             "time embedder"),
           dtype == at::kFloat ? "float32" : "bfloat16");
}

}  // namespace

void MotSession::load(std::span<const JobGroup> expected, Progress& progress) {
  expects_more_ = expected.size() > 1;
  if (writer_ != nullptr) return;
  MotLoadedParts parts;
  for (const JobGroup& group : expected) {
    parts = parts | memory_->needed_parts(mot_jobs(group));
  }
  bool planned = false;
  for (const JobGroup& group : expected) {
    if (planned && !memory_->budget().device) break;  // on the CPU nothing is chosen
    check_interrupted();
    try {
      memory_->plan_loading(mot_jobs(group), parts, planned);
      planned = true;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception&) {  // run() will say so, of these requests alone
      why_not_loaded_ = std::current_exception();
    }
  }
  if (planned) read_weights(mot_jobs(expected.front()), progress);
}

void MotSession::load_unplanned(Progress& progress) {
  if (writer_ == nullptr) read_weights({}, progress);
}

void MotSession::begin_hash() {
  weights_hash_ = std::make_unique<BackgroundHash>(
      std::bind_front(&MotCheckpoint::weights_hash, checkpoint_.get()));
}

std::string MotSession::weights_hash() {
  if (weights_hash_ == nullptr && why_not_loaded_) std::rethrow_exception(why_not_loaded_);
  if (weights_hash_ == nullptr && writer_ != nullptr) begin_hash();
  TORCH_CHECK(weights_hash_ != nullptr, "[session] the hash of weights that were not loaded");
  return weights_hash_->get();
}

void MotSession::apply_plan(const MotJob& job) {
  const MemoryPlan& plan = memory_->plan();
  checkpoint_->strips = plan.choice.strips;
  report_.strips = plan.choice.strips;
  const MotLayers& layers = checkpoint_->mot().backbone.layers;
  report_.offload = layers.streams({.und = true}) ? "all" : "none";
  log_.debug("memory planned: {}", plan.summary());
  if (!memory_->budget().device) return;
  if (plan.choice.strips && job.config().vae_tiling == TilingWish::automatic)
    log_.info(
        "the autoencoder works in strips (--vae-tiling on): the same picture except for rounding");
}

// Unless they are there: chooses where the weights lie, so that each of the runs fits.
void MotSession::load_for(std::span<const MotJobs> runs, Progress& progress) {
  if (writer_ != nullptr) return;
  MotLoadedParts parts;
  for (const MotJobs run : runs) {
    parts = parts | memory_->needed_parts(run);
  }
  for (const MotJobs& run : runs) memory_->plan_loading(run, parts, &run != &runs.front());
  read_weights(runs.front(), progress);
}

void MotSession::get_ready(MotJobs jobs, Progress& progress) {
  const bool is_first = writer_ == nullptr;
  load_for(std::span(&jobs, 1), progress);
  // With offloaded weights the other choices can differ from those before loading.
  make_ready(jobs, is_first && !memory_->plan().choice.offload);
}

// What is left before these jobs can run, once the weights are there.
void MotSession::make_ready(MotJobs jobs, bool is_planned) {
  clock_.start();
  if (!is_planned) memory_->plan_run(jobs, writer_->capacity());
  apply_plan(*jobs.front());
  if (!kept_.empty())
    kept_.make_room(memory_->room_beside_kept_step(), has_captured(jobs),
                    memory_->plan().kept_step_bytes());
  const MotLoadedParts parts = memory_->needed_parts(jobs);
  if (parts.vision) checkpoint_->load_vision();
  if (parts.head) {
    checkpoint_->load_head();
    if (drafter_) drafter_->load({runtime_.quantization, runtime_.kernels.policy});
  }
  clock_.lap(report_, "load", runtime_.device);
}

// Where not all weights have a place in the memory of the device or of this machine.
void MotSession::warn_of_slow_weights(bool offloads) {
  const MemoryBudget& budget = memory_->budget();
  const MemoryPlan& plan = memory_->plan();
  if (plan.mapped > 0 && budget.host && plan.peak() + plan.mapped > *budget.host) {
    log_.warning(
        "{:.1f} GiB of the weights are used from the file and do not fit in memory beside the run: "
        "every step will read from the disk",
        to_gib(plan.mapped));
  }
  if (budget.device && offloads && config_.offload == OffloadWish::automatic)
    log_.warning("the weights do not fit: some wait in host memory (--offload layers)");
}

void MotSession::read_weights(MotJobs first, Progress& progress) {
  clock_.start();
  const MemoryBudget& budget = memory_->budget();
  const auto offload = mot_offload(memory_->plan().choice.offload, llm_config().num_hidden_layers);
  if (budget.limited)
    limit_memory(runtime_.device, static_cast<std::uint64_t>(*budget.device - kCudaBytes));
  warn_of_slow_weights(offload.has_value());
  constexpr std::uint64_t kMebi = 1 << 20;
  std::vector<Weights> sources = checkpoint_->sources();
  std::uint64_t total = 0;
  for (const Weights& weights : sources) total += weights.total_bytes();
  progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
  std::uint64_t done = 0;
  const auto count = [&](std::uint64_t bytes) {
    progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
  };
  for (Weights& weights : sources) weights.on_read(count);
  log_.mark("memory is planned");
  // What is read ahead of the plan lies on the device; a plan that offloads reads anew.
  if (!checkpoint_->is_loading() || offload) checkpoint_->begin_loading(offload);
  log_.mark("weights have their places");
  const auto why = why_not_rehearsed(describe_first_run(first), runtime_.device, budget);
  if (why) {
    log_.debug("not rehearsed: {}", *why);
  } else {
    rehearsal_.start(rehearsal_parts(first));
  }
  checkpoint_->finish_loading();
  log_.mark("weights are read");
  if (!why) wait_for_rehearsed_steps();
  log_quantization(log_, config_.quantization, llm_config(), runtime_.dtype);
  for (Weights& weights : sources) weights.on_read({});
  progress.update(static_cast<std::int64_t>(total / kMebi));  // parts that may come later
  progress.end();
  writer_ = std::make_unique<TextWriter>(checkpoint_->mot(), drafter_, runtime_);
  // Of two stages the one that paints says what the weights were.
  if (stage_ != StageRole::reads) begin_hash();
  clock_.lap(report_, "load", runtime_.device);
}

// Whether a painter has captured the steps of these jobs; with --cfg-mode auto in either mode.
KeptSteps<MotPainter>::Matches MotSession::has_captured(MotJobs jobs) const {
  const bool either_mode = !jobs.front()->config().cfg_mode;
  return [paint = packed_request(jobs), either_mode](const MotPainter& painter) mutable {
    if (either_mode) paint.cfg_mode = painter.request().cfg_mode;
    return painter.has_captured(paint);
  };
}

}  // namespace diptych
