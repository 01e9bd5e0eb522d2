#include "lib/pipelines/calibration.h"

#include <fmt/format.h>

#include "lib/base/error.h"

namespace diptych {

std::optional<StepCalibration> read_calibration(const RunConfig& config,
                                                const std::string& dummy_hash) {
  if (config.cache_mode != StepCacheMode::teacache) return std::nullopt;
  const std::filesystem::path path = calibration_path(config);
  if (!std::filesystem::exists(path)) {
    if (!config.cache_calibration.empty()) {
      throw InputError(Setting::of("cache_calibration", path.string()),
                       "is not there; `diptych calibrate` writes such a file");
    }
    throw InputError(
        Setting::of("cache_mode", "teacache"),
        SettingText{
            fmt::format(
                "{} is not there; `diptych calibrate` writes it, or with -o another one for ",
                path.string()),
            Setting::of("cache_calibration")});
  }
  StepCalibration calibration = StepCalibration::read(path);
  if (!dummy_hash.empty())
    calibration.require_weights(path, StepCalibration::as_loaded(dummy_hash, config.quantization));
  return calibration;
}

std::filesystem::path calibration_path(const RunConfig& config) {
  return config.cache_calibration.empty() ? config.model / kCalibrationName
                                          : config.cache_calibration;
}

}  // namespace diptych
