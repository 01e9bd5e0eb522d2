#include "lib/pipelines/cosmos/family.h"

#include "lib/pipelines/cosmos/checkpoint.h"
#include "lib/pipelines/cosmos/family_config.h"
#include "lib/pipelines/cosmos/replay.h"
#include "lib/pipelines/cosmos/trace_names.h"
#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/recorded_values.h"

namespace diptych {
namespace {

std::unique_ptr<Session> open_cosmos(const RunConfig& config, Log& log) {
  return std::make_unique<DitSession>(config, cosmos_opening(), log);
}

// The last step's is (x - x0) / 0.002, which leads nowhere: it multiplies the rounding of x0, which
// is recorded beside it, by 500.
std::vector<NormTolerance> norm_tolerances(const RecordedCase& recorded) {
  constexpr double kRounding = 5e-4;
  const std::string steps = "/parameters/num_inference_steps";
  if (!has_field(recorded, steps)) return {};
  const auto last = recorded_field<std::int64_t>(recorded, steps) - 1;
  return {{fmt::format("step{:03}.velocity", last), kRounding}};
}

constexpr Family kCosmos = {
    .config = cosmos_config,
    .open = open_cosmos,
    .replay = replay_cosmos,
    .layout = check_cosmos_layout,
    .trace_names = cosmos_trace_names,
    .norm_tolerances = norm_tolerances,
};

}  // namespace

const Family& cosmos_family() {
  return kCosmos;
}

}  // namespace diptych
