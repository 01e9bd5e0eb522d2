#include "lib/pipelines/bagel.h"

#include <future>
#include <limits>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/pipelines/make_runtime.h"
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
  const Tensor bytes = values.to(at::kCPU, at::kFloat).contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return sha256_hex(std::span(data, bytes.nbytes())).substr(0, 16);
}

class StageClock {
 public:
  StageClock(Report& report, at::Device device)
      : report_(report), device_(device), last_(steady_seconds()) {}
  // Adds the time since the last call to `stage`.
  double lap(const std::string& stage) {
    synchronize(device_);
    const double now = steady_seconds(), seconds = now - std::exchange(last_, now);
    for (auto& [name, sum] : report_.seconds) {
      if (name == stage) return sum += seconds, seconds;
    }
    report_.seconds.emplace_back(stage, seconds);
    return seconds;
  }

 private:
  Report& report_;
  at::Device device_;
  double last_;
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

void check_batch(const RunConfig& config) {
  const std::int64_t count = config.sampling.batch_count;
  if (count == 1) return;
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

PaintRequest make_request(const RunConfig& config, const BagelCheckpoint& checkpoint) {
  PaintRequest request;
  request.prompts = {config.prompt};
  request.sizes = {checkpoint.latent_size(config.sampling.width, config.sampling.height)};
  request.guidance = make_guidance(config.sampling);
  request.cfg_mode = parse_cfg_mode(config.cfg_mode);
  request.steps = config.sampling.steps;
  request.timestep_shift = config.sampling.timestep_shift;
  checkpoint.text_segment(config.prompt);  // too long a prompt is said before loading
  return request;
}

void load_with_progress(BagelCheckpoint& checkpoint, Progress& progress) {
  constexpr std::uint64_t kMebi = 1 << 20;
  const std::uint64_t total =
      checkpoint.model_weights.total_bytes() + checkpoint.vae_weights.total_bytes();
  progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
  std::uint64_t done = 0;
  const auto count = [&](std::uint64_t bytes) {
    progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
  };
  checkpoint.model_weights.on_read(count);
  checkpoint.vae_weights.on_read(count);
  checkpoint.load();
  checkpoint.model_weights.on_read({});
  checkpoint.vae_weights.on_read({});
  progress.end();
}

}  // namespace

Report run_bagel(const RunConfig& config, Log& log, Progress& progress, const PictureFn& deliver) {
  check_batch(config);
  std::optional<TraceSink> trace;
  if (!config.trace.empty()) trace.emplace(config.trace_filter);
  const Runtime runtime = make_runtime(config, log, trace ? &*trace : nullptr);
  reset_peak_memory(runtime.device);
  Report report;
  report.device = device_description(runtime.device);
  report.dtype = runtime.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  log.debug("device {}, {}, kernels {}, attention {} and {}", report.device, report.dtype,
            config.kernels, runtime.read_attention->name(), runtime.paint_attention->name());
  StageClock clock(report, runtime.device);

  BagelCheckpoint checkpoint =
      BagelCheckpoint::open(config.model, config.load_format == "dummy", runtime);
  const PaintRequest request = make_request(config, checkpoint);
  const std::int64_t rows = request.sizes.front().rows();
  const std::int64_t width = checkpoint.model.config.row_width();
  const Tensor given_noise =
      config.noise.empty() ? Tensor() : read_noise(config.noise, rows, width);
  load_with_progress(checkpoint, progress);
  clock.lap("load");
  BackgroundHash weights_hash(checkpoint);

  progress.begin("prefill", 1);
  BagelPainter painter(checkpoint, request, runtime);
  progress.end();
  clock.lap("prefill");
  log.debug("{} distinct contexts, {} latent rows a branch", painter.distinct_contexts(), rows);
  double denoise_seconds = 0;
  report.updates = painter.updates();
  for (std::int64_t i = 0; i < config.sampling.batch_count; ++i) {
    Picture picture;
    picture.index = static_cast<std::uint64_t>(i);
    picture.seed = config.sampling.seed + picture.index;
    const Tensor noise =
        given_noise.defined() ? given_noise : draw_noise(request, width, picture.seed);
    const std::int64_t forwards_before = painter.forwards();
    const Tensor latent = painter.paint(noise, progress);
    require_finite(latent, "the latent");
    denoise_seconds += clock.lap("denoise");
    progress.begin("vae", 1);
    const Tensor image = painter.decode(latent).front();
    require_finite(image, "the decoded picture");
    picture.rgb = to_uint8(image).to(at::kCPU);
    progress.end();
    clock.lap("vae");
    picture.forwards = painter.forwards() - forwards_before;
    picture.noise_hash = tensor_hash(noise);
    picture.latent_hash = tensor_hash(latent);
    report.latent_hashes.push_back(picture.latent_hash);
    report.attention = runtime.paint_attention->served_by();
    report.weights_hash = weights_hash.get();
    clock.lap("hash");
    deliver(picture, report);
    clock.lap("encode");
  }
  if (trace) {
    if (trace->tensors().empty()) log.warning("--trace-filter: matches no tensor of this run");
    trace->write(config.trace);
  }
  report.steps_per_second =
      static_cast<double>(painter.updates() * config.sampling.batch_count) / denoise_seconds;
  report.peak_bytes = peak_memory_bytes(runtime.device);
  return report;
}

}  // namespace diptych
