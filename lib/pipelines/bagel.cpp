#include "lib/pipelines/bagel.h"

#include <limits>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/pipelines/bagel_config.h"
#include "lib/pipelines/bagel_memory.h"
#include "lib/pipelines/bagel_trace.h"
#include "lib/pipelines/cache_report.h"
#include "lib/pipelines/make_runtime.h"
#include "lib/pipelines/session_parts.h"
#include "lib/pipelines/text_decoder.h"
#include "lib/runtime/host_memory.h"
#include "lib/sampling/step_calibration.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

class BagelSession : public Session {
 public:
  BagelSession(const RunConfig& config, Log& log)
      : config_(config), log_(log), runtime_(make_runtime(config, log, nullptr)) {
    reset_peak_memory(runtime_.device);
    report_.device = device_description(runtime_.device);
    report_.dtype = runtime_.dtype == at::kBFloat16 ? "bfloat16" : "float32";
    if (runtime_.device.is_cpu()) report_.threads = at::get_num_threads();
    log.debug("device {}, {}, kernels {}, attention {} and {}", report_.device, report_.dtype,
              config.kernels, runtime_.read_attention->name(), runtime_.paint_attention->name());
    clock_.start();
    checkpoint_ = BagelCheckpoint::open(config.model, config.load_format == "dummy", runtime_);
    transforms_ = ImageTransforms::of(checkpoint_.model.config);
    require_attention();
    budget_ = memory_budget();
    check_offload(parse_offload(config.offload), budget_);
  }

  void check(const RunConfig& config) override { prepare(config); }

