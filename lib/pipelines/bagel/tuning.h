// BAGEL's half of `diptych tune`: the widths of its backbone and the latent rows of its pictures.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

TuneMeasurement tune_bagel(const TuneRequest& request);

}  // namespace diptych
