// The steps of the autoencoder's passes under the names of Wan's golden data.
#pragma once

#include "lib/models/wan_vae/wan_vae.h"
#include "lib/tensor/trace.h"

namespace diptych {

// Records "encode.chunk00.conv_in", "decode.chunk03.up_blocks2", ..., [1, c, n, h, w], in `trace`,
// which must outlive the observer.
WanVaeObserver wan_vae_trace_to(TraceSink& trace);

}  // namespace diptych