  void load(std::span<const std::vector<RunConfig>> expected, Progress& progress) override {
    if (writer_ != nullptr) return;
    Parts parts;
    for (const std::vector<RunConfig>& configs : expected) parts.add(configs);
    bool planned = false;
    for (const std::vector<RunConfig>& configs : expected) {
      // On the CPU nothing is chosen.
      if (planned && !budget_.device) break;
      check_interrupted();
      try {
        plan_loading(prepare_all(configs), parts, planned);
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
    const auto shared = [](const RunConfig& c) {
      const SamplingConfig& s = c.sampling;
      return std::tie(s.steps, s.cfg_text_scale, s.cfg_img_scale, s.cfg_interval_low,
                      s.cfg_interval_high, s.cfg_renorm_type, s.cfg_renorm_min, s.timestep_shift,
                      c.cfg_mode, c.cache_mode, c.cache_threshold, c.cache_calibration,
                      c.cache_report, c.vae_tiling);
    };
    const auto alone = [](const RunConfig& c) {
      // TeaCache decides by all rows of a forward: a picture would depend on what it is packed
      // with.
      return c.answers() || c.sampling.batch_count != 1 || !c.trace.empty() ||
             c.cache_mode == "teacache";
    };
    return !alone(a) && !alone(b) && shared(a) == shared(b);
  }

  void run(std::span<const RunConfig> configs, Progress& progress,
           const Results& results) override {
    std::vector<Prepared> prepared = prepare_all(configs);
    read_weights_for(std::span(&prepared, 1), Parts(configs), progress);
    make_ready(prepared);
    std::optional<TraceSink> trace;
    const RunConfig& first = configs.front();
    if (!first.trace.empty()) trace.emplace(first.trace_filter);
    runtime_.trace = trace ? &*trace : nullptr;
    const auto off = std::shared_ptr<void>(nullptr, [&](void*) { runtime_.trace = nullptr; });
    if (first.answers()) {
      answer(prepared.front(), progress, results);
    } else {
      paint(prepared, progress, results);
    }
    if (trace) {
      if (trace->tensors().empty()) {
        log_.warning("--trace-filter {}: matches no tensor of this run",
                     fmt::join(first.trace_filter, ";"));
      }
      trace->write(first.trace);
    }
  }

  StepRecording record_steps(std::span<const RunConfig> configs, Progress& progress) override {
    std::vector<RunConfig> uncached(configs.begin(), configs.end());
    std::vector<std::vector<Prepared>> pictures;
    for (RunConfig& config : uncached) {
      config.cache_mode = "none";
      pictures.push_back(prepare_all(std::span(&config, 1)));
      pictures.back().front().records = true;
    }
    read_weights_for(pictures, Parts(uncached), progress);
    StepChangeRecorder recorder;
    for (std::vector<Prepared>& picture : pictures) {
      make_ready(picture);
      Prepared& p = picture.front();
      p.request.seed(p.config->sampling.seed);
      const std::unique_ptr<BagelPainter> painter = read(picture, progress, {});
      recorder.begin_picture();
      painter->observe(
          [&](std::int64_t step, std::int64_t context, const Tensor& input, const Tensor& output) {
            recorder.record(step, context, input, output);
          });
      paint_latent(*painter, start_noise(p), StepCaching::off, progress);
    }
    report_.weights_hash = weights_hash();
    clock_.lap(report_, "hash", runtime_.device);
    return recorder.recording();
  }

  Report report() const override {
    Report report = report_;
    if (denoise_seconds_ > 0)
      report.steps_per_second = static_cast<double>(updates_) / denoise_seconds_;
    if (text_seconds_ > 0) report.tokens_per_second = static_cast<double>(tokens_) / text_seconds_;
    report.peak_bytes = peak_memory_bytes(runtime_.device);
    return report;
  }

 private:
  MemoryBudget memory_budget() const {
    MemoryBudget budget;
    budget.host = available_host_memory();
    if (!runtime_.device.is_cuda()) {
      if (config_.max_vram > 0) throw InputError("--max-vram: is of a GPU, the run is on the CPU");
      return budget;
    }
    budget.limited = config_.max_vram > 0;
    constexpr double kGib = 1 << 30;
    const auto free = free_gpu_memory(static_cast<std::size_t>(runtime_.device.index()));
    if (free) budget.device = static_cast<std::int64_t>(*free) + kCudaBytes;  // it has its context
    if (budget.limited) {
      const auto allowed = static_cast<std::int64_t>(config_.max_vram * kGib);
      if (budget.device && *budget.device < allowed) {
        throw InputError("--max-vram: found {} GiB, but {:.1f} GiB are free", config_.max_vram,
                         static_cast<double>(*budget.device) / kGib);
      }
      budget.device = allowed;
    }
    return budget;
  }

  // A backend asked for by name that cannot serve these heads is refused before anything is loaded.
  void require_attention() const {
    const AttentionKind kind{runtime_.device, runtime_.dtype,
                             checkpoint_.model.config.llm.head_dim()};
    for (const AttentionBackend* backend :
         {runtime_.read_attention.get(), runtime_.paint_attention.get()}) {
      if (const auto reason = backend->kind_unsupported(kind))
        throw InputError("--attention: attention backend {}: {}", backend->name(), *reason);
    }
  }

  // A request as the model reads it; checked, nothing computed.
  struct Prepared {
    const RunConfig* config = nullptr;
    BagelRequest request;
    std::vector<InputRecord> inputs;
    LatentSize size;
    Tensor noise;          // given by a file
    bool records = false;  // how its steps change
  };

  std::vector<Prepared> prepare_all(std::span<const RunConfig> configs) {
    std::vector<Prepared> prepared;
    for (const RunConfig& config : configs) prepared.push_back(prepare(config));
    return prepared;
  }

  // What of the model only some requests need.
  struct Parts {
    Parts() = default;
    explicit Parts(std::span<const RunConfig> configs) { add(configs); }
    void add(std::span<const RunConfig> configs) {
      for (const RunConfig& config : configs) {
        vision |= config.reads_images();
        head |= config.answers() || config.think;
      }
    }
    bool vision = false, head = false;  // to look at pictures; to write text
  };

  Prepared prepare(const RunConfig& config) {
    check_counts(config);
    Prepared p;
    p.config = &config;
    BagelRequest& request = p.request;
    request.items = config.inputs;
    request.answers = config.answers();
    request.think = config.think;
    request.negative_prompt = config.negative_prompt;
    request.text = make_text_request(config);
    for (const InputItem& item : config.inputs) {
      if (!item.is_image()) continue;
      const Tensor pixels = read_input(item.image);
      p.inputs.push_back({tensor_hash(pixels), pixels.size(1), pixels.size(0)});
      request.images.push_back(BagelImage::prepare(pixels, transforms_, checkpoint_.model.config));
    }
    request.check_positions(checkpoint_);  // too long a text is said here
    if (request.writes()) require_text_kernel();
    if (!request.answers && config.cache_mode == "teacache") check_calibration(config);
    if (request.answers) return p;
    const SamplingConfig& s = config.sampling;
    p.size =
        s.size_of_input ? request.images.back().latent : checkpoint_.latent_size(s.width, s.height);
    if (!config.noise.empty())
      p.noise = read_noise(config.noise, p.size.rows(), checkpoint_.model.config.row_width());
    for (const std::string& text : idle_settings(config)) log_.warning_once(text);
    return p;
  }

  // Where no weights are read to name them, also that it was measured on these.
  void check_calibration(const RunConfig& config) const {
    const StepCalibration calibration = read_calibration(config);
    if (checkpoint_.model_weights.is_dummy())
      calibration.require_weights(calibration_path(config), checkpoint_.weights_hash({}));
  }

  // Before anything is loaded: texts may be written without a graph, but not without a word.
  void require_text_kernel() {
    const auto reason = missing_text_kernel(checkpoint_.model.config.llm, runtime_);
    if (!reason) return;
    if (runtime_.kernels == KernelPolicy::strict)
      throw InputError("--kernels strict: there is no kernel to write this model's texts: {}",
                       *reason);
    log_.warning_once("texts are written without a CUDA graph, slowly: " + *reason);
  }

  static Parts parts_of(const std::vector<Prepared>& prepared) {
    Parts parts;
    for (const Prepared& p : prepared) parts.add(std::span(p.config, 1));
    return parts;
  }

  // The most that these requests do at once.
  BagelWork work_of(const std::vector<Prepared>& prepared) const {
    BagelWork work;
    const auto raise = [](std::int64_t& most, std::int64_t value) { most = std::max(most, value); };
    std::vector<BagelReading> readings;
    const std::int64_t kept = writer_ == nullptr ? 0 : writer_->capacity();
    std::int64_t plan_tokens = 0;
    for (const Prepared& p : prepared) {
      const std::int64_t step = checkpoint_.model.config.pixels_per_row();
      raise(work.width, p.size.w * step);
      raise(work.height, p.size.h * step);
      for (const BagelImage& image : p.request.images) {
        raise(work.vision_patches, image.patches.rows());
        if (p.request.answers) continue;
        raise(work.encode_width, image.latent.w * step);
        raise(work.encode_height, image.latent.h * step);
      }
      readings.push_back(p.request.reading(checkpoint_));
      raise(work.text_rows, p.request.text_rows(checkpoint_, kept));
      // The plan is read between its markers.
      if (p.request.think && !p.request.answers) raise(plan_tokens, p.request.text.max_tokens + 2);
    }
    const RunConfig& config = *prepared.front().config;
    work.samples = static_cast<std::int64_t>(prepared.size());
    work.steps = config.sampling.steps;
    std::vector<BranchContexts> branches = BagelReading::branches(readings);
    if (config.answers()) {
      branches.resize(1);
    } else {
      branches = paint_request(prepared).needed(std::move(branches), !config.trace.empty());
    }
    std::vector<const BranchContexts*> distinct;
    for (const BranchContexts& branch : branches) {
      const auto shares = [&](const BranchContexts* other) { return other->shares_with(branch); };
      if (std::ranges::none_of(distinct, shares)) distinct.push_back(&branch);
      for (const BagelContext& context : branch.samples) {
        raise(work.context_tokens, context.length());
        for (std::size_t i = 0; i < context.segments.size(); ++i) {
          raise(work.prefill_rows, context.length_before(i + 1) - context.length_before(i));
        }
      }
    }
    work.branches = static_cast<std::int64_t>(distinct.size());
    work.cache_bytes = cache_bytes(work, prepared.front());
    work.context_tokens += plan_tokens;
    const auto is_math = [](const auto& backend) { return backend->name() == "math"; };
    work.writes_logits = is_math(runtime_.read_attention) || is_math(runtime_.paint_attention);
    return work;
  }

  BagelSizes sizes(Parts parts) const {
    return {checkpoint_.model.config, checkpoint_.vae.config, runtime_.dtype, parts.vision,
            parts.head};
  }

  BagelMemoryWishes wishes(const std::vector<Prepared>& prepared) const {
    const RunConfig& config = *prepared.front().config;
    BagelMemoryWishes wishes;
    wishes.offload = parse_offload(config_.offload);
    wishes.tiling = parse_vae_tiling(config.vae_tiling);
    wishes.batched = config.cfg_mode == "batched";
    return wishes;
  }

  // Chooses where the weights lie, so that these requests fit, and those planned before (`others`).
  void plan_loading(const std::vector<Prepared>& prepared, Parts parts, bool others) {
    const auto kept = [](const BagelMemory& memory) {
      const std::optional<MotOffload>& offload = memory.choice.offload;
      return offload ? offload->resident_und + offload->resident_gen
                     : std::numeric_limits<std::int64_t>::max();
    };
    BagelMemory memory =
        fit_bagel_memory(sizes(parts), work_of(prepared), wishes(prepared), budget_);
    if (!others || kept(memory) < kept(memory_)) memory_ = std::move(memory);
  }

  // What was loaded stays where it is; requests that need more than that leaves are refused.
  void plan_run(const std::vector<Prepared>& prepared) {
    Parts parts = parts_of(prepared);
    parts.vision |= checkpoint_.model.vision.has_value();
    parts.head |= checkpoint_.model.language_model.lm_head.defined();
    memory_ = refit_bagel_memory(sizes(parts), work_of(prepared), wishes(prepared), budget_,
                                 memory_.choice.offload);
    checkpoint_.strips.reset();
    if (memory_.choice.strips) checkpoint_.strips.emplace();
    report_.strips = memory_.choice.strips;
    const MotLayers& layers = checkpoint_.model.language_model.layers;
    report_.offload = layers.streams({.und = true})   ? "all"
                      : layers.streams({.gen = true}) ? "painting"
                                                      : "none";
    if (!budget_.device) return;
    log_.debug("memory planned: {}", memory_.summary());
    if (memory_.choice.strips && prepared.front().config->vae_tiling == "auto")
      log_.info(
          "the autoencoder works in strips (--vae-tiling on): the same picture but for rounding");
  }

  // Unless they are there: chooses where they lie, so that each of the runs fits.
  void read_weights_for(std::span<const std::vector<Prepared>> runs, Parts parts,
                        Progress& progress) {
    if (writer_ != nullptr) return;
    for (const std::vector<Prepared>& run : runs) plan_loading(run, parts, &run != &runs.front());
    read_weights(progress);
  }

  // What is left before these requests can run, once the weights are there.
  void make_ready(const std::vector<Prepared>& prepared) {
    clock_.start();
    plan_run(prepared);
    const Parts parts = parts_of(prepared);
    if (parts.vision) checkpoint_.load_vision();
    if (parts.head) checkpoint_.load_head();
    clock_.lap(report_, "load", runtime_.device);
  }

  void read_weights(Progress& progress) {
    clock_.start();
    if (budget_.limited)
      limit_memory(runtime_.device, static_cast<std::uint64_t>(*budget_.device - kCudaBytes));
    if (budget_.device && memory_.choice.offload && config_.offload == "auto")
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
    checkpoint_.load(memory_.choice.offload);
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
    tokens_ += static_cast<std::int64_t>(written.ids.size());
    text_seconds_ += written.seconds;
    clock_.lap(report_, "text", runtime_.device);
    return written;
  }

  void answer(Prepared& p, Progress& progress, const Results& results) {
    p.request.seed(p.config->sampling.seed);
    std::optional<PrefilledContexts> contexts;
    const GeneratedText written = write(p.request, progress, contexts);
    report_.attention = runtime_.read_attention->served_by();
    Answer answer;
    answer.text = written.text;
    answer.tokens = static_cast<std::int64_t>(written.ids.size()) - 1;
    answer.seconds = written.seconds;
    results.answer(answer, report_);
  }

  PaintRequest paint_request(const std::vector<Prepared>& prepared) const {
    PaintRequest request = make_paint_request(*prepared.front().config);
    for (const Prepared& p : prepared) request.sizes.push_back(p.size);
    return request;
  }

  // Before anything is read or painted, at the price of the hash: as long as reading all weights.
  void require_calibration(const RunConfig& config) {
    report_.calibration_hash.clear();
    if (config.cache_mode != "teacache") return;
    report_.weights_hash = weights_hash();
    clock_.lap(report_, "hash", runtime_.device);
    const std::filesystem::path path = calibration_path(config);
    StepCalibration::read(path).require_weights(path, report_.weights_hash);
    report_.calibration_hash = file_sha256(path).value_or("").substr(0, 16);
  }

  // What a step cache, or the recorder, keeps of each context between steps.
  std::int64_t cache_bytes(const BagelWork& work, const Prepared& p) const {
    constexpr std::int64_t kFactors = 7;  // of TaylorSeer: the value and six differences
    const std::string& mode = p.config->cache_mode;
    const std::int64_t kept = mode == "taylorseer"              ? kFactors
                              : mode == "teacache" || p.records ? 2
                                                                : 0;
    const BagelConfig& model = checkpoint_.model.config;
    const std::int64_t rows = work.samples * (work.width / model.pixels_per_row()) *
                              (work.height / model.pixels_per_row());
    return kept * work.branches * rows * model.llm.hidden_size *
           static_cast<std::int64_t>(c10::elementSize(runtime_.dtype));
  }

  // Whether what is read depends on the seed, so that each picture of a request reads anew.
  static bool reading_draws(const BagelRequest& request) {
    return !request.images.empty() || (request.think && request.text.sampling.temperature > 0);
  }

  // Plans and contexts of all requests.
  std::unique_ptr<BagelPainter> read(std::vector<Prepared>& prepared, Progress& progress,
                                     const Results& results) {
    std::optional<PrefilledContexts> thought;
    std::vector<BagelRequest> requests;
    for (std::size_t i = 0; i < prepared.size(); ++i) {
      BagelRequest& request = prepared[i].request;
      if (request.think) {
        write(request, progress, thought);
        if (results.plan) results.plan(i, *request.plan);
      }
      requests.push_back(request);
    }
    const PaintRequest paint = paint_request(prepared);
    progress.begin("prefill", 1);
    const bool one = requests.size() == 1 && thought.has_value();
    auto painter = std::make_unique<BagelPainter>(
        checkpoint_, paint,
        read_for_painting(requests, paint, checkpoint_, runtime_, one ? &*thought : nullptr),
        runtime_);
    for (std::size_t i = 0; i < prepared.size(); ++i) prepared[i].request = requests[i];
    progress.update(1);
    progress.end();
    clock_.lap(report_, "prefill", runtime_.device);
    log_.debug("{} distinct contexts", painter->distinct_contexts());
    return painter;
  }

  void paint(std::vector<Prepared>& prepared, Progress& progress, const Results& results) {
    require_calibration(*prepared.front().config);
    const std::int64_t pictures = prepared.front().config->sampling.batch_count;
    std::unique_ptr<BagelPainter> painter;
    for (std::int64_t i = 0; i < pictures; ++i) {
      const bool again =
          std::ranges::any_of(prepared, [](const Prepared& p) { return reading_draws(p.request); });
      for (Prepared& p : prepared) {
        const std::uint64_t seed = p.config->sampling.seed + static_cast<std::uint64_t>(i);
        if (painter == nullptr || again) {
          p.request.seed(seed);
        } else {
          p.request.generator = cpu_generator(seed);
        }
      }
      if (painter == nullptr || again) {
        painter.reset();  // its caches go before the next ones come
        painter = read(prepared, progress, results);
      }
      paint_once(*painter, prepared, static_cast<std::uint64_t>(i), progress, results);
    }
  }

  Tensor start_noise(Prepared& p) const {
    if (p.noise.defined()) return p.noise;
    return draw_noise(p.size, checkpoint_.model.config.row_width(), p.request.generator);
  }

  struct Latent {
    Tensor values;  // [rows of all pictures, row width]
    std::int64_t forwards = 0;
    double seconds = 0;
  };
  Latent paint_latent(const BagelPainter& painter, const Tensor& noise, StepCaching caching,
                      Progress& progress) {
    const std::int64_t before = painter.forwards();
    Latent latent;
    latent.values = painter.paint(noise, progress, caching);
    require_finite(latent.values, "the latent");
    latent.forwards = painter.forwards() - before;
    const bool compared = caching == StepCaching::off && painter.request().caches();
    latent.seconds = clock_.lap(report_, compared ? "uncached" : "denoise", runtime_.device);
    if (compared) return latent;
    denoise_seconds_ += latent.seconds;
    updates_ += painter.updates();
    report_.updates = painter.updates();
    return latent;
  }

  // [r]: of request r, its latent's rows and its picture.
  std::vector<PaintedPicture> decode(const BagelPainter& painter, const Tensor& latent,
                                     Progress& progress) {
    std::vector<PaintedPicture> pictures;
    progress.begin("vae", std::ssize(painter.request().sizes));
    std::int64_t row = 0;
    for (const Tensor& image : painter.decode(latent)) {
      require_finite(image, "the decoded picture");
      const std::int64_t rows = painter.request().sizes[pictures.size()].rows();
      pictures.push_back({latent.narrow(0, row, rows), to_uint8(image).to(at::kCPU)});
      row += rows;
      progress.update(std::ssize(pictures));
    }
    progress.end();
    clock_.lap(report_, "vae", runtime_.device);
    return pictures;
  }

  // Paints the pictures again without the step cache. The trace is of the run that was asked for.
  std::vector<CacheReport> compare_uncached(const BagelPainter& painter, const Tensor& noise,
                                            const Latent& cached,
                                            const std::vector<PaintedPicture>& pictures,
                                            Progress& progress) {
    TraceSink* const trace = std::exchange(runtime_.trace, nullptr);
    const Latent latent = paint_latent(painter, noise, StepCaching::off, progress);
    const std::vector<PaintedPicture> uncached = decode(painter, latent.values, progress);
    runtime_.trace = trace;
    std::vector<CacheReport> reports;
    for (std::size_t r = 0; r < pictures.size(); ++r) {
      CacheReport& report = reports.emplace_back(compare_cached(pictures[r], uncached[r]));
      report.forwards = cached.forwards;
      report.uncached_forwards = latent.forwards;
      report.seconds = cached.seconds;
      report.uncached_seconds = latent.seconds;
      log_.info("{}", describe(report));
    }
    return reports;
  }

  void paint_once(const BagelPainter& painter, std::vector<Prepared>& prepared, std::uint64_t index,
                  Progress& progress, const Results& results) {
    std::vector<Tensor> noise;
    for (Prepared& p : prepared) noise.push_back(start_noise(p));
    const Latent latent = paint_latent(painter, at::cat(noise), StepCaching::on, progress);
    const std::vector<PaintedPicture> painted = decode(painter, latent.values, progress);
    std::vector<CacheReport> reports;
    if (prepared.front().config->cache_report && painter.request().caches())
      reports = compare_uncached(painter, at::cat(noise), latent, painted, progress);
    std::vector<Picture> pictures;
    for (std::size_t r = 0; r < prepared.size(); ++r) {
      const Prepared& p = prepared[r];
      Picture& picture = pictures.emplace_back();
      picture.request = r;
      picture.rgb = painted[r].rgb;
      picture.index = index;
      picture.seed = p.config->sampling.seed + index;
      picture.forwards = latent.forwards;
      picture.noise_hash = short_hash(noise[r]);
      picture.latent_hash = short_hash(painted[r].latent);
      picture.plan = p.request.plan.value_or("");
      picture.inputs = p.inputs;
      if (!reports.empty()) picture.cache_report = reports[r];
    }
    report_.attention = runtime_.paint_attention->served_by();
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
  ImageTransforms transforms_;
  MemoryBudget budget_;
  BagelMemory memory_;                  // of the last requests
  std::unique_ptr<TextWriter> writer_;  // null until the weights are loaded
  std::unique_ptr<BackgroundHash> weights_hash_;
  double denoise_seconds_ = 0, text_seconds_ = 0;
  std::int64_t updates_ = 0, tokens_ = 0;
};

}  // namespace

std::unique_ptr<Session> open_bagel(const RunConfig& config, Log& log) {
  return std::make_unique<BagelSession>(config, log);
}

}  // namespace diptych
