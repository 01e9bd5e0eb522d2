#include "lib/pipelines/bagel/session.h"

#include <map>
#include <optional>
#include <tuple>

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/config/fields.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/bagel/memory_planner.h"
#include "lib/pipelines/bagel/picture_maker.h"
#include "lib/pipelines/bagel/settings.h"
#include "lib/pipelines/mot/cfg_mode.h"
#include "lib/pipelines/mot/step_floor.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/kept_steps.h"
#include "lib/session/make_runtime.h"
#include "lib/session/stage_clock.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

// What was quantised, what that saves, and what stays as it was.
void log_quantization(Log& log, const BagelCheckpoint& checkpoint, at::ScalarType dtype) {
  const Quantization kind = checkpoint.quantization.kind;
  if (kind == Quantization::none) return;
  const Qwen2Config& llm = checkpoint.model.config.llm;
  const auto mebi = [&](Quantization q) {
    constexpr double kMebi = 1 << 20;
    return static_cast<double>(2 * llm.num_hidden_layers *
                               MotExpert::matrix_bytes(llm, {dtype, q})) /
           kMebi;
  };
  log.info(
      "{}: the projections of the decoder layers take {:.1f} MiB instead of {:.1f}; embeddings, "
      "norms, biases, lm_head, vision, latent projections and time embedder stay {}, the "
      "autoencoder float32",
      kind == Quantization::fp8 ? "fp8" : "int8", mebi(kind), mebi(Quantization::none),
      dtype == at::kFloat ? "float32" : "bfloat16");
}

class BagelSession : public Session {
 public:
  BagelSession(const RunConfig& config, Log& log)
      : config_(config), log_(log), runtime_(make_runtime(config, log, nullptr)) {
    reset_peak_memory(runtime_.device);
    report_.device = device_description(runtime_.device);
    report_.dtype = runtime_.dtype == at::kBFloat16 ? "bfloat16" : "float32";
    report_.quantization = name_of(config.quantization);
    report_.tuning = runtime_.tuning.name();
    if (runtime_.device.is_cpu()) report_.threads = at::get_num_threads();
    log.debug("device {}, {}, kernels {}, attention {} and {}", report_.device, report_.dtype,
              name_of(config.kernels), runtime_.read_attention->name(),
              runtime_.paint_attention->name());
    clock_.start();
    checkpoint_ =
        BagelCheckpoint::open(config.model, config.load_format == LoadFormat::dummy, runtime_);
    require_attention();
    require_quantizable();
    memory_ = std::make_unique<BagelMemoryPlanner>(config_, checkpoint_, runtime_);
    check_offload(config.offload, memory_->budget());
  }

  void check(const RunConfig& config) override { prepare(config); }

  void load(std::span<const std::vector<RunConfig>> expected, Progress& progress) override {
    expects_more_ = expected.size() > 1;
    if (writer_ != nullptr) return;
    BagelParts parts;
    for (const std::vector<RunConfig>& configs : expected) parts.add(configs);
    bool planned = false;
    for (const std::vector<RunConfig>& configs : expected) {
      // On the CPU nothing is chosen.
      if (planned && !memory_->budget().device) break;
      check_interrupted();
      try {
        memory_->plan_loading(prepare_all(configs, PictureReading::sizes), parts, planned);
        planned = true;
      } catch (const Interrupted&) {
        throw;
      } catch (const std::exception&) {  // run() will say so, of these requests alone
      }
    }
    if (planned) read_weights(progress);
  }

  std::string weights_hash() override { return weights_hash_->get(); }

  bool may_share(const RunConfig& a, const RunConfig& b) const override {
    const auto alone = [](const RunConfig& c) {
      // TeaCache decides by all rows of a forward: a picture would depend on what it is packed
      // with.
      return c.answers() || c.sampling.batch_count != 1 || !c.trace.empty() ||
             c.cache_mode == StepCacheMode::teacache;
    };
    return !alone(a) && !alone(b) && may_share_forwards(a, b);
  }

  void run(std::span<const RunConfig> configs, Progress& progress,
           const Results& results) override {
    if (configs.front().answers()) forget_steps();
    std::vector<BagelPrepared> prepared = prepare_all(configs);
    read_weights_for(std::span(&prepared, 1), BagelParts::of(configs), progress);
    make_ready(prepared);
    // A record tells what served this run, whatever the session did before.
    runtime_.read_attention->forget_served();
    std::optional<TraceSink> trace;
    const RunConfig& first = configs.front();
    if (!first.trace.empty()) trace.emplace(first.trace_filter);
    runtime_.trace = trace ? &*trace : nullptr;
    const auto off = std::shared_ptr<void>(nullptr, [&](void*) { runtime_.trace = nullptr; });
    if (first.answers()) {
      answer(prepared.front(), progress, results);
    } else {
      try {
        paint(prepared, progress, results);
      } catch (...) {  // memory may have been short
        forget_steps();
        throw;
      }
    }
    if (trace) {
      if (trace->tensors().empty()) {
        log_.warning("--trace-filter {}: matches no tensor of this run",
                     fmt::join(first.trace_filter, ";"));
      }
      trace->write(first.trace);
    }
  }

