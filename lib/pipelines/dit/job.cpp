#include "lib/pipelines/dit/job.h"

#include "lib/base/error.h"
#include "lib/pipelines/calibration.h"
#include "lib/pipelines/dit/checkpoint.h"

namespace diptych {

void DitJob::plan_step_cache(const DitCheckpoint& checkpoint, const Runtime& runtime) {
  step_cache.mode = config().cache_mode;
  if (step_cache.mode != StepCacheMode::teacache) return;
  calibration =
      read_calibration(config(), checkpoint.is_dummy() ? checkpoint.weights_hash({}) : "");
  if (runtime.ranks != nullptr) {  // each sees its rows alone, and all must decide alike
    throw InputError(Setting::of("cache_mode", "teacache"),
                     "by a calibration works in one process; expected none or taylorseer");
  }
  step_cache.threshold = config().cache_threshold;
  step_cache.coefficients = calibration->coefficients;
}

}  // namespace diptych
