#include "lib/pipelines/mot/picture_maker.h"

#include <utility>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/session/hashes.h"

namespace diptych {

double MotPictureMaker::steps_per_second() const {
  return denoise_seconds_ > 0 ? static_cast<double>(updates_) / denoise_seconds_ : 0;
}

MotPictureMaker::Latent MotPictureMaker::paint_latent(MotPainter& painter, const Tensor& noise,
                                                      StepCaching caching, MotTrace* trace,
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

// [r]: of request r, its latent's rows and what they show.
std::vector<MotPictureMaker::Decoded> MotPictureMaker::decode(const MotPainter& painter,
                                                              const MotTurns& turns,
                                                              const Tensor& latent, MotTrace* trace,
                                                              Progress& progress) {
  rehearsal_.finish(log_);
  const std::vector<LatentSize>& sizes = painter.request().sizes;
  std::vector<Decoded> decoded;
  // The frames of a clip are decoded while they are encoded.
  const bool later = turns.front()->job().clip_shape().has_value();
  if (!later) progress.begin("vae", std::ssize(sizes));
  std::int64_t row = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    check_interrupted();
    const std::string number = sizes.size() == 1 ? "" : fmt::format(".{}", r);
    const Tensor rows = latent.narrow(0, row, sizes[r].rows());
    decoded.push_back({rows, turns[r]->decode(rows, number, log_, trace)});
    row += sizes[r].rows();
    if (!later) progress.update(std::ssize(decoded));
  }
  progress.end();
  clock_.lap(report_, "vae", runtime_.device);
  log_.mark("pictures are decoded");
  return decoded;
}

// Paints again without the step cache, and without the trace, which is of the run that was asked
// for.
std::vector<CacheReport> MotPictureMaker::compare_uncached(
    MotPainter& painter, const MotTurns& turns, const Tensor& noise, const Latent& cached,
    std::vector<Decoded>& painted, Progress& progress) {
  std::vector<Painted> kept;  // a clip is decoded before the session goes on
  for (Decoded& one : painted) kept.push_back({one.latent, pixels_of(one.media)});
  clock_.lap(report_, "vae", runtime_.device);
  const Latent latent = paint_latent(painter, noise, StepCaching::off, nullptr, progress);
  std::vector<Decoded> uncached = decode(painter, turns, latent.values, nullptr, progress);
  std::vector<CacheReport> reports;
  for (std::size_t r = 0; r < kept.size(); ++r) {
    CacheReport& report = reports.emplace_back(
        compare_cached(kept[r], {uncached[r].latent, pixels_of(uncached[r].media)}));
    report.forwards = cached.forwards;
    report.uncached_forwards = latent.forwards;
    report.seconds = cached.seconds;
    report.uncached_seconds = latent.seconds;
    log_.info("{}", describe(report));
  }
  clock_.lap(report_, "uncached", runtime_.device);
  return reports;
}

std::vector<Result> MotPictureMaker::paint(MotPainter& painter, MotTurns& turns,
                                           std::uint64_t index, MotTrace* trace,
                                           Progress& progress) {
  std::vector<Tensor> noise;
  for (const auto& turn : turns) noise.push_back(turn->start_latent(log_, trace));
  const Tensor all_noise = at::cat(noise);
  const Latent latent = paint_latent(painter, all_noise, StepCaching::on, trace, progress);
  std::vector<Decoded> painted = decode(painter, turns, latent.values, trace, progress);
  std::vector<CacheReport> reports;
  if (turns.front()->job().config().cache_report && painter.request().caches())
    reports = compare_uncached(painter, turns, all_noise, latent, painted, progress);
  std::vector<Result> results;
  for (std::size_t r = 0; r < turns.size(); ++r) {
    const MotTurn& turn = *turns[r];
    Result& result = results.emplace_back();
    result.request = r;
    result.media = std::move(painted[r].media);
    result.index = index;
    result.seed = turn.job().config().sampling.seed + index;
    result.forwards = latent.forwards;
    result.noise_hash = short_hash(noise[r]);
    result.latent = painted[r].latent.to(at::kCPU);
    result.latent_hash = short_hash(result.latent);
    result.plan = turn.plan.value_or("");
    result.plan_finish_reason = turn.plan_finish_reason;
    result.inputs = turn.job().inputs;
    if (!reports.empty()) result.cache_report = reports[r];
  }
  return results;
}

}  // namespace diptych
