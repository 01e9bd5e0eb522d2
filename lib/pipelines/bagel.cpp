#include "lib/pipelines/bagel.h"

#include <future>
#include <limits>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/bagel_memory.h"
#include "lib/pipelines/bagel_trace.h"
#include "lib/pipelines/make_runtime.h"
#include "lib/runtime/host_memory.h"
#include "lib/sampling/step_calibration.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

Guidance make_guidance(const SamplingConfig& s) {
  Guidance g;
  g.text_scale = s.cfg_text_scale;
  g.image_scale = s.cfg_img_scale;
  g.interval_low = s.cfg_interval_low;
  g.interval_high = s.cfg_interval_high;
  g.renorm = parse_renorm(s.cfg_renorm_type);
  g.renorm_min = s.cfg_renorm_min;
  return g;
}

// The tensor init_noise (or gen.init_noise, of a trace) of a file: the start noise of one picture.
Tensor read_noise(const std::filesystem::path& path, std::int64_t rows, std::int64_t width) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const char* name = file.entries().contains("init_noise") ? "init_noise" : "gen.init_noise";
  if (!file.entries().contains(name)) {
    throw InputError("{}: has no tensor 'init_noise' or 'gen.init_noise'", path.string());
  }
  const Tensor noise = file.view(name);
  if (!noise.is_floating_point() || noise.dim() != 2 || noise.size(0) != rows ||
      noise.size(1) != width) {
    throw InputError("{}: {}: found {} {}, expected float32 [{}, {}]", path.string(), name,
                     c10::toString(noise.scalar_type()), fmt::join(noise.sizes().vec(), "x"), rows,
                     width);
  }
  if (!noise.isfinite().all().item<bool>()) {
    throw InputError("{}: {}: holds NaN or infinity", path.string(), name);
  }
  return noise.to(at::kFloat).clone();
}

std::string tensor_hash(const Tensor& values) {
  const Tensor bytes = values.to(at::kCPU).contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return sha256_hex(std::span(data, bytes.nbytes()));
}
std::string short_hash(const Tensor& values) {
  return tensor_hash(values.to(at::kFloat)).substr(0, 16);
}

// Seconds per stage, in the order of their first lap.
class StageClock {
 public:
  void start() { last_ = steady_seconds(); }
  // Adds the time since start() or the last lap to `stage`, once the device is done.
  double lap(Report& report, const std::string& stage, at::Device device) {
    synchronize(device);
    const double now = steady_seconds(), seconds = now - std::exchange(last_, now);
    for (auto& [name, sum] : report.seconds) {
      if (name == stage) return sum += seconds, seconds;
    }
    report.seconds.emplace_back(stage, seconds);
    return seconds;
  }

 private:
  double last_ = 0;
};

// One wait for the device, after the loop: a picture of NaN would be black and look like a result.
void require_finite(const Tensor& values, std::string_view what) {
  if (values.isfinite().all().item<bool>()) return;
  throw RunError("{} is not finite (NaN or infinity): weights, start noise or scales out of range",
                 what);
}

// Names the weights beside the painting: it reads every byte of them. Stops when it goes.
class BackgroundHash {
 public:
  explicit BackgroundHash(const BagelCheckpoint& checkpoint)
      : thread_([this, &checkpoint](const std::stop_token& stop) {
          try {
            promise_.set_value(checkpoint.weights_hash(stop));
          } catch (...) {
            promise_.set_exception(std::current_exception());
          }
        }) {}
  std::string get() { return future_.get(); }

 private:
  std::promise<std::string> promise_;
  std::shared_future<std::string> future_ = promise_.get_future().share();
  std::jthread thread_;  // last: it is joined before the promise goes
};

void check_counts(const RunConfig& config) {
  const std::int64_t count = config.sampling.batch_count;
  if (count == 1) return;
  if (config.answers())
    throw InputError("--batch-count: pictures only, found --task {}", config.task);
  const auto last = static_cast<std::uint64_t>(count - 1);
  if (config.sampling.seed > std::numeric_limits<std::uint64_t>::max() - last) {
    throw InputError("--seed: {} + {} does not fit in 64 bits", config.sampling.seed, last);
  }
  if (!config.trace.empty()) {
    throw InputError("--trace: one picture at a time, found --batch-count {}", count);
  }
  if (!config.noise.empty()) {
    throw InputError("--noise: one picture at a time, found --batch-count {}", count);
  }
}

