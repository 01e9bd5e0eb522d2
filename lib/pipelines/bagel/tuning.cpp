#include "lib/pipelines/bagel/tuning.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/models/bagel/bagel.h"
#include "lib/pipelines/mot/tuning.h"

namespace diptych {

TuneMeasurement tune_bagel(const TuneRequest& request) {
  const BagelConfig config =
      request.model.empty() ? BagelConfig() : BagelConfig::load(request.model);
  const std::int64_t step = config.pixels_per_row(), largest = step * config.latent_side;
  MotTuning tuning;
  tuning.llm = config.llm;
  tuning.repeats = request.repeats;
  for (const auto& [width, height] : request.sizes) {
    if (std::max(width, height) > largest) {
      throw InputError("--sizes: {}x{}: this model's pictures have at most {} pixels a side", width,
                       height, largest);
    }
    tuning.picture_rows.push_back(width / step * (height / step));
  }
  return [tuning](at::Device device, Progress& progress) {
    return measure_mot(tuning, device, progress);
  };
}

}  // namespace diptych
