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

namespace diptych {
namespace {

const std::array kFamilies = {&bagel_family(), &lance_family(), &wan_family(), &cosmos_family(),
                              &qwen3_family()};

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
