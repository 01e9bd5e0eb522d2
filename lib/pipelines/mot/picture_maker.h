// From start noise to finished pictures and clips, with their record and the seconds of each stage.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/pipelines/mot/job.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/session/cache_report.h"
#include "lib/session/rehearsal.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class MotPictureMaker {
 public:
  // Of a session, and what it lends; all must outlive this.
  // `rehearsal`: goes on beside the steps, and is finished before what they have painted is
  // decoded.
  MotPictureMaker(const Runtime& runtime, Log& log, Report& report, StageClock& clock,
                  Rehearsal& rehearsal)
      : runtime_(runtime), log_(log), report_(report), clock_(clock), rehearsal_(rehearsal) {}

  struct Latent {
    Tensor values;  // [rows of all pictures, row width]
    std::int64_t forwards = 0;
    double seconds = 0;
  };
  // `trace`: null: off. Throws RunError where the latent is not finite.
  Latent paint_latent(MotPainter& painter, const Tensor& noise, StepCaching caching,
                      MotTrace* trace, Progress& progress);
  // Picture or clip number `index` of every turn, in their order. Draws the start noise; throws as
  // paint_latent.
  std::vector<Result> paint(MotPainter& painter, MotTurns& turns, std::uint64_t index,
                            MotTrace* trace, Progress& progress);
  double steps_per_second() const;  // of all that was painted so far, 0 = nothing

 private:
  struct Decoded {
    Tensor latent;  // its rows
    Media media;
  };
  std::vector<Decoded> decode(const MotPainter& painter, const MotTurns& turns,
                              const Tensor& latent, MotTrace* trace, Progress& progress);
  std::vector<CacheReport> compare_uncached(MotPainter& painter, const MotTurns& turns,
                                            const Tensor& noise, const Latent& cached,
                                            std::vector<Decoded>& painted, Progress& progress);

  const Runtime& runtime_;
  Log& log_;
  Report& report_;
  StageClock& clock_;
  Rehearsal& rehearsal_;
  double denoise_seconds_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace diptych
