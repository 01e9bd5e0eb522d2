#include "lib/pipelines/bagel/family.h"

#include "lib/base/json_file.h"
#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/replay.h"
#include "lib/pipelines/bagel/session.h"
#include "lib/pipelines/bagel/trace_names.h"
#include "lib/pipelines/bagel/tuning.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The official code reads no config.json, so a folder without one is told by the configs of its two
// transformers: Lance has an llm_config.json, too, but not beside a vit_config.json.
bool owns(const fs::path& folder) {
  if (!fs::exists(folder / "config.json"))
    return fs::exists(folder / "llm_config.json") && fs::exists(folder / "vit_config.json");
  const auto json = read_json_object(folder / "config.json");
  const auto type = json.find("model_type");
  return type != json.end() && *type == "bagel";
}

constexpr Family kBagel = {
    .name = "bagel",
    .owns = owns,
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
