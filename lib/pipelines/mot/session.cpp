// Opening, loading and what a session offers. One run: session_run.cpp.
#include "lib/pipelines/mot/session.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/config/fields.h"
#include "lib/pipelines/mot/cfg_mode.h"
#include "lib/pipelines/mot/settings.h"
#include "lib/pipelines/mot/step_floor.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/make_runtime.h"

namespace diptych {
namespace {

// What was quantised, what that saves, and what stays as it was.
void log_quantization(Log& log, Quantization kind, const QwenConfig& llm, at::ScalarType dtype) {
  if (kind == Quantization::none) return;
  const auto mebi = [&](Quantization q) {
    constexpr double kMebi = 1 << 20;
    return static_cast<double>(2 * llm.num_hidden_layers *
                               QwenLayer::matrix_bytes(llm, {dtype, q})) /
           kMebi;
  };
  log.info(
      "{}: the projections of the decoder layers take {:.1f} MiB instead of {:.1f}; embeddings, "
      "norms, biases, lm_head, vision, latent projections and time embedder stay {}",
      kind == Quantization::fp8 ? "fp8" : "int8", mebi(kind), mebi(Quantization::none),
      dtype == at::kFloat ? "float32" : "bfloat16");
}

// This family's jobs: each session is given what it has made itself.
std::vector<MotJob*> own_jobs(const JobGroup& jobs) {
  std::vector<MotJob*> own;
  for (Job* job : jobs) own.push_back(&dynamic_cast<MotJob&>(*job));
  return own;
}

}  // namespace

MotSession::MotSession(const RunConfig& config, const MotOpening& opening, Log& log)
    : config_(config),
      log_(log),
      runtime_(make_runtime(config, log, kSelfAttention, [&] { return opening.stored(config); })) {
  config_.dtype = runtime_.dtype == at::kBFloat16 ? DtypeChoice::bfloat16 : DtypeChoice::float32;
  reset_peak_memory(runtime_.device);
  report_.device = device_description(runtime_.device);
  report_.dtype = runtime_.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  report_.quantization = name_of(config.quantization);
  report_.tuning = runtime_.tuning.name();
  if (runtime_.device.is_cpu()) report_.threads = at::get_num_threads();
  log.debug("device {}, {}, kernels {}, attention {} and {}", report_.device, report_.dtype,
            name_of(config.kernels), runtime_.read_attention.of(AttentionRole::self).name(),
            runtime_.paint_attention.of(AttentionRole::self).name());
  clock_.start();
  log.mark("the device is chosen");
  checkpoint_ = opening.open(config_, runtime_, log_);
  log.mark("tokenizer and headers are read");
  report_.vae_dtype = checkpoint_->vae_dtype();
  require_attention();
  require_quantizable();
  draft_model_ = opening.drafting(config_).draft_model;
  memory_ = std::make_unique<MotMemoryPlanner>(config_, *checkpoint_, drafter_, runtime_);
  check_offload(config.offload, memory_->budget());
}

// A backend asked for by name that cannot serve these heads is refused before anything is loaded.
void MotSession::require_attention() const {
  const AttentionKind kind{runtime_.device, runtime_.dtype, llm_config().head_dim};
  const auto require = [&](const StageBackends& backends, std::string_view field,
                           const StageAttention& stage) {
    const AttentionBackend& backend = backends.of(AttentionRole::self);
    if (const auto reason = backend.kind_unsupported(kind))
      throw InputError(attention_setting(field, stage), "attention backend {}: {}", backend.name(),
                       *reason);
  };
  require(runtime_.read_attention, "read_attention", config_.read_attention);
  require(runtime_.paint_attention, "paint_attention", config_.paint_attention);
}

// Likewise widths that a GPU's products in e4m3 do not take.
void MotSession::require_quantizable() const {
  constexpr std::int64_t kStep = 16;
  if (config_.quantization != Quantization::fp8 || !runtime_.device.is_cuda()) return;
  const QwenConfig& llm = llm_config();
  for (const auto& [key, width] : {std::pair{"hidden_size", llm.hidden_size},
                                   std::pair{"intermediate_size", llm.intermediate_size}}) {
    if (width % kStep != 0)
      throw InputError(Setting::of("quantization", "fp8"),
                       "llm_config.json: {}: found {}, expected a multiple of {}", key, width,
                       kStep);
  }
}

std::unique_ptr<Job> MotSession::make_job(const RunConfig& request) {
  std::unique_ptr<MotJob> job = checkpoint_->make_job(request, runtime_, log_);
  if (job->writes() && !draft_model_.empty() && !drafter_)
    drafter_.emplace(draft_model_, llm_config(), config_.load_format == LoadFormat::dummy,
                     runtime_);
  if (!job->answers()) {
    for (const std::string& text : idle_settings(request, job->paint)) log_.warning_once(text);
  }
  return job;
}

bool MotSession::may_share(const RunConfig& a, const RunConfig& b) const {
  const auto alone = [](const RunConfig& c) {
    // TeaCache decides by all rows of a forward: a picture would depend on what it is packed
    // with.
    return c.answers() || c.sampling.batch_count != 1 || !c.trace.empty() ||
           c.cache_mode == StepCacheMode::teacache;
  };
  return !alone(a) && !alone(b) && may_share_forwards(a, b);
}

void MotSession::load(std::span<const JobGroup> expected, Progress& progress) {
  expects_more_ = expected.size() > 1;
  if (writer_ != nullptr) return;
  MotLoadedParts parts;
  for (const JobGroup& group : expected) {
    parts = parts | memory_->needed_parts(own_jobs(group));
  }
  bool planned = false;
  for (const JobGroup& group : expected) {
    if (planned && !memory_->budget().device) break;  // on the CPU nothing is chosen
    check_interrupted();
    try {
      memory_->plan_loading(own_jobs(group), parts, planned);
      planned = true;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception&) {  // run() will say so, of these requests alone
      why_not_loaded_ = std::current_exception();
    }
  }
  if (planned) read_weights(own_jobs(expected.front()), progress);
}

void MotSession::load_unplanned(Progress& progress) {
  if (writer_ == nullptr) read_weights({}, progress);
}

bool MotSession::is_stage(StageRole role) const {
  return config_.stage_end != nullptr && config_.stage_end->role() == role;
}

void MotSession::begin_hash() {
  weights_hash_ = std::make_unique<BackgroundHash>(
      [this](const std::stop_token& stop) { return checkpoint_->weights_hash(stop); });
}

std::string MotSession::weights_hash() {
  if (weights_hash_ == nullptr && why_not_loaded_) std::rethrow_exception(why_not_loaded_);
  if (weights_hash_ == nullptr && writer_ != nullptr) begin_hash();
  TORCH_CHECK(weights_hash_ != nullptr, "[session] the hash of weights that were not loaded");
  return weights_hash_->get();
}

// What was loaded stays where it is.
void MotSession::plan_run(MotJobs jobs) {
  memory_->plan_run(jobs, writer_->capacity());
  const MemoryPlan& plan = memory_->plan();
  checkpoint_->use_strips(plan.choice.strips);
  report_.strips = plan.choice.strips;
  const MotLayers& layers = checkpoint_->mot().backbone.layers;
  report_.offload = layers.streams({.und = true}) ? "all" : "none";
  log_.debug("memory planned: {}", plan.summary());
  if (!memory_->budget().device) return;
  if (plan.choice.strips && jobs.front()->config().vae_tiling == TilingWish::automatic)
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

// What is left before these jobs can run, once the weights are there.
void MotSession::make_ready(MotJobs jobs) {
  clock_.start();
  plan_run(jobs);
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
  std::function<void()> placed;
  if (const auto why = why_not_rehearsed(describe_first_run(first), runtime_.device, budget)) {
    log_.debug("not rehearsed: {}", *why);
  } else {
    placed = [&] {
      log_.mark("weights have their places, the rehearsal begins");
      rehearsal_.start(rehearsal_parts(first));
    };
  }
  log_.mark("memory is planned, loading begins");
  checkpoint_->load(offload, placed);
  log_.mark("weights are read");
  if (placed) wait_for_rehearsed_steps();
  log_quantization(log_, config_.quantization, llm_config(), runtime_.dtype);
  for (Weights& weights : sources) weights.on_read({});
  progress.update(static_cast<std::int64_t>(total / kMebi));  // parts that may come later
  progress.end();
  writer_ = std::make_unique<TextWriter>(checkpoint_->mot(), drafter_, runtime_);
  // Of two stages the one that paints says what the weights were.
  if (!is_stage(StageRole::reads)) begin_hash();
  clock_.lap(report_, "load", runtime_.device);
}

void MotSession::run(const JobGroup& jobs, Progress& progress, const Results& results) {
  std::vector<MotJob*> own = own_jobs(jobs);
  const RunConfig& first = own.front()->config();
  if (first.trace.empty()) return run_traced(own, nullptr, progress, results);
  TraceSink sink(first.trace_filter);
  run_traced(own, own.front()->trace(sink).get(), progress, results);
  if (sink.tensors().empty()) {
    log_.warning("--trace-filter {}: matches no tensor of this run",
                 fmt::join(first.trace_filter, ";"));
  }
  sink.write(first.trace);
}

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
  std::vector<MotJob*> own = own_jobs(jobs);
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
    const MotJob* job = run.front();
    make_ready(run);
    MotTurns turns = turns_of(run);
    turns.front()->seed(job->config().sampling.seed);
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
  load_for(std::span(&jobs, 1), progress);
  make_ready(jobs);
  MotTurns turns = turns_of(jobs);
  turns.front()->seed(own->config().sampling.seed);
  return read(turns, packed_request(jobs), false, nullptr, progress, {});
}

double MotSession::time_steps(Job& job, Progress& progress) {
  const c10::InferenceMode inference;
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

Report MotSession::report() const {
  Report report = report_;
  report.steps_per_second = maker_.steps_per_second();
  if (report.token_seconds > 0)
    report.tokens_per_second = static_cast<double>(report.tokens) / report.token_seconds;
  report.peak_bytes = peak_memory_bytes(runtime_.device);
  return report;
}

}  // namespace diptych
