#include "lib/pipelines/mot/settings.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/drafting/drafter.h"

namespace diptych {

TextRequest make_text_request(const RunConfig& config, const DraftSettings& drafts) {
  TextRequest request;
  request.max_tokens = config.think ? config.text.max_think_tokens : config.text.max_tokens;
  request.sampling.temperature = config.text.temperature;
  request.sampling.top_k = config.text.top_k;
  request.sampling.top_p = config.text.top_p;
  request.graph = !config.read_enforce_eager;
  request.block_size = drafts.block_size;
  if (!config.answers() && !config.think) return request;  // nothing is written
  require_drafter(drafts);
  request.sampling.check();
  return request;
}

std::optional<StepCalibration> read_calibration(const RunConfig& config,
                                                const std::string& dummy_hash) {
  if (config.cache_mode != StepCacheMode::teacache) return std::nullopt;
  const std::filesystem::path path = calibration_path(config);
  if (!std::filesystem::exists(path)) {
    throw InputError(
        Setting::of("cache_mode", "teacache"),
        SettingText{fmt::format("{} is not there; `diptych calibrate` writes it, ", path.string()),
                    Setting::of("cache_calibration"), " names another"});
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
