#include "lib/pipelines/bagel/family.h"

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/bagel/replay.h"
#include "lib/pipelines/bagel/trace_names.h"
#include "lib/pipelines/bagel/tuning.h"
#include "lib/pipelines/mot/session.h"

namespace diptych {
namespace {

std::unique_ptr<Session> open_bagel(const RunConfig& config, Log& log) {
  return std::make_unique<MotSession>(config, kBagelOpening, log);
}

constexpr Family kBagel = {
    .config = bagel_config,
    .open = open_bagel,
    .replay = replay_bagel,
    .layout = check_bagel_layout,
    .trace_names = bagel_trace_names,
    .bf16_tolerances = bagel_bf16_tolerances,
    .tune = tune_bagel,
};

}  // namespace

const Family& bagel_family() {
  return kBagel;
}

}  // namespace diptych
