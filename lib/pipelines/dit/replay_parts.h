// Recorded cases of single parts, of any family of diffusion transformers: texts, tokenizers,
// autoencoders, samplers, guidance and measures (goldens/wan, goldens/cosmos).
#pragma once

#include <string>

#include "lib/pipelines/family.h"

namespace diptych {

// False for other tasks. `config`: its model is the checkpoint's folder; parts compute in float32,
// as their recordings did, whatever its dtype. Rows of a table are checked one by one and counted
// in `trace`. Throws CheckFailed naming the first row that differs, Unsupported for a sampler or
// model that is not here, InputError for files that are missing or broken.
bool replay_dit_part(const std::string& task, const RecordedCase& recorded, const RunConfig& config,
                     TraceSink& trace);

}  // namespace diptych