TextRequest make_text_request(const RunConfig& config) {
  TextRequest request;
  request.max_tokens = config.think ? config.text.max_think_tokens : config.text.max_tokens;
  request.sampling.temperature = config.text.temperature;
  request.sampling.top_k = config.text.top_k;
  request.sampling.top_p = config.text.top_p;
  return request;
}

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
  }

  void check(const RunConfig& config) override { prepare(config); }

  void load(std::span<const std::vector<RunConfig>> expected, Progress& progress) override {
    if (writer_ != nullptr) return;
    const bool vision = std::ranges::any_of(expected, reads_any_image);
    bool planned = false;
    for (const std::vector<RunConfig>& configs : expected) {
      // On the CPU nothing is chosen.
      if (planned && !budget_.device) break;
      try {
        plan_loading(prepare_all(configs), vision, planned);
        planned = true;
      } catch (const InputError&) {  // run() will say so, of these requests alone
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
                      c.vae_tiling);
    };
    const auto alone = [](const RunConfig& c) {
      return c.answers() || c.sampling.batch_count != 1 || !c.trace.empty();
    };
    return !alone(a) && !alone(b) && shared(a) == shared(b);
  }

  void run(std::span<const RunConfig> configs, Progress& progress,
           const Results& results) override {
    std::vector<Prepared> prepared = prepare_all(configs);
    const bool vision = reads_any_image(configs);
    if (writer_ == nullptr) {
      plan_loading(prepared, vision, /*others=*/false);
      read_weights(progress);
    }
    clock_.start();
    plan_run(prepared);
    if (vision) checkpoint_.load_vision();
    clock_.lap(report_, "load", runtime_.device);
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
      if (trace->tensors().empty()) log_.warning("--trace-filter: matches no tensor of this run");
      trace->write(first.trace);
    }
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
        throw InputError("attention backend {}: {}", backend->name(), *reason);
    }
  }

  // A request as the model reads it; checked, nothing computed.
  struct Prepared {
    const RunConfig* config = nullptr;
    BagelRequest request;
    std::vector<InputRecord> inputs;
    LatentSize size;
    Tensor noise;  // given by a file
  };

  std::vector<Prepared> prepare_all(std::span<const RunConfig> configs) {
    std::vector<Prepared> prepared;
    for (const RunConfig& config : configs) prepared.push_back(prepare(config));
    return prepared;
  }

  static bool reads_any_image(std::span<const RunConfig> configs) {
    return std::ranges::any_of(configs, &RunConfig::reads_images);
  }

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
      const Tensor pixels = read_image(item.image);
      p.inputs.push_back({tensor_hash(pixels), pixels.size(1), pixels.size(0)});
      request.images.push_back(BagelImage::prepare(pixels, transforms_, checkpoint_.model.config));
    }
    request.reading(checkpoint_);  // too long a text is said here
    if (!request.answers && config.cache_mode == "teacache")
      StepCalibration::read(calibration_path(config));
    if (request.answers) return p;
    const SamplingConfig& s = config.sampling;
    p.size =
        s.size_of_input ? request.images.back().latent : checkpoint_.latent_size(s.width, s.height);
    if (!config.noise.empty())
      p.noise = read_noise(config.noise, p.size.rows(), checkpoint_.model.config.row_width());
    return p;
  }

  // The most that these requests do at once.
  BagelWork work_of(const std::vector<Prepared>& prepared) const {
    BagelWork work;
    const auto raise = [](std::int64_t& most, std::int64_t value) { most = std::max(most, value); };
    std::vector<BagelReading> readings;
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
    std::vector<std::vector<BagelContext>> distinct;
    for (const BranchContexts& branch : branches) {
      if (std::ranges::find(distinct, branch.samples) == distinct.end())
        distinct.push_back(branch.samples);
      for (const BagelContext& context : branch.samples) {
        raise(work.context_tokens, context.length());
        for (std::size_t i = 0; i < context.segments.size(); ++i) {
          raise(work.prefill_rows, context.length_before(i + 1) - context.length_before(i));
        }
      }
    }
    work.branches = static_cast<std::int64_t>(distinct.size());
    work.cache_bytes = cache_bytes(work, config.cache_mode);
    const TextRequest& text = prepared.front().request.text;
    if (config.think || config.answers()) work.context_tokens += text.max_tokens;
    const auto is_math = [](const auto& backend) { return backend->name() == "math"; };
    work.writes_logits = is_math(runtime_.read_attention) || is_math(runtime_.paint_attention);
    return work;
  }

  BagelSizes sizes(bool vision) const {
    return {checkpoint_.model.config, checkpoint_.vae.config, runtime_.dtype, vision};
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
  void plan_loading(const std::vector<Prepared>& prepared, bool vision, bool others) {
    const auto kept = [](const BagelMemory& memory) {
      const std::optional<MotOffload>& offload = memory.choice.offload;
      return offload ? offload->resident_und + offload->resident_gen
                     : std::numeric_limits<std::int64_t>::max();
    };
    BagelMemory memory =
        fit_bagel_memory(sizes(vision), work_of(prepared), wishes(prepared), budget_);
    if (!others || kept(memory) < kept(memory_)) memory_ = std::move(memory);
  }

  // What was loaded stays where it is; requests that need more than that leaves are refused.
  void plan_run(const std::vector<Prepared>& prepared) {
    bool vision = checkpoint_.model.vision.has_value();
    for (const Prepared& p : prepared) vision |= !p.request.images.empty();
    memory_ = refit_bagel_memory(sizes(vision), work_of(prepared), wishes(prepared), budget_,
                                 memory_.choice.offload);
    checkpoint_.strips.reset();
    if (memory_.choice.strips) checkpoint_.strips.emplace();
    if (!budget_.device) return;
    log_.debug("memory planned: {}", memory_.summary());
    if (memory_.choice.strips && prepared.front().config->vae_tiling == "auto")
      log_.info("the autoencoder works in strips (--vae-tiling on): the picture is the same");
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
    progress.end();
    writer_ = std::make_unique<TextWriter>(checkpoint_, runtime_);
    weights_hash_ = std::make_unique<BackgroundHash>(checkpoint_);
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
    const RunConfig& config = *prepared.front().config;
    PaintRequest request;
    for (const Prepared& p : prepared) request.sizes.push_back(p.size);
    request.guidance = make_guidance(config.sampling);
    request.cfg_mode = parse_cfg_mode(config.cfg_mode);
    request.steps = config.sampling.steps;
    request.timestep_shift = config.sampling.timestep_shift;
    request.step_cache.mode = parse_step_cache_mode(config.cache_mode);
    if (request.step_cache.mode == StepCacheMode::teacache) {
      request.step_cache.threshold = config.cache_threshold;
      request.step_cache.coefficients =
          StepCalibration::read(calibration_path(config)).coefficients;
    }
    return request;
  }

  static std::filesystem::path calibration_path(const RunConfig& config) {
    return config.cache_calibration.empty() ? config.model / "diptych_teacache.json"
                                            : config.cache_calibration;
  }

  // Asked where the hash is known, which takes as long as reading all weights: before a picture is
  // handed over.
  void require_calibration(const RunConfig& config) {
    report_.calibration_hash.clear();
    if (config.cache_mode != "teacache") return;
    const std::filesystem::path path = calibration_path(config);
    StepCalibration::read(path).require_weights(path, report_.weights_hash);
    report_.calibration_hash = file_sha256(path).value_or("").substr(0, 16);
  }

  // What a step cache keeps of each context between steps.
  std::int64_t cache_bytes(const BagelWork& work, std::string_view mode) const {
    constexpr std::int64_t kFactors = 7;  // of TaylorSeer: the value and six differences
    const std::int64_t kept = mode == "taylorseer" ? kFactors : mode == "teacache" ? 2 : 0;
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
        if (results.plan) results.plan(i, request.plan);
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
    progress.end();
    clock_.lap(report_, "prefill", runtime_.device);
    log_.debug("{} distinct contexts", painter->distinct_contexts());
    return painter;
  }

  void paint(std::vector<Prepared>& prepared, Progress& progress, const Results& results) {
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

  void paint_once(const BagelPainter& painter, std::vector<Prepared>& prepared, std::uint64_t index,
                  Progress& progress, const Results& results) {
    std::vector<Tensor> noise;
    for (Prepared& p : prepared) {
      noise.push_back(p.noise.defined() ? p.noise
                                        : draw_noise(p.size, checkpoint_.model.config.row_width(),
                                                     p.request.generator));
    }
    const std::int64_t forwards_before = painter.forwards();
    const Tensor latent = painter.paint(at::cat(noise), progress);
    require_finite(latent, "the latent");
    denoise_seconds_ += clock_.lap(report_, "denoise", runtime_.device);
    updates_ += painter.updates();
    report_.updates = painter.updates();
    progress.begin("vae", static_cast<std::int64_t>(prepared.size()));
    const std::vector<Tensor> images = painter.decode(latent);
    std::vector<Picture> pictures;
    std::int64_t row = 0;
    for (std::size_t r = 0; r < prepared.size(); ++r) {
      const Prepared& p = prepared[r];
      require_finite(images[r], "the decoded picture");
      Picture picture;
      picture.request = r;
      picture.rgb = to_uint8(images[r]).to(at::kCPU);
      picture.index = index;
      picture.seed = p.config->sampling.seed + index;
      picture.forwards = painter.forwards() - forwards_before;
      picture.noise_hash = short_hash(noise[r]);
      picture.latent_hash = short_hash(latent.narrow(0, row, p.size.rows()));
      picture.plan = p.request.plan;
      picture.inputs = p.inputs;
      row += p.size.rows();
      pictures.push_back(std::move(picture));
      progress.update(static_cast<std::int64_t>(r) + 1);
    }
    progress.end();
    clock_.lap(report_, "vae", runtime_.device);
    report_.attention = runtime_.paint_attention->served_by();
    report_.weights_hash = weights_hash();
    require_calibration(*prepared.front().config);
    clock_.lap(report_, "hash", runtime_.device);
    progress.begin("encode", static_cast<std::int64_t>(pictures.size()));
    for (const Picture& picture : pictures) {
      report_.latent_hashes.push_back(picture.latent_hash);
      results.picture(picture, report_);
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
