// The running part of `diptych batch`: planned items to files and their manifest.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "apps/diptych/batch/folder.h"
#include "lib/base/log.h"
#include "lib/batch/plan.h"
#include "lib/batch/shards.h"
#include "lib/config/resolve.h"
#include "lib/session/session.h"

namespace diptych {

struct BatchSettings {
  Shard shard;
  bool resume = false;
  std::size_t batch_size = 1;  // most items of one forward
  Resolved defaults;           // what the session is opened with
  ProgressStyle progress = ProgressStyle::automatic;
};

// For items such as `first`: what a model loads may depend on the task.
std::unique_ptr<Session> open_session(const Resolved& defaults, const PlannedItem& first, Log& log);

// Runs the items (those of the shard alone). Returns 0, or 4 where some failed. Throws what ends
// the whole run: InputError for the model, WriteError, Interrupted; what was done until then is
// kept.
int run_batch(const std::vector<PlannedItem>& items, const BatchSettings& settings,
              BatchFolder& folder, Log& log);

}  // namespace diptych
