#include "lib/pipelines/dit/session.h"

#include <algorithm>
#include <tuple>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/config/fields.h"
#include "lib/pipelines/calibration.h"
#include "lib/session/cache_report.h"
#include "lib/session/cfg_mode.h"
#include "lib/session/hashes.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/finite.h"

namespace diptych {
namespace {

std::vector<DitJob*> own_jobs(const JobGroup& jobs) {
  std::vector<DitJob*> own;
  for (Job* job : jobs) own.push_back(&dynamic_cast<DitJob&>(*job));
  return own;
}

// "832x480, 33 frames", of several jobs "3 x 832x480, 33 frames"
std::string describe_size(DitJobs jobs) {
  const DitFrames& size = jobs.front()->size;
  return fmt::format("{}{}x{}, {} frame{}",
                     jobs.size() == 1 ? "" : fmt::format("{} x ", jobs.size()), size.width,
                     size.height, size.frames, size.frames == 1 ? "" : "s");
}

// [C, F, h, w] -> [rows, C]
Tensor rows_of(const Tensor& latent) {
  return latent.permute({1, 2, 3, 0}).flatten(0, 2).to(at::kCPU).contiguous();
}

MemoryWishes wishes_of(const RunConfig& session, const DitJob& job) {
  MemoryWishes wishes;
  wishes.offload = session.offload;
  wishes.tiling = job.config().vae_tiling;
  if (job.why_sequential || job.branches == 1) {
    wishes.batched = false;
  } else if (job.config().cfg_mode) {
    wishes.batched = job.config().cfg_mode == CfgMode::batched;
  }
  return wishes;
}

}  // namespace

DitSession::DitSession(const RunConfig& config, const DitOpening& opening, Log& log)
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
  clock_.start();
  checkpoint_ = opening.open(config_, runtime_, log_);
  log.mark("tokenizer and headers are read");
  report_.vae_dtype = checkpoint_->vae_dtype();
  require_attention();
  budget_ = MemoryBudget::of(config.max_vram, runtime_);
  check_offload(config.offload, budget_);
}

// A backend asked for by name that cannot serve these heads is refused before anything is loaded.
void DitSession::require_attention() const {
  const AttentionBackend& backend = runtime_.paint_attention.of(AttentionRole::self);
  const AttentionKind kind{runtime_.device, runtime_.dtype, checkpoint_->head_dim()};
  if (const auto reason = backend.kind_unsupported(kind))
    throw InputError(attention_setting("paint_attention", config_.paint_attention),
                     "attention backend {}: {}", backend.name(), *reason);
}

bool DitSession::may_share(const RunConfig& a, const RunConfig& b) const {
  const auto alone = [this](const RunConfig& c) {
    // What is given conditions every step, and draws. TeaCache decides for a whole forward.
    return runtime_.ranks != nullptr || c.reads_images() || c.reads_videos() ||
           c.sampling.batch_count != 1 || !c.trace.empty() || c.cache_report ||
           c.cache_mode == StepCacheMode::teacache;
  };
  const auto size = [](const RunConfig& c) {
    const bool clip = c.makes == MediaKind::clip;
    return std::tuple(clip, c.sampling.width, c.sampling.height, clip ? c.sampling.frames : 1);
  };
  return !alone(a) && !alone(b) && size(a) == size(b) && may_share_forwards(a, b);
}

std::unique_ptr<Job> DitSession::make_job(const RunConfig& request) {
  return checkpoint_->make_job(request, log_);
}

void DitSession::load(std::span<const JobGroup> expected, Progress& progress) {
  if (checkpoint_->is_loaded()) return;
  std::vector<DitJob*> jobs;
  for (const JobGroup& group : expected)
    std::ranges::copy(own_jobs(group), std::back_inserter(jobs));
  for (const DitJob* job : jobs) checkpoint_->texts().expect(job->texts);
  if (jobs.empty()) return;
  try {
    read_weights(jobs, progress);
  } catch (const InputError&) {  // run() will say so, of each request alone
    if (checkpoint_->is_loaded()) throw;
    why_not_loaded_ = std::current_exception();
  }
}

std::string DitSession::weights_hash() {
  if (weights_hash_ == nullptr && why_not_loaded_) std::rethrow_exception(why_not_loaded_);
  TORCH_CHECK(weights_hash_ != nullptr, "[session] the hash of weights that were not loaded");
  return weights_hash_->get();
}

// With the device's memory that nothing else has now.
void DitSession::encode_texts(DitJobs jobs, Progress& progress) {
  std::optional<std::int64_t> room;
  if (budget_.device) {
    const std::int64_t held = checkpoint_->is_loaded() ? plan_.held_bytes() : 0;
    room = *budget_.device - kCudaBytes - held;
  }
  std::vector<TokenIds> texts;
  for (const DitJob* job : jobs) texts.insert(texts.end(), job->texts.begin(), job->texts.end());
  checkpoint_->texts().encode(texts, room, log_, progress);
  clock_.lap(report_, "text", runtime_.device);
}

