#include "lib/pipelines/qwen3_dflash/family.h"

#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "lib/pipelines/qwen3_dflash/layout.h"
#include "lib/pipelines/qwen3_dflash/replay.h"
#include "lib/pipelines/qwen3_dflash/session.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"

namespace diptych {
namespace {

std::unique_ptr<Session> open_qwen3(const RunConfig& config, Log& log) {
  return std::make_unique<Qwen3Session>(config, log);
}

constexpr Family kQwen3 = {
    .config = qwen3_config,
    .open = open_qwen3,
    .replay = replay_qwen3_dflash,
    .layout = check_qwen3_layout,
    .trace_names = qwen3_dflash_trace_names,
};

}  // namespace

const Family& qwen3_family() {
  return kQwen3;
}

}  // namespace diptych
