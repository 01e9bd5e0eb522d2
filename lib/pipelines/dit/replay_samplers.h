// Recorded cases of noise levels and solvers, for replay_parts.cpp.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

// Every table that the recording names: "diffusers_unipc.shift3.steps06", "karras.steps05". Throws
// Unsupported for another sampler.
void replay_flow_tables(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);
// Solvers that are fed recorded velocities, and their tables. Throws likewise.
void replay_flow_solvers(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);

}  // namespace diptych