  void forget_steps() override { kept_.clear(); }

  StepRecording record_steps(std::span<const RunConfig> configs, Progress& progress) override {
    forget_steps();
    std::vector<RunConfig> uncached(configs.begin(), configs.end());
    std::vector<std::vector<BagelPrepared>> pictures;
    for (RunConfig& config : uncached) {
      config.cache_mode = StepCacheMode::none;
      pictures.push_back(prepare_all(std::span(&config, 1)));
      pictures.back().front().records = true;
    }
    read_weights_for(pictures, BagelParts::of(uncached), progress);
    StepChangeRecorder recorder;
    for (std::vector<BagelPrepared>& picture : pictures) {
      make_ready(picture);
      BagelPrepared& p = picture.front();
      p.request.seed(p.config->sampling.seed);
      const std::unique_ptr<BagelPainter> painter = read(picture, progress, {});
      recorder.begin_picture();
      painter->observe(
          [&](std::int64_t step, std::int64_t context, const Tensor& input, const Tensor& output) {
            recorder.record(step, context, input, output);
          });
      maker_.paint_latent(*painter, p.start_noise(painter->row_width()), StepCaching::off,
                          progress);
    }
    report_.weights_hash = weights_hash();
    clock_.lap(report_, "hash", runtime_.device);
    return recorder.recording();
  }

  std::vector<StepKindWork> study_steps(const RunConfig& config, bool measures,
                                        Progress& progress) override {
    if (memory_->budget().limited) forget_steps();  // the plan is of a run without others beside it
    std::vector<BagelPrepared> prepared = prepare_all(std::span(&config, 1));
    read_weights_for(std::span(&prepared, 1), BagelParts::of(std::span(&config, 1)), progress);
    make_ready(prepared);
    prepared.front().request.seed(config.sampling.seed);
    std::unique_ptr<BagelPainter> painter = read(prepared, progress, {});
    std::vector<StepKindWork> kinds =
        study_bagel_steps(checkpoint_, painter->request(), painter->contexts(), runtime_, measures);
    keep(std::move(painter));
    return kinds;
  }

  std::int64_t layers() const override { return checkpoint_.model.config.llm.num_hidden_layers; }

  Report report() const override {
    Report report = report_;
    report.steps_per_second = maker_.steps_per_second();
    if (report.token_seconds > 0)
      report.tokens_per_second = static_cast<double>(report.tokens) / report.token_seconds;
    report.peak_bytes = peak_memory_bytes(runtime_.device);
    return report;
  }

 private:
  // A backend asked for by name that cannot serve these heads is refused before anything is loaded.
  void require_attention() const {
    const AttentionKind kind{runtime_.device, runtime_.dtype,
                             checkpoint_.model.config.llm.head_dim()};
    for (const auto& [backend, field, stage] :
         {std::tuple{runtime_.read_attention.get(), "read_attention", &config_.read_attention},
          std::tuple{runtime_.paint_attention.get(), "paint_attention",
                     &config_.paint_attention}}) {
      if (const auto reason = backend->kind_unsupported(kind))
        throw InputError(attention_setting(field, *stage), "attention backend {}: {}",
                         backend->name(), *reason);
    }
  }

  // Likewise widths that a GPU's products in e4m3 do not take.
  void require_quantizable() const {
    constexpr std::int64_t kStep = 16;
    if (config_.quantization != Quantization::fp8 || !runtime_.device.is_cuda()) return;
    const auto& llm = checkpoint_.model.config.llm;
    for (const auto& [key, width] : {std::pair{"hidden_size", llm.hidden_size},
                                     std::pair{"intermediate_size", llm.intermediate_size}}) {
      if (width % kStep != 0)
        throw InputError(Setting::of("quantization", "fp8"),
                         "llm_config.json: {}: found {}, expected a multiple of {}", key, width,
                         kStep);
    }
  }

  BagelPrepared prepare(const RunConfig& config, PictureReading reading = PictureReading::pixels) {
    return prepare_bagel(config, checkpoint_, runtime_, log_, reading);
  }

