// A result in one line, as other programs read it from pictures.
#pragma once

#include <string>

#include "lib/config/fields.h"
#include "lib/session/result.h"

namespace diptych {

// "PROMPT\nSteps: 50, ...", as github.com/AUTOMATIC1111/stable-diffusion-webui writes it.
std::string parameters_text(const Options& options, const Result& result, const Report& report);

}  // namespace diptych
