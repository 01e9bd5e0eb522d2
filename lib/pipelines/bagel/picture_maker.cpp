#include "lib/pipelines/bagel/picture_maker.h"

#include <utility>

namespace diptych {

double BagelPictureMaker::steps_per_second() const {
  return denoise_seconds_ > 0 ? static_cast<double>(updates_) / denoise_seconds_ : 0;
}

BagelPictureMaker::Latent BagelPictureMaker::paint_latent(BagelPainter& painter,
                                                          const Tensor& noise, StepCaching caching,
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
  report_.step_graphs = painter.used_graphs();
  return latent;
}

// [r]: of request r, its latent's rows and its picture.
std::vector<PaintedPicture> BagelPictureMaker::decode(const BagelPainter& painter,
                                                      const Tensor& latent, Progress& progress) {
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
std::vector<CacheReport> BagelPictureMaker::compare_uncached(
    BagelPainter& painter, const Tensor& noise, const Latent& cached,
    const std::vector<PaintedPicture>& pictures, Progress& progress) {
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

std::vector<Picture> BagelPictureMaker::paint(BagelPainter& painter,
                                              std::vector<BagelPrepared>& prepared,
                                              std::uint64_t index, Progress& progress) {
  std::vector<Tensor> noise;
  for (BagelPrepared& p : prepared) noise.push_back(p.start_noise(painter.row_width()));
  const Latent latent = paint_latent(painter, at::cat(noise), StepCaching::on, progress);
  const std::vector<PaintedPicture> painted = decode(painter, latent.values, progress);
  std::vector<CacheReport> reports;
  if (prepared.front().config->cache_report && painter.request().caches())
    reports = compare_uncached(painter, at::cat(noise), latent, painted, progress);
  std::vector<Picture> pictures;
  for (std::size_t r = 0; r < prepared.size(); ++r) {
    const BagelPrepared& p = prepared[r];
    Picture& picture = pictures.emplace_back();
    picture.request = r;
    picture.rgb = painted[r].rgb;
    picture.index = index;
    picture.seed = p.config->sampling.seed + index;
    picture.forwards = latent.forwards;
    picture.noise_hash = short_hash(noise[r]);
    picture.latent = painted[r].latent.to(at::kCPU);
    picture.latent_hash = short_hash(picture.latent);
    picture.plan = p.request.plan.value_or("");
    picture.plan_finish_reason = p.request.plan_finish_reason;
    picture.inputs = p.inputs;
    if (!reports.empty()) picture.cache_report = reports[r];
  }
  return pictures;
}

}  // namespace diptych