  std::vector<BagelPrepared> prepare_all(std::span<const RunConfig> configs,
                                         PictureReading reading = PictureReading::pixels) {
    std::vector<BagelPrepared> prepared;
    for (const RunConfig& config : configs) prepared.push_back(prepare(config, reading));
    return prepared;
  }

  // What was loaded stays where it is.
  void plan_run(const std::vector<BagelPrepared>& prepared) {
    memory_->plan_run(prepared, writer_->capacity());
    const BagelMemory& plan = memory_->plan();
    checkpoint_.strips.reset();
    if (plan.choice.strips) checkpoint_.strips.emplace();
    report_.strips = plan.choice.strips;
    const MotLayers& layers = checkpoint_.model.language_model.layers;
    report_.offload = layers.streams({.und = true}) ? "all" : "none";
    if (!memory_->budget().device) return;
    log_.debug("memory planned: {}", plan.summary());
    if (plan.choice.strips && prepared.front().config->vae_tiling == TilingWish::automatic)
      log_.info(
          "the autoencoder works in strips (--vae-tiling on): the same picture but for rounding");
  }

  // Unless they are there: chooses where they lie, so that each of the runs fits.
  void read_weights_for(std::span<const std::vector<BagelPrepared>> runs, BagelParts parts,
                        Progress& progress) {
    if (writer_ != nullptr) return;
    for (const std::vector<BagelPrepared>& run : runs)
      memory_->plan_loading(run, parts, &run != &runs.front());
    read_weights(progress);
  }

  // What is left before these requests can run, once the weights are there.
  void make_ready(const std::vector<BagelPrepared>& prepared) {
    clock_.start();
    plan_run(prepared);
    if (!kept_.empty())
      kept_.make_room(memory_->room_beside_kept_step(), has_captured(prepared),
                      memory_->plan().kept_step_bytes());
    const BagelParts parts = BagelParts::of(prepared);
    if (parts.vision) checkpoint_.load_vision();
    if (parts.head) checkpoint_.load_head();
    clock_.lap(report_, "load", runtime_.device);
  }

  void read_weights(Progress& progress) {
    clock_.start();
    const MemoryBudget& budget = memory_->budget();
    const std::optional<MotOffload>& offload = memory_->plan().choice.offload;
    if (budget.limited)
      limit_memory(runtime_.device, static_cast<std::uint64_t>(*budget.device - kCudaBytes));
    if (budget.device && offload && config_.offload == OffloadWish::automatic)
      log_.warning("the weights do not fit: some wait in host memory (--offload layers)");
    constexpr std::uint64_t kMebi = 1 << 20;
    const std::uint64_t total =
        checkpoint_.model_weights.total_bytes() + checkpoint_.vae_weights.total_bytes();
    progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
    std::uint64_t done = 0;
    const auto count = [&](std::uint64_t bytes) {
      progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
    };
    checkpoint_.model_weights.on_read(count);
    checkpoint_.vae_weights.on_read(count);
    checkpoint_.load(offload);
    log_quantization(log_, checkpoint_, runtime_.dtype);
    checkpoint_.model_weights.on_read({});
    checkpoint_.vae_weights.on_read({});
    progress.update(static_cast<std::int64_t>(total / kMebi));  // parts that may come later
    progress.end();
    writer_ = std::make_unique<TextWriter>(checkpoint_, runtime_);
    weights_hash_ = std::make_unique<BackgroundHash>(
        [this](const std::stop_token& stop) { return checkpoint_.weights_hash(stop); });
    clock_.lap(report_, "load", runtime_.device);
  }

  GeneratedText write(BagelRequest& request, Progress& progress,
                      std::optional<PrefilledContexts>& contexts) {
    const GeneratedText written =
        write_text(request, checkpoint_, *writer_, runtime_, progress, contexts);
    // The end marker was computed, too, but is no token of the text.
    report_.tokens += static_cast<std::int64_t>(written.ids.size());
    report_.token_seconds += written.seconds;
    if (written.finish_reason == kFinishedByLimit) {
      log_.warning_once(fmt::format(
          "{} was stopped by {} {}", request.answers ? "an answer" : "a plan",
          request.think ? "--max-think-tokens" : "--max-tokens", request.text.max_tokens));
    }
    clock_.lap(report_, "prefill", "text", written.seconds, runtime_.device);
    return written;
  }

  void answer(BagelPrepared& p, Progress& progress, const Results& results) {
    p.request.seed(p.config->sampling.seed);
    std::optional<PrefilledContexts> contexts;
    const GeneratedText written = write(p.request, progress, contexts);
    report_.attention = runtime_.read_attention->served_by();
    Answer answer;
    answer.text = written.text;
    answer.finish_reason = written.finish_reason;
    answer.tokens = static_cast<std::int64_t>(written.ids.size()) - 1;
    answer.seconds = written.seconds;
    results.answer(answer, report_);
  }

