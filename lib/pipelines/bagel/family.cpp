#include "lib/pipelines/bagel/family.h"

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/bagel/replay.h"
#include "lib/pipelines/bagel/session.h"

namespace diptych {
namespace {

constexpr Family kBagel = {
    .config = bagel_config,
    .open = open_bagel,
    .replay = replay_bagel,
    .layout = check_bagel_layout,
};

}  // namespace

const Family& bagel_family() {
  return kBagel;
}

}  // namespace diptych
