#include "lib/pipelines/bagel.h"

#include <future>
#include <optional>

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

// The one floating-point tensor of a file, as the start noise of one picture.
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
  return noise.to(at::kFloat).clone();
}

std::string latent_hash(const Tensor& latent) {
  const Tensor bytes = latent.to(at::kCPU, at::kFloat).contiguous();
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

}  // namespace

Result run_bagel(const RunConfig& config, Log& log, Progress& progress) {
  std::optional<TraceSink> trace;
  if (!config.trace.empty()) {
    if (config.sampling.batch_count > 1)
      throw InputError("--trace: one picture at a time, found --batch-count {}",
                       config.sampling.batch_count);
    trace.emplace(config.trace_filter);
  }
  if (!config.noise.empty() && config.sampling.batch_count > 1) {
    throw InputError("--noise: one picture at a time, found --batch-count {}",
                     config.sampling.batch_count);
  }
  const Runtime runtime = make_runtime(config, log, trace ? &*trace : nullptr);
  reset_peak_memory(runtime.device);
  Result result;
  StageClock clock(result.report, runtime.device);

  progress.begin("load", 1);
  BagelCheckpoint checkpoint =
      BagelCheckpoint::open(config.model, config.load_format == "dummy", runtime);
  const SamplingConfig& sampling = config.sampling;
  PaintRequest request;
  request.prompts = {config.prompt};
  request.sizes = {checkpoint.latent_size(sampling.width, sampling.height)};
  request.guidance = make_guidance(sampling);
  request.cfg_mode = parse_cfg_mode(config.cfg_mode);
  request.steps = sampling.steps;
  request.timestep_shift = sampling.timestep_shift;
  const std::int64_t rows = request.sizes.front().rows(),
                     width = checkpoint.model.config.row_width();
  Tensor given_noise;
  if (!config.noise.empty()) given_noise = read_noise(config.noise, rows, width);
  checkpoint.text_segment(config.prompt);  // too long a prompt is said before loading
  checkpoint.load();
  progress.end();
  clock.lap("load");
  check_interrupted();
  // Naming the weights reads every byte of them: done while the device paints.
  std::future<std::string> weights_hash =
      std::async(std::launch::async, [&checkpoint] { return checkpoint.weights_hash(); });

  const BagelPainter painter(checkpoint, request, runtime);
  clock.lap("prefill");
  double denoise_seconds = 0;
  for (std::int64_t i = 0; i < sampling.batch_count; ++i) {
    const std::uint64_t seed = sampling.seed + static_cast<std::uint64_t>(i);
    const Tensor latent = painter.paint(
        given_noise.defined() ? given_noise : draw_noise(request, width, seed), progress);
    denoise_seconds += clock.lap("denoise");
    const Tensor rgb = to_uint8(painter.decode(latent).front()).to(at::kCPU);
    result.pictures.push_back({rgb, seed, latent_hash(latent)});
    clock.lap("vae");
  }
  if (trace) trace->write(config.trace);

  Report& report = result.report;
  report.updates = painter.updates();
  report.forwards = painter.forwards();
  report.steps_per_second =
      static_cast<double>(painter.updates() * sampling.batch_count) / denoise_seconds;
  report.peak_bytes = peak_memory_bytes(runtime.device);
  report.device = device_description(runtime.device);
  report.dtype = runtime.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  report.attention = runtime.paint_attention->served_by();
  report.weights_hash = weights_hash.get();
  return result;
}

}  // namespace diptych