// Placed so that each of these jobs fits alone, the least of the transformer that one of them
// leaves on the device. The text encoder comes and goes first.
void DitSession::read_weights(DitJobs jobs, Progress& progress) {
  clock_.start();
  bool planned = false;
  // The first part is the transformer, or two.
  const auto kept = [](const MemoryPlan& plan) { return plan.held.front().second; };
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    MemoryPlan plan =
        fit_memory(checkpoint_->costs(jobs.subspan(i, 1)), wishes_of(config_, *jobs[i]), budget_);
    if (!planned || kept(plan) < kept(plan_)) plan_ = std::move(plan);
    planned = true;
    if (!budget_.device) break;  // on the CPU nothing is chosen
  }
  if (budget_.limited)
    limit_memory(runtime_.device, static_cast<std::uint64_t>(*budget_.device - kCudaBytes));
  log_.debug("memory planned: {}", plan_.summary());
  if (budget_.device && plan_.choice.offload && config_.offload == OffloadWish::automatic)
    log_.warning("the weights do not fit: some wait in host memory (--offload layers)");
  encode_texts(jobs.first(1), progress);
  checkpoint_->load(plan_, progress);
  if (runtime_.quantization != Quantization::none) {
    const auto bytes = [&](const MatrixFormat& format) {
      return checkpoint_->matrix_bytes(format);
    };
    log_.info("{}", quantization_note({runtime_.dtype, runtime_.quantization},
                                      "the matrices of the transformer's blocks", bytes,
                                      "the rest of the model stays as it is"));
  }
  weights_hash_ = std::make_unique<BackgroundHash>([this](const std::stop_token& stop) {
    added_weights_ = checkpoint_->added_weights();
    return checkpoint_->weights_hash(stop);
  });
  clock_.lap(report_, "load", runtime_.device);
  log_.mark("weights are read");
}

// What was loaded stays where it is. Jobs run together only where that changes nothing of them.
void DitSession::plan_run(DitJobs jobs) {
  const auto plan_of = [&](DitJobs some) {
    return refit_memory(checkpoint_->costs(some), wishes_of(config_, *some.front()), budget_,
                        plan_.choice.offload);
  };
  MemoryPlan plan = plan_of(jobs);
  if (jobs.size() > 1) {
    const MemoryChoice alone = plan_of(jobs.first(1)).choice;
    if (plan.choice.batched != alone.batched || plan.choice.strips != alone.strips)
      throw InputError("{} requests do not fit into memory together as they do alone", jobs.size());
  }
  plan_ = std::move(plan);
  checkpoint_->use_strips(plan_.choice.strips);
  report_.strips = plan_.choice.strips;
}

void DitSession::run(const JobGroup& jobs, Progress& progress, const Results& results) {
  const std::vector<DitJob*> own = own_jobs(jobs);
  const RunConfig& request = own.front()->config();
  if (request.trace.empty()) return run_traced(own, nullptr, progress, results);
  TraceSink sink(request.trace_filter);
  run_traced(own, &sink, progress, results);
  if (sink.tensors().empty()) {
    log_.warning("--trace-filter {}: matches no tensor of this run",
                 fmt::join(request.trace_filter, ";"));
  }
  sink.write(request.trace);
}

void DitSession::make_ready(DitJobs jobs, Progress& progress) {
  for (DitJob* job : jobs) job->read_inputs();
  clock_.start();
  if (!checkpoint_->is_loaded()) read_weights(jobs, progress);
  plan_run(jobs);
  encode_texts(jobs, progress);
}

// Before anything is painted, at the price of the hash: as long as reading all weights.
void DitSession::require_calibration(const DitJob& job) {
  report_.calibration_hash.clear();
  if (!job.calibration) return;
  report_.weights_hash = weights_hash();
  clock_.lap(report_, "hash", runtime_.device);
  job.calibration->require_weights(
      calibration_path(job.config()),
      StepCalibration::as_loaded(report_.weights_hash, config_.quantization));
  report_.calibration_hash = job.calibration->file_hash;
}

std::size_t DitSession::most_samples(const Job& job) const {
  return static_cast<std::size_t>(dynamic_cast<const DitJob&>(job).changes());
}