  // Before anything is read or painted, at the price of the hash: as long as reading all weights.
  void require_calibration(const RunConfig& config) {
    report_.calibration_hash.clear();
    if (config.cache_mode != StepCacheMode::teacache) return;
    report_.weights_hash = weights_hash();
    clock_.lap(report_, "hash", runtime_.device);
    const std::filesystem::path path = calibration_path(config);
    StepCalibration::read(path).require_weights(
        path, StepCalibration::as_loaded(report_.weights_hash, config_.quantization));
    report_.calibration_hash = file_sha256(path).value_or("").substr(0, 16);
  }

  // Whether what is read depends on the seed, so that each picture of a request reads anew.
  static bool reading_draws(const BagelRequest& request) {
    return !request.images.empty() || (request.think && request.text.sampling.temperature > 0);
  }

  // Whether a painter has captured the steps of these requests; with --cfg-mode auto in either
  // mode.
  static KeptPainters<BagelPainter>::Matches has_captured(std::span<const BagelPrepared> prepared) {
    const bool either_mode = !prepared.front().config->cfg_mode;
    return [paint = paint_request_of(prepared), either_mode](const BagelPainter& painter) mutable {
      if (either_mode) paint.cfg_mode = painter.request().cfg_mode;
      return painter.has_captured(paint);
    };
  }

  // Of --cfg-mode auto: measured once for each kind of step.
  CfgMode choose_cfg_mode(PaintRequest paint, const PrefilledContexts& contexts, bool recorded) {
    // As the steps will run: none is captured that a cache, a trace or a recorder looks into.
    paint.step_graphs &= !paint.caches() && runtime_.trace == nullptr && !recorded;
    if (contexts.distinct() == 1) return CfgMode::batched;  // the same either way
    const std::string kind = describe_step(checkpoint_.model.config, paint, contexts);
    if (!memory_->plan().choice.batched) {
      log_.warning_once("--cfg-mode auto: sequential for " + kind + ": batched does not fit");
      return CfgMode::sequential;
    }
    if (const auto known = cfg_modes_.find(kind); known != cfg_modes_.end()) return known->second;
    give_up_kept_steps();  // what is measured captures steps, too
    clock_.lap(report_, "prefill", runtime_.device);
    Log quiet(LogLevel::quiet);
    // Its attention notes what served the measured steps, which the picture's record does not tell.
    const Runtime apart = make_runtime(config_, quiet, nullptr);
    const CfgModeTimes times = time_cfg_modes(checkpoint_, paint, contexts, apart);
    log_.info("--cfg-mode auto: {} for {} (a step: batched {:.1f} ms, sequential {:.1f} ms)",
              name_of(times.faster()), kind, 1e3 * times.batched, 1e3 * times.sequential);
    clock_.lap(report_, "measure", runtime_.device);
    return cfg_modes_[kind] = times.faster();
  }

  // Those for which there is no room beside a step that is captured anew.
  void give_up_kept_steps() {
    kept_.make_room(
        memory_->room_beside_kept_step(), [](const BagelPainter&) { return false; }, 0);
  }

  // One that is kept and serves, or a new one. A trace looks into steps that are launched one by
  // one.
  std::unique_ptr<BagelPainter> painter_of(PaintRequest paint, PrefilledContexts contexts) {
    const auto serves = [&](const BagelPainter& kept) {
      return runtime_.trace == nullptr && kept.serves(paint, contexts);
    };
    if (std::unique_ptr<BagelPainter> kept = kept_.take(serves)) {
      kept->take(contexts);
      return kept;
    }
    give_up_kept_steps();
    return std::make_unique<BagelPainter>(checkpoint_, std::move(paint), std::move(contexts),
                                          runtime_);
  }

