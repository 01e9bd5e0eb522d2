#include "lib/pipelines/dit/job.h"

#include "lib/base/error.h"
#include "lib/pipelines/calibration.h"

namespace diptych {

void DitJob::plan_step_cache(const Runtime& runtime, const std::string& dummy_hash) {
  step_cache.mode = config().cache_mode;
  calibration = read_calibration(config(), dummy_hash);
  if (!calibration) return;
  if (runtime.ranks != nullptr) {  // each sees its rows alone, and all must decide alike
    throw InputError(Setting::of("cache_mode", "teacache"),
                     "by a calibration works in one process; expected none or taylorseer");
  }
  step_cache.threshold = config().cache_threshold;
  step_cache.coefficients = calibration->coefficients;
}

}  // namespace diptych
