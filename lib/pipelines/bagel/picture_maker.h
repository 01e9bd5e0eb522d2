// From start noise to finished pictures of BAGEL, with their record and the seconds of each stage.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/pipelines/bagel/job.h"
#include "lib/session/cache_report.h"
#include "lib/session/stage_clock.h"

namespace diptych {

class BagelPictureMaker {
 public:
  // Of a session, and what it lends; all must outlive this.
  struct Lent {
    const BagelCheckpoint& checkpoint;
    const Runtime& runtime;
    Log& log;
    Report& report;
    StageClock& clock;
    std::function<void()> before_decoding;  // what goes on beside the steps ends then
  };
  explicit BagelPictureMaker(Lent lent)
      : checkpoint_(lent.checkpoint),
        runtime_(lent.runtime),
        log_(lent.log),
        report_(lent.report),
        clock_(lent.clock),
        before_decoding_(std::move(lent.before_decoding)) {}

  struct Latent {
    Tensor values;  // [rows of all pictures, row width]
    std::int64_t forwards = 0;
    double seconds = 0;
  };
  // `trace`: null: off. Throws RunError where the latent is not finite.
  Latent paint_latent(MotPainter& painter, const Tensor& noise, StepCaching caching,
                      TraceSink* trace, Progress& progress);
  // Picture number `index` of every turn, in their order. Draws the start noise; throws as
  // paint_latent.
  std::vector<Result> paint(MotPainter& painter, std::span<BagelTurn> turns, std::uint64_t index,
                            TraceSink* trace, Progress& progress);
  // Decodes a latent of that size of zeros, for what a first time takes longer. May run on another
  // thread meanwhile.
  void rehearse(const LatentSize& size, const std::optional<VaeStrips>& strips) const;
  double steps_per_second() const;  // of all that was painted so far, 0 = nothing

 private:
  std::vector<PaintedPicture> decode(const MotPainter& painter, const Tensor& latent,
                                     TraceSink* trace, Progress& progress);
  Tensor decode_one(const Tensor& rows, const LatentSize& size, const std::string& number,
                    TraceSink* trace) const;
  std::vector<CacheReport> compare_uncached(MotPainter& painter, const Tensor& noise,
                                            const Latent& cached,
                                            const std::vector<PaintedPicture>& pictures,
                                            Progress& progress);

  const BagelCheckpoint& checkpoint_;
  const Runtime& runtime_;
  Log& log_;
  Report& report_;
  StageClock& clock_;
  std::function<void()> before_decoding_;
  double denoise_seconds_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace diptych
