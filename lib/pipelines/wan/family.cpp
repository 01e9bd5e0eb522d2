#include "lib/pipelines/wan/family.h"

#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/wan/checkpoint.h"
#include "lib/pipelines/wan/describe.h"
#include "lib/pipelines/wan/family_config.h"
#include "lib/pipelines/wan/replay.h"
#include "lib/pipelines/wan/trace_names.h"

namespace diptych {
namespace {

std::unique_ptr<Session> open_wan(const RunConfig& config, Log& log) {
  return std::make_unique<DitSession>(config, wan_opening(), log);
}

// The decoder's maps reach 36, where four steps of a float32 are the tolerance of its frames.
std::vector<NormTolerance> norm_tolerances(const RecordedCase& recorded) {
  if (recorded.task() != "vae") return {};
  return {{"decode.chunk*", 2e-6}};
}

constexpr Family kWan = {
    .config = wan_config,
    .open = open_wan,
    .replay = replay_wan,
    .layout = check_wan_layout,
    .describe_file = describe_wan_file,
    .trace_names = wan_trace_names,
    .norm_tolerances = norm_tolerances,
};

}  // namespace

const Family& wan_family() {
  return kWan;
}

}  // namespace diptych
