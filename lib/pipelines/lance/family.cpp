#include "lib/pipelines/lance/family.h"

#include "lib/pipelines/lance/checkpoint.h"
#include "lib/pipelines/lance/family_config.h"
#include "lib/pipelines/lance/replay.h"
#include "lib/pipelines/lance/trace_names.h"
#include "lib/pipelines/mot/session.h"

namespace diptych {
namespace {

std::unique_ptr<Session> open_lance(const RunConfig& config, Log& log) {
  return std::make_unique<MotSession>(config, kLanceOpening, log);
}

constexpr Family kLance = {
    .config = lance_config,
    .open = open_lance,
    .replay = replay_lance,
    .layout = check_lance_layout,
    .trace_names = lance_trace_names,
    .bf16_tolerances = lance_bf16_tolerances,
};

}  // namespace

const Family& lance_family() {
  return kLance;
}

}  // namespace diptych
