// The recorded case of what a text's padding does to a forward.
#pragma once

#include <string>

#include "lib/pipelines/family.h"

namespace diptych {

// False for other tasks. One forward for each treatment: zero rows up to 512, up to 64, and none
// (cut or masked, which are the same). In float32, whatever the dtype of `config`; its model is the
// checkpoint's folder.
bool replay_wan_padding(const std::string& task, const RecordedCase& recorded,
                        const RunConfig& config, TraceSink& trace);

}  // namespace diptych
