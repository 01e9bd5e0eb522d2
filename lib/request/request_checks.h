// What a request needs beyond values in range: keys that mean something for its task, and files
// that are there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/setting.h"
#include "lib/config/resolve.h"

namespace diptych {

bool writes_plan(const RunConfig& run);  // a text that --think-output can keep

struct IdleValue {
  Setting setting;
  std::string origin;  // as Resolved has it
  SettingText why;     // "given without --think"
};
// The values that the request ignores, those of every source.
std::vector<IdleValue> idle_values(const Resolved& resolved);

// Throws InputError for one whose origin begins with `given`: "--" for flags, an item's place for
// its keys. Values of weaker sources may serve another task.
void require_meaning(const Resolved& resolved, std::string_view given);

// Throws InputError for a missing prompt, and for pictures, noise, plans and files that cannot be
// had.
void require_complete(const Options& options);

bool has_model(const RunConfig& run);           // a checkpoint, or weights without one
void require_model(const RunConfig& run);       // throws InputError where no checkpoint is named
void require_runnable(const Options& options);  // as both

}  // namespace diptych
