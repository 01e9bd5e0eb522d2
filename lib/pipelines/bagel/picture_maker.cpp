#include "lib/pipelines/bagel/picture_maker.h"

#include <utility>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/session/hashes.h"

namespace diptych {

double BagelPictureMaker::steps_per_second() const {
  return denoise_seconds_ > 0 ? static_cast<double>(updates_) / denoise_seconds_ : 0;
}

BagelPictureMaker::Latent BagelPictureMaker::paint_latent(MotPainter& painter, const Tensor& noise,
                                                          StepCaching caching, TraceSink* trace,
                                                          Progress& progress) {
  const std::int64_t before = painter.forwards();
  Latent latent;
  latent.values = painter.paint(noise, trace, progress, caching);
  require_finite(latent.values, "the latent");
  latent.forwards = painter.forwards() - before;
  const bool compared = caching == StepCaching::off && painter.request().caches();
  latent.seconds = clock_.lap(report_, compared ? "uncached" : "denoise", runtime_.device);
  log_.mark("the latent is painted");
  if (compared) return latent;
  denoise_seconds_ += latent.seconds;
  updates_ += painter.updates();
  report_.updates = painter.updates();
  report_.step_graphs = painter.used_graphs();
  return latent;
}

// rows: of one picture -> float32 [1, 3, H, W], not clamped. One picture has plain names in the
// trace, a batch numbers them.
Tensor BagelPictureMaker::decode_one(const Tensor& rows, const LatentSize& size,
                                     const std::string& number, TraceSink* trace) const {
  const BagelConfig& config = checkpoint_.model.config;
  const Tensor input =
      unpack_latent(rows, size.h, size.w, config.latent_patch_size, config.latent_channels);
  Tensor image = checkpoint_.vae.decode(input, {}, checkpoint_.strips);
  if (trace != nullptr) {
    if (!number.empty()) trace->record(fmt::format("result{}.latent", number), rows);
    trace->record("vae.decode_input" + number, input);
    trace->record("vae.decoded" + number, image);
    trace->record(fmt::format("image{}.uint8", number), to_uint8(image));
  }
  return image;
}

void BagelPictureMaker::rehearse(const LatentSize& size,
                                 const std::optional<VaeStrips>& strips) const {
  const BagelConfig& config = checkpoint_.model.config;
  const auto options = at::TensorOptions(at::kFloat).device(runtime_.device);
  const Tensor rows = at::zeros({size.rows(), config.row_width()}, options);
  const Tensor input =
      unpack_latent(rows, size.h, size.w, config.latent_patch_size, config.latent_channels);
  to_uint8(checkpoint_.vae.decode(input, {}, strips));
}

// [r]: of request r, its latent's rows and its picture.
std::vector<PaintedPicture> BagelPictureMaker::decode(const MotPainter& painter,
                                                      const Tensor& latent, TraceSink* trace,
                                                      Progress& progress) {
  before_decoding_();
  const std::vector<LatentSize>& sizes = painter.request().sizes;
  std::vector<PaintedPicture> pictures;
  progress.begin("vae", std::ssize(sizes));
  std::int64_t row = 0;
  for (const LatentSize& size : sizes) {
    check_interrupted();
    const std::string number = sizes.size() == 1 ? "" : fmt::format(".{}", pictures.size());
    const Tensor rows = latent.narrow(0, row, size.rows());
    const Tensor image = decode_one(rows, size, number, trace);
    require_finite(image, "the decoded picture");
    pictures.push_back({rows, to_uint8(image).to(at::kCPU)});
    row += size.rows();
    progress.update(std::ssize(pictures));
  }
  progress.end();
  clock_.lap(report_, "vae", runtime_.device);
  log_.mark("pictures are decoded");
  return pictures;
}

// Paints the pictures again without the step cache, and without the trace, which is of the run that
// was asked for.
std::vector<CacheReport> BagelPictureMaker::compare_uncached(
    MotPainter& painter, const Tensor& noise, const Latent& cached,
    const std::vector<PaintedPicture>& pictures, Progress& progress) {
  const Latent latent = paint_latent(painter, noise, StepCaching::off, nullptr, progress);
  const std::vector<PaintedPicture> uncached = decode(painter, latent.values, nullptr, progress);
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

std::vector<Result> BagelPictureMaker::paint(MotPainter& painter, std::span<BagelTurn> turns,
                                             std::uint64_t index, TraceSink* trace,
                                             Progress& progress) {
  std::vector<Tensor> noise;
  for (BagelTurn& turn : turns) noise.push_back(turn.start_noise(painter.row_width(), log_));
  const Tensor all_noise = at::cat(noise);
  const Latent latent = paint_latent(painter, all_noise, StepCaching::on, trace, progress);
  const std::vector<PaintedPicture> painted = decode(painter, latent.values, trace, progress);
  std::vector<CacheReport> reports;
  if (turns.front().job->config().cache_report && painter.request().caches())
    reports = compare_uncached(painter, all_noise, latent, painted, progress);
  std::vector<Result> results;
  for (std::size_t r = 0; r < turns.size(); ++r) {
    const BagelTurn& turn = turns[r];
    Result& result = results.emplace_back();
    result.request = r;
    result.media = Picture{painted[r].rgb};
    result.index = index;
    result.seed = turn.job->config().sampling.seed + index;
    result.forwards = latent.forwards;
    result.noise_hash = short_hash(noise[r]);
    result.latent = painted[r].latent.to(at::kCPU);
    result.latent_hash = short_hash(result.latent);
    result.plan = turn.plan.value_or("");
    result.plan_finish_reason = turn.plan_finish_reason;
    result.inputs = turn.job->inputs;
    if (!reports.empty()) result.cache_report = reports[r];
  }
  return results;
}

}  // namespace diptych
