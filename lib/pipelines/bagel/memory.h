// What a memory plan needs of BAGEL's sizes.
#pragma once

#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/pipelines/mot/memory.h"

namespace diptych {

// As MotCheckpoint::sizes(). The autoencoder is float32.
MotSizes bagel_sizes(const BagelConfig& model, const FluxVaeConfig& vae);

}  // namespace diptych
