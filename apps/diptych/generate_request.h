// One request of `diptych generate`.
#pragma once

#include <filesystem>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/resolve.h"
#include "lib/runtime/comm.h"

namespace diptych {

// What --output is where nothing is said of it, once the task is known: an answer goes to stdout.
std::filesystem::path printed_output(const Resolved& resolved);

// Checks the request, runs it and writes its results. `ways`: to divide it among its ranks, of
// which the fastest is chosen. Returns 0.
int generate_request(Resolved& resolved, const std::vector<ParallelDegrees>& ways, Log& log);

// Checks the request. `lacks_prompt`: its prompt is a stand-in (stand_in_for_prompt()); a line says
// so, and a model may be missing, too. Reads no weights. Returns 0.
int check_request_config(Resolved& resolved, bool lacks_prompt, Log& log);

}  // namespace diptych
