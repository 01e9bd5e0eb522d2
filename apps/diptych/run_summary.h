// What a run took, in a line.
#pragma once

#include <string>

#include "lib/base/choices.h"
#include "lib/session/result.h"

namespace diptych {

// "loading 0.31s, denoise 1.20s, 12.10 it/s, peak 0.00 GiB"; "" where nothing ran.
std::string stage_times(const Report& report);
// "2 pictures: loading 0.31s, denoise 1.20s; 12.10 it/s, peak 0.00 GiB"
std::string summary_line(const Report& report, MediaKind makes);

}  // namespace diptych
