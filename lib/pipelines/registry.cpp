// The only list of families, and the only file outside their folders that includes one of them.
#include "lib/pipelines/registry.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/family.h"
#include "lib/pipelines/cosmos/family.h"
#include "lib/pipelines/lance/family.h"
#include "lib/pipelines/qwen3_dflash/family.h"
#include "lib/pipelines/wan/family.h"
#include "lib/runtime/runtime.h"
#include "lib/session/staged_session.h"

namespace diptych {
namespace {

const std::array kFamilies = {&bagel_family(), &lance_family(), &wan_family(), &cosmos_family(),
                              &qwen3_family()};

// Errors name the device that reads.
at::Device resolve_read_device(const DeviceChoice& choice, Log& log) {
  try {
    return resolve_device(choice, log);
  } catch (const InputError& error) {
    if (error.problem() == nullptr) throw;
    SettingProblem problem = *error.problem();
    problem.setting = Setting::of("read_device", device_name(choice));
    throw InputError(std::move(problem));
  }
}

}  // namespace

std::span<const Family* const> all_families() {
  return kFamilies;
}

std::vector<const FamilyConfig*> all_family_configs() {
  std::vector<const FamilyConfig*> configs;
  for (const Family* family : kFamilies) configs.push_back(&family->config());
  return configs;
}

const Family& find_family(std::string_view name) {
  std::string known;
  for (const Family* family : kFamilies) {
    const std::string_view own = family->config().name;
    if (own == name) return *family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", own);
  }
  throw InputError(Setting::of("pipeline").called("pipeline"), "unknown family '{}' (known: {})",
                   name, known);
}

std::unique_ptr<Session> open_session(const RunConfig& config, Log& log) {
  const Family& family = find_family(config.pipeline);
  if (!config.read_device || config.stage_end != nullptr) return family.open(config, log);
  if (config.connector == Connector::c10d)
    throw InputError(Setting::of("connector", "c10d"),
                     "is between processes, and this one is alone; expected in_process, or two "
                     "processes, started with torchrun, mpirun or srun");
  if (config.connector == Connector::shared_memory)
    log.info_once("connector shared_memory: both stages are in this process, as with in_process");
  const at::Device painting = resolve_device(config.device, log);
  if (resolve_read_device(*config.read_device, log) == painting && painting.is_cuda())
    throw InputError(Setting::of("read_device", device_name(*config.read_device)),
                     "cuda:{} paints, and has no room for a second model; expected another device",
                     painting.index());
  return std::make_unique<StagedSession>(config, family.open, log);
}

const Family* family_of_checkpoint(const std::filesystem::path& folder) {
  const auto* const found = std::ranges::find_if(
      kFamilies, [&](const Family* family) { return family->config().owns(folder); });
  return found == kFamilies.end() ? nullptr : *found;
}

TraceNames trace_names_of(std::span<const std::string> tensors) {
  TraceNames best;
  std::size_t most = 0;
  for (const Family* family : kFamilies) {
    if (family->trace_names == nullptr) continue;
    const TraceNames& names = family->trace_names();
    const std::size_t known = count_known(tensors, names);
    if (known > most) best = names;
    most = std::max(most, known);
  }
  return best;
}

}  // namespace diptych
