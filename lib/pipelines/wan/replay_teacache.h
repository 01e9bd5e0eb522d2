// The recorded case of TeaCache's published polynomials.
#pragma once

#include <string>

#include "lib/pipelines/family.h"

namespace diptych {

// False for other tasks. The polynomials at the recorded changes. Throws CheckFailed where a
// model's threshold or mode is another one, Unsupported for a model without coefficients here.
bool replay_wan_teacache(const std::string& task, const RecordedCase& recorded, TraceSink& trace);

}  // namespace diptych
