// The only list of families, and the only file outside their folders that includes one of them.
#include "lib/pipelines/registry.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/family.h"

namespace diptych {
namespace {

const std::array kFamilies = {&bagel_family()};

}  // namespace

std::span<const Family* const> all_families() {
  return kFamilies;
}

const Family& find_family(std::string_view name) {
  std::string known;
  for (const Family* family : kFamilies) {
    if (family->name == name) return *family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family->name);
  }
  throw InputError(Setting::of("pipeline").called("pipeline"), "unknown family '{}' (known: {})",
                   name, known);
}

const Family* family_of_checkpoint(const std::filesystem::path& folder) {
  const auto* const found =
      std::ranges::find_if(kFamilies, [&](const Family* family) { return family->owns(folder); });
  return found == kFamilies.end() ? nullptr : *found;
}

}  // namespace diptych
