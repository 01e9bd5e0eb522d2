// The running part of `diptych batch`: planned items to files and their manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  std::vector<bool> own;  // per item: whether it is this process's work, not another one's; empty:
                          // all are
  bool resume = false;
  std::size_t batch_size = 1;  // most items of one forward
  std::int64_t warmup = 0;   // runs of the first items before all others, of which nothing is kept
  bool prints_paths = true;  // on stdout, as soon as a file is there
  Resolved defaults;         // what the session is opened with
  ProgressStyle progress = ProgressStyle::automatic;
};

// For items such as `first`: what a model loads may depend on the task.
std::unique_ptr<Session> open_session(const Resolved& defaults, const PlannedItem& first, Log& log);

// The items (indices) that run in one forward, of all that can run. `session`: says which may; null
// where `batch_size` is 1.
std::vector<std::vector<std::size_t>> plan_forwards(const std::vector<PlannedItem>& items,
                                                    std::size_t batch_size, const Session* session);

// Runs the items (those of the shard alone). `folder`: null for a rank that computes with the one
// that writes. Returns 0, or 4 where some failed. Throws what ends the whole run: InputError for
// the model, WriteError, Interrupted, with ranks that share requests every failure of a running
// item; what was done until then is kept.
int run_batch(const std::vector<PlannedItem>& items, const BatchSettings& settings,
              BatchFolder* folder, Log& log);

// One of several lists that one loaded model serves. All must outlive the run.
struct BatchPass {
  std::string title;  // is logged before it
  const std::vector<PlannedItem>* items = nullptr;
  const BatchSettings* settings = nullptr;
  BatchFolder* folder = nullptr;
};
// Runs list after list with one session, whose memory is planned for all of them. Returns and
// throws as run_batch().
int run_batches(std::span<const BatchPass> passes, Log& log);

}  // namespace diptych
