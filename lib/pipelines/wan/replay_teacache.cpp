#include "lib/pipelines/wan/replay_teacache.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/pipelines/wan/teacache.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

constexpr std::array kTeaCacheModels = {
    std::pair{std::string_view("T2V_1_3B"), WanTeaCacheModel::t2v_1_3b},
    std::pair{std::string_view("T2V_14B"), WanTeaCacheModel::t2v_14b},
    std::pair{std::string_view("I2V_14B_480P_upstream"), WanTeaCacheModel::i2v_14b_480p},
    std::pair{std::string_view("I2V_14B_720P_upstream"), WanTeaCacheModel::i2v_14b_720p},
};

Tensor polynomial(const StepCacheCoefficients& coefficients, const Tensor& changes) {
  Tensor values = at::empty_like(changes);
  for (std::int64_t i = 0; i < changes.numel(); ++i)
    values[i].fill_(evaluate(coefficients, changes[i].item<double>()));
  return values;
}

// Thresholds and modes are FastVideo's, where the recording has them.
void check_preset(const RecordedCase& recorded, const std::string& name, WanTeaCacheModel model) {
  const TimestepTeaCacheConfig preset = preset_teacache(model);
  const std::string at = "/coefficients/" + name;
  const auto threshold = recorded_field<double>(recorded, at + "/thresh");
  if (preset.threshold != threshold)
    throw CheckFailed(
        fmt::format("{}: threshold {}, expected {}", name, preset.threshold, threshold));
  const bool ret = recorded_field_or(recorded, at + "/use_ret_steps", preset.use_ret_steps);
  if (preset.use_ret_steps != ret)
    throw CheckFailed(
        fmt::format("{}: use_ret_steps {}, expected {}", name, preset.use_ret_steps, ret));
}

}  // namespace

bool replay_wan_teacache(const std::string& task, const RecordedCase& recorded, TraceSink& trace) {
  if (!task.starts_with("TeaCache rescale polynomials")) return false;
  const SafetensorsFile expected = SafetensorsFile::open(recorded.folder / "expected.safetensors");
  const Tensor changes = expected.view("rel_l1").to(at::kDouble).flatten();
  trace.record("rel_l1", changes);  // what they are evaluated at
  const auto models =
      recorded_field<std::map<std::string, nlohmann::json>>(recorded, "/coefficients");
  for (const auto& [name, published] : models) {
    const auto* const known =
        std::ranges::find(kTeaCacheModels, name, [](const auto& entry) { return entry.first; });
    if (known == kTeaCacheModels.end())
      throw Unsupported("{}: {}: has no coefficients in this version",
                        (recorded.folder / "case.json").string(), name);
    check_preset(recorded, name, known->second);
    for (const bool ret : {true, false}) {
      const auto config = published_teacache(known->second, ret);
      trace.record(name + (ret ? ".ret.poly" : ".non_ret.poly"),
                   polynomial(config.coefficients, changes));
    }
  }
  return true;
}

}  // namespace diptych
