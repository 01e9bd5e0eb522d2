// Requests that several processes share, started by torchrun, mpirun or srun.
#pragma once

#include <functional>
#include <memory>

#include "lib/base/log.h"
#include "lib/config/resolve.h"
#include "lib/runtime/ranks.h"

namespace diptych {

// Meets the other processes that a launcher started with this one; null where there are none. All
// of them share the one request: its settings become those of this rank (device, seed, CFG mode),
// and all ranks but the one that writes are quiet. Throws InputError for settings that do not fit
// the number of processes, RunError where they do not meet.
std::shared_ptr<Ranks> meet_ranks(Resolved& resolved, Log& log);

// Whether this process writes what a request gives: it is alone, or the one of its ranks that does.
bool writes_results(const RunConfig& run);

// Of a verb whose requests are each the work of one process. Throws InputError where a stage config
// divides them.
void require_undivided(const RunConfig& run);

// Runs `work` as one of these ranks (null: alone). A failure of any rank ends all of them, with its
// exit code; it says why, the others nothing.
int as_rank(const std::shared_ptr<Ranks>& ranks, const std::function<int()>& work);

}  // namespace diptych