StepRecording DitSession::record_steps(const JobGroup& jobs, Progress& progress) {
  const c10::InferenceMode inference;
  const std::vector<DitJob*> own = own_jobs(jobs);
  for (DitJob* job : own) {
    TORCH_CHECK(job->step_cache.mode == StepCacheMode::none,
                "[calibrate] steps are recorded without a step cache");
    job->records_steps = true;
    checkpoint_->texts().expect(job->texts);
    job->read_inputs();
  }
  if (!checkpoint_->is_loaded()) read_weights(own, progress);
  StepChangeRecorder recorder;
  for (DitJob* const& job : own) {
    const DitJobs alone(&job, 1);
    make_ready(alone, progress);
    const std::unique_ptr<DitTurn> turn = checkpoint_->make_turn(alone);
    turn->record_steps(recorder);
    turn->read(job->config().sampling.seed, nullptr);
    recorder.begin_picture();
    paint(alone, *turn, 0, true, nullptr, progress);
  }
  report_.weights_hash = weights_hash();
  clock_.lap(report_, "hash", runtime_.device);
  return recorder.recording();
}

double DitSession::time_steps(Job& job, Progress& progress) {
  const c10::InferenceMode inference;
  const std::vector<DitJob*> own = own_jobs({&job});
  make_ready(own, progress);
  const std::unique_ptr<DitTurn> turn = checkpoint_->make_turn(own);
  const std::uint64_t seed = job.config().sampling.seed;
  turn->read(seed, nullptr);
  const Tensor x = turn->start({&seed, 1}, nullptr);
  turn->use_mode(batches(own, *turn, x));
  const double seconds = time_step([&] { turn->time_step(x); }, /*graphs=*/false, runtime_.device);
  clock_.lap(report_, "measure", runtime_.device);
  return seconds * static_cast<double>(own.front()->updates);
}

void DitSession::run_traced(DitJobs jobs, TraceSink* trace, Progress& progress,
                            const Results& results) {
  make_ready(jobs, progress);
  require_calibration(*jobs.front());
  runtime_.paint_attention.of(AttentionRole::self).forget_served();
  try {
    make(jobs, trace, progress, results);
  } catch (const NotFinite& error) {
    log_.info("{}; looking through the weights for the cause", error.what());
    checkpoint_->require_finite_weights();
    throw;
  }
}

// Whether the branches share forwards: as asked for, or as it is faster.
bool DitSession::batches(DitJobs jobs, DitTurn& turn, const Tensor& x) {
  const DitJob& job = *jobs.front();
  if (job.branches == 1) return false;
  if (job.why_sequential) {
    if (job.config().cfg_mode != CfgMode::sequential) tell_sequential(*job.why_sequential);
    return false;
  }
  if (job.config().cfg_mode) return job.config().cfg_mode == CfgMode::batched;
  const std::string kind = describe_size(jobs) + division_text(runtime_);
  if (!plan_.choice.batched) {
    log_.warning_once("--cfg-mode auto: sequential for " + kind + ": batched does not fit");
    return false;
  }
  return faster_batched(turn, x, kind);
}

// Once for each reason. The default asks for batched, so it is no warning.
void DitSession::tell_sequential(const std::string& why) {
  if (told_.insert(why).second) log_.info("guidance runs sequentially: {}", why);
}

bool DitSession::faster_batched(DitTurn& turn, const Tensor& x, const std::string& kind) {
  if (const auto known = batched_is_faster_.find(kind); known != batched_is_faster_.end())
    return known->second;
  const auto step = [&](bool batched) {
    turn.use_mode(batched);
    turn.time_step(x);
  };
  const CfgModeTimes times =
      time_cfg_modes([&] { step(true); }, [&] { step(false); },
                     /*graphs=*/false, runtime_.ranks != nullptr, runtime_.device);
  bool batched = times.batched <= times.sequential;
  if (runtime_.ranks != nullptr) {  // clocks differ, and all must take the same
    const auto name = [](bool mode) {
      return std::string(name_of(mode ? CfgMode::batched : CfgMode::sequential));
    };
    batched =
        runtime_.ranks->group_text("cfg_mode." + kind, [&] { return name(batched); }) == name(true);
  }
  log_.info("--cfg-mode auto: {} for {} (a step: batched {:.1f} ms, sequential {:.1f} ms)",
            name_of(batched ? CfgMode::batched : CfgMode::sequential), kind, 1e3 * times.batched,
            1e3 * times.sequential);
  clock_.lap(report_, "measure", runtime_.device);
  return batched_is_faster_[kind] = batched;
}

