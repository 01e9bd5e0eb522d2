#include "lib/pipelines/mot/settings.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/pipelines/drafting/drafter.h"
#include "lib/sampling/schedule.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {
namespace {

bool guidance_is_idle(const PaintRequest& paint) {
  if (paint.guidance.terms.front().scale <= 1) return false;
  for (std::int64_t i = 0; i < paint.schedule.updates(); ++i) {
    if (paint.terms_in(i) > 0) return false;
  }
  return true;
}

// Whether each of so many updates would be computed, however alike they are.
bool cache_is_idle(const RunConfig& config, std::int64_t updates) {
  constexpr std::int64_t kFirstAndLast = 2;
  if (config.cache_mode == StepCacheMode::none) return false;
  if (config.cache_mode == StepCacheMode::teacache) return updates <= kFirstAndLast;
  TaylorSeer series;
  bool computed = true;
  for (std::int64_t i = 0; i < updates && computed; ++i) computed = series.begin_call();
  return computed;
}

}  // namespace

std::vector<std::string> idle_settings(const RunConfig& config, const PaintRequest& paint) {
  std::vector<std::string> texts;
  const SamplingConfig& s = config.sampling;
  const std::int64_t updates = paint.schedule.updates();
  if (guidance_is_idle(paint)) {
    texts.push_back(fmt::format(
        "--cfg-interval {},{}: none of the {} updates lies in it: there is no guidance{}",
        s.cfg_interval_low, s.cfg_interval_high, updates,
        config.negative_prompt.empty() ? "" : ", and --negative-prompt has no effect"));
  }
  if (cache_is_idle(config, updates)) {
    texts.push_back(fmt::format("--cache-mode {}: predicts nothing in {}; it needs more --steps",
                                name_of(config.cache_mode),
                                counted(static_cast<std::size_t>(updates), "update")));
  }
  return texts;
}

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

PaintRequest make_paint_request(const RunConfig& config, std::vector<GuidanceTerm> terms,
                                std::int64_t points, const StepCalibration* calibration) {
  const SamplingConfig& s = config.sampling;
  PaintRequest request;
  request.guidance = {std::move(terms), s.cfg_interval_low, s.cfg_interval_high, s.cfg_renorm_type,
                      s.cfg_renorm_min};
  request.cfg_mode = config.cfg_mode.value_or(CfgMode::batched);
  request.step_graphs = !config.enforce_eager;
  request.schedule = FlowSchedule::shifted(points, s.timestep_shift);
  request.step_cache.mode = config.cache_mode;
  if (calibration != nullptr) {
    request.step_cache.threshold = config.cache_threshold;
    request.step_cache.coefficients = calibration->coefficients;
  }
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
