// What a drafter gives, in `diptych bench`.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/config/resolve.h"
#include "lib/session/drafting_report.h"

namespace diptych {

// The --against that leaves the drafter of the request out; none where it names no drafter,
// leaves it out itself, or paints: a plan is only a part of that.
std::vector<std::string> against_drafting(const Resolved& request);

// The same request without the drafter; as it is where against_drafting() has nothing.
RunConfig without_drafting(const Resolved& request);

nlohmann::ordered_json drafting_json(const DraftingReport& report);

}  // namespace diptych
