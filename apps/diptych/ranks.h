// Requests that several processes share, started by torchrun, mpirun or srun.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/resolve.h"
#include "lib/runtime/ranks.h"

namespace diptych {

struct Meeting {
  std::shared_ptr<Ranks> ranks;       // null: this process is alone
  std::vector<ParallelDegrees> ways;  // that choose_degrees() chooses from (degrees_to_time())
};

// Meets the other processes that a launcher started with this one, if there are any. All of them
// share the one request: its settings become those of this rank (device, seed, CFG mode, progress),
// and all ranks but the one that writes are quiet. Throws InputError for settings that do not fit
// the number of processes, the request or those of rank 0, RunError where they do not meet.
Meeting meet_ranks(Resolved& resolved, Log& log);

// Of flags of a verb that are no settings of a request, by their names. Throws InputError in a rank
// whose values are others than rank 0's.
void require_same_flags(const RunConfig& run, const std::map<std::string, std::string>& flags);

// How many processes share each request of a list: as many as it was asked for, 1 if it was not.
std::size_t ranks_per_item(const RunConfig& defaults);
// Meets the others where that is more than 1, else null: processes that share no request need not
// meet. Groups of them work on different items. `defaults` become those of this rank, as above.
std::shared_ptr<Ranks> meet_list_ranks(Resolved& defaults, Log& log);
// Throws InputError for an item that the ranks of `defaults` cannot divide.
void require_divisible(const RunConfig& item, const RunConfig& defaults);

// Whether this process writes what a request gives: it is alone, or of the ranks that share it the
// one that does.
bool writes_results(const RunConfig& run);

// Of a verb whose requests are each the work of one process. Throws InputError where they are to be
// divided.
void require_undivided(const RunConfig& run);

// Runs `work` as one of these ranks (null: alone). Returns the greatest of their exit codes. A
// failure of any rank ends all of them, with its exit code; it says why, the others nothing.
int as_one_of(Ranks& ranks, const std::function<int()>& work);
template <typename Work>
int as_rank(const std::shared_ptr<Ranks>& ranks, const Work& work) {
  return ranks == nullptr ? work() : as_one_of(*ranks, work);
}

}  // namespace diptych