  // Plans and contexts of all requests.
  std::unique_ptr<BagelPainter> read(std::vector<BagelPrepared>& prepared, Progress& progress,
                                     const Results& results) {
    PaintRequest paint = paint_request_of(prepared);
    const bool chooses_mode = !prepared.front().config->cfg_mode;
    std::optional<PrefilledContexts> thought;
    std::vector<BagelRequest> requests;
    for (std::size_t i = 0; i < prepared.size(); ++i) {
      BagelRequest& request = prepared[i].request;
      if (request.think) {
        write(request, progress, thought);
        if (results.plan) results.plan(i, *request.plan, request.plan_finish_reason);
      }
      requests.push_back(request);
    }
    paint.keep_graphs = (expects_more_ || prepared.front().config->sampling.batch_count > 1) &&
                        memory_->room_beside_kept_step() >= 0;
    progress.begin("prefill", 1);
    const bool one = requests.size() == 1 && thought.has_value();
    PrefilledContexts contexts =
        read_for_painting(requests, paint, checkpoint_, runtime_, one ? &*thought : nullptr);
    for (std::size_t i = 0; i < prepared.size(); ++i) prepared[i].request = requests[i];
    if (!runtime_.device.is_cuda() && !paint.step_graphs)
      log_.warning_once("enforce_eager: changes nothing on the CPU, which has no graphs");
    if (runtime_.device.is_cuda() && paint.step_graphs && !paint.caches() &&
        !captures_steps(paint, checkpoint_, runtime_)) {
      log_.warning_once(runtime_.kernels == KernelPolicy::reference
                            ? "denoise steps are launched one by one: --kernels reference"
                            : "denoise steps are launched one by one: weights come from the host");
    }
    if (chooses_mode) paint.cfg_mode = choose_cfg_mode(paint, contexts, prepared.front().records);
    std::unique_ptr<BagelPainter> painter = painter_of(std::move(paint), std::move(contexts));
    progress.update(1);
    progress.end();
    clock_.lap(report_, "prefill", runtime_.device);
    log_.debug("{} distinct contexts", painter->distinct_contexts());
    return painter;
  }

  void paint(std::vector<BagelPrepared>& prepared, Progress& progress, const Results& results) {
    require_calibration(*prepared.front().config);
    const std::int64_t pictures = prepared.front().config->sampling.batch_count;
    std::unique_ptr<BagelPainter> painter;
    for (std::int64_t i = 0; i < pictures; ++i) {
      const bool again = std::ranges::any_of(
          prepared, [](const BagelPrepared& p) { return reading_draws(p.request); });
      for (BagelPrepared& p : prepared) {
        const std::uint64_t seed = p.config->sampling.seed + static_cast<std::uint64_t>(i);
        if (painter == nullptr || again) {
          p.request.seed(seed);
        } else {
          p.request.generator = cpu_generator(seed);
        }
      }
      if (painter == nullptr || again) {
        keep(std::move(painter));
        painter = read(prepared, progress, results);
        if (i == 0) report_.kept_step_graphs = !painter->attention().empty();  // it has painted
      }
      paint_once(*painter, prepared, static_cast<std::uint64_t>(i), progress, results);
    }
    if (expects_more_) {
      keep(std::move(painter));
    } else {
      forget_steps();  // of pictures of this request that were read anew
    }
  }

  void keep(std::unique_ptr<BagelPainter> painter) {
    if (painter != nullptr && painter->has_captured(painter->request()))
      kept_.add(std::move(painter), memory_->plan().kept_step_bytes());
  }

  void paint_once(BagelPainter& painter, std::vector<BagelPrepared>& prepared, std::uint64_t index,
                  Progress& progress, const Results& results) {
    const std::vector<Picture> pictures = maker_.paint(painter, prepared, index, progress);
    report_.attention = painter.attention();
    report_.cfg_mode = name_of(painter.request().cfg_mode);
    report_.weights_hash = weights_hash();
    clock_.lap(report_, "hash", runtime_.device);
    progress.begin("encode", static_cast<std::int64_t>(pictures.size()));
    for (const Picture& picture : pictures) {
      report_.latent_hashes.push_back(picture.latent_hash);
      results.picture(picture, report_);
      progress.update(static_cast<std::int64_t>(picture.request) + 1);
    }
    progress.end();
    clock_.lap(report_, "encode", runtime_.device);
  }

  RunConfig config_;
  Log& log_;
  Runtime runtime_;
  Report report_;
  StageClock clock_;
  BagelCheckpoint checkpoint_;
  BagelPictureMaker maker_{runtime_, log_, report_, clock_};
  std::unique_ptr<BagelMemoryPlanner> memory_;
  std::unique_ptr<TextWriter> writer_;  // null until the weights are loaded
  std::unique_ptr<BackgroundHash> weights_hash_;
  bool expects_more_ = false;                 // of run()
  KeptPainters<BagelPainter> kept_;           // of earlier ones, where they may serve the next
  std::map<std::string, CfgMode> cfg_modes_;  // that were measured, by describe_step()
};

}  // namespace

std::unique_ptr<Session> open_bagel(const RunConfig& config, Log& log) {
  return std::make_unique<BagelSession>(config, log);
}

}  // namespace diptych