DitSession::Painted DitSession::paint(DitJobs jobs, DitTurn& turn, std::uint64_t index, bool cached,
                                      TraceSink* trace, Progress& progress) {
  const std::int64_t updates = jobs.front()->updates;
  const auto count = std::ssize(jobs);
  std::vector<std::uint64_t> seeds;
  for (const DitJob* job : jobs) seeds.push_back(job->config().sampling.seed + index);
  Painted painted;
  turn.use_cache(cached);
  painted.starts = turn.start(seeds, trace);
  Tensor x = painted.starts;
  const bool batched = batches(jobs, turn, x);
  turn.use_mode(batched);
  report_.cfg_mode = name_of(batched ? CfgMode::batched : CfgMode::sequential);
  const std::int64_t before = turn.forwards();
  progress.begin("denoise", updates);
  for (std::int64_t i = 0; i < updates; ++i) {
    check_interrupted();
    x = turn.step(x, i, trace);
    // The host would run ahead by minutes: of the progress, and of Ctrl-C.
    synchronize(runtime_.device);
    progress.update(i + 1);
  }
  progress.end();
  if (const std::string note = turn.step_note(); !note.empty()) log_.info("{}", note);
  painted.latents = turn.finish(x);
  painted.forwards = (turn.forwards() - before) / count;
  require_finite(painted.latents, "the latent");
  painted.seconds = clock_.lap(report_, cached ? "denoise" : "uncached", runtime_.device);
  if (!cached) return painted;
  denoise_seconds_ += painted.seconds;
  updates_ += count * updates;
  report_.updates = updates;
  log_.mark("the latent is painted");
  return painted;
}

// Paints again without the step cache. A clip is decoded before.
CacheReport DitSession::compare_uncached(DitJobs jobs, DitTurn& turn, const Painted& painted,
                                         Result& result, Progress& progress) {
  const diptych::Painted cached = {result.latent, pixels_of(result.media)};
  clock_.lap(report_, "vae", runtime_.device);
  if (turn.reading_draws()) turn.read(result.seed, nullptr);
  const Painted again = paint(jobs, turn, result.index, false, nullptr, progress);
  Media media = turn.decode(again.latents[0], log_, nullptr);
  CacheReport report = compare_cached(cached, {rows_of(again.latents[0]), pixels_of(media)});
  report.forwards = painted.forwards;
  report.uncached_forwards = again.forwards;
  report.seconds = painted.seconds;
  report.uncached_seconds = again.seconds;
  log_.info("{}", describe(report));
  clock_.lap(report_, "uncached", runtime_.device);
  return report;
}

Result DitSession::result_of(DitJobs jobs, std::size_t place, DitTurn& turn, const Painted& painted,
                             std::uint64_t index, TraceSink* trace, Progress& progress) {
  const DitJob& job = *jobs[place];
  const auto of_job = [&](const Tensor& all) { return all[static_cast<std::int64_t>(place)]; };
  Result result;
  result.request = place;
  result.index = index;
  result.seed = job.config().sampling.seed + index;
  result.forwards = painted.forwards;
  result.noise_hash = short_hash(rows_of(of_job(painted.starts)));
  result.latent = rows_of(of_job(painted.latents));
  result.latent_hash = short_hash(result.latent);
  result.inputs = job.inputs;
  // The frames of a clip are decoded while they are encoded.
  if (!job.clip_shape()) progress.begin("vae", 1);
  result.media = turn.decode(of_job(painted.latents), log_, trace);
  progress.update(1);
  progress.end();
  clock_.lap(report_, "vae", runtime_.device);
  return result;
}

void DitSession::make(DitJobs jobs, TraceSink* trace, Progress& progress, const Results& results) {
  const c10::InferenceMode inference;
  const RunConfig& request = jobs.front()->config();
  const std::unique_ptr<DitTurn> turn = checkpoint_->make_turn(jobs);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(request.sampling.batch_count); ++i) {
    if (i == 0 || turn->reading_draws()) {
      turn->read(request.sampling.seed + i, trace);
      clock_.lap(report_, "prefill", runtime_.device);
    }
    const Painted painted = paint(jobs, *turn, i, true, trace, progress);
    for (std::size_t place = 0; place < jobs.size(); ++place) {
      Result result = result_of(jobs, place, *turn, painted, i, trace, progress);
      if (request.cache_report && request.cache_mode != StepCacheMode::none)
        result.cache_report = compare_uncached(jobs, *turn, painted, result, progress);
      report_.attention = runtime_.paint_attention.of(AttentionRole::self).served_by();
      report_.weights_hash = weights_hash();
      report_.added_weights = added_weights_;
      clock_.lap(report_, "hash", runtime_.device);
      report_.latent_hashes.push_back(result.latent_hash);
      // A clip has a stage of its own, of its frames, while the receiver decodes it.
      if (!jobs[place]->clip_shape()) progress.begin("encode", 1);
      clock_.watch_decoding(result);
      results.result(result, report_);
      progress.update(1);
      progress.end();
      clock_.lap_encoding(report_, runtime_.device);
    }
  }
}

Report DitSession::report() const {
  Report report = report_;
  report.steps_per_second =
      denoise_seconds_ > 0 ? static_cast<double>(updates_) / denoise_seconds_ : 0;
  report.peak_bytes = peak_memory_bytes(runtime_.device);
  return report;
}

}  // namespace diptych
