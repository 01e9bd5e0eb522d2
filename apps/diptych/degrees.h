// Into how many parts processes that share a request divide it: what can be, what is usual, and
// what is fastest.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/base/setting.h"
#include "lib/config/resolve.h"
#include "lib/runtime/comm.h"
#include "lib/session/session.h"

namespace diptych {

// Why ranks cannot divide the guidance branches of a request; nothing where they can.
std::optional<SettingText> why_one_branch(const RunConfig& run);
// The same of the rows.
std::optional<SettingText> why_whole_rows(const RunConfig& run);

// Where each branch is computed by a rank of its own, none share a forward. A stage config, or the
// default, may say so for a single process; a flag is meant.
bool asks_for_one_forward(const Resolved& resolved);

// What was asked for, and 1 for the rest. `stages`: those that are a process each.
ParallelDegrees asked_degrees(const RunConfig& run, std::size_t stages);
// What was asked for; where that leaves processes over, the rest by a rule (docs/parallel.md, "How
// the work is divided"). Its product is the number of ranks unless the request cannot be divided
// among so many.
ParallelDegrees usual_degrees(const Resolved& resolved, std::size_t ranks, std::size_t stages);
// Every division of the request among so many ranks that goes with what was asked for, of at most
// two guidance branches.
std::vector<ParallelDegrees> possible_degrees(const Resolved& resolved, std::size_t ranks);
// Those of them that choose_degrees() has to choose from, the usual one first; empty where nothing
// is chosen: on CPUs, where there is one, where memory is limited (a way may not fit beside weights
// that were placed for another), and where sizes are known only when the inputs are read.
std::vector<ParallelDegrees> degrees_to_time(const Resolved& resolved);

// "2 branches x Ulysses 2 x ring 2", "one process"
std::string describe(const ParallelDegrees& degrees);
std::string describe(const std::vector<ParallelDegrees>& ways);

// The ranks of the request divide it so from now on, and its branches run accordingly.
void use_degrees(RunConfig& run, const ParallelDegrees& degrees);

// The request once for each of `ways`, as choose_degrees() times it: for Session::load().
std::vector<RunConfig> timed_requests(const Resolved& resolved,
                                      const std::vector<ParallelDegrees>& ways);
// Uses that one of `ways` with which the steps of this request are fastest, timed once and kept in
// the user's cache folder. The first one stays unless another is 3 % faster. Jobs that were made
// before are to be made anew. `name`: of the request, for one choice. No ways, or a session without
// a StepTimer: all stays as it is. All ranks call it. Throws as StepTimer.
void choose_degrees(Session& session, Resolved& resolved, const std::vector<ParallelDegrees>& ways,
                    const std::string& name, Progress& progress, Log& log);

}  // namespace diptych
