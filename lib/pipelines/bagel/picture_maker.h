// From start noise to finished pictures of BAGEL, with their record and the seconds of each stage.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/session/cache_report.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class BagelPictureMaker {
 public:
  // Of a session, and what it lends; all must outlive this.
  BagelPictureMaker(Runtime& runtime, Log& log, Report& report, StageClock& clock)
      : runtime_(runtime), log_(log), report_(report), clock_(clock) {}

  struct Latent {
    Tensor values;  // [rows of all pictures, row width]
    std::int64_t forwards = 0;
    double seconds = 0;
  };
  // Throws RunError where it is not finite.
  Latent paint_latent(BagelPainter& painter, const Tensor& noise, StepCaching caching,
                      Progress& progress);
  // Picture number `index` of every request, in their order. Draws the start noise; throws as
  // paint_latent.
  std::vector<Picture> paint(BagelPainter& painter, std::vector<BagelPrepared>& prepared,
                             std::uint64_t index, Progress& progress);
  double steps_per_second() const;  // of all that was painted so far, 0 = nothing

 private:
  std::vector<PaintedPicture> decode(const BagelPainter& painter, const Tensor& latent,
                                     Progress& progress);
  std::vector<CacheReport> compare_uncached(BagelPainter& painter, const Tensor& noise,
                                            const Latent& cached,
                                            const std::vector<PaintedPicture>& pictures,
                                            Progress& progress);

  Runtime& runtime_;
  Log& log_;
  Report& report_;
  StageClock& clock_;
  double denoise_seconds_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace diptych
