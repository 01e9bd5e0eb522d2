// The decoder whose step is a CUDA graph.
#pragma once

#include <memory>

#include "lib/pipelines/mot/text_decoder.h"

namespace diptych {

// Null where it cannot serve: no CUDA in this build or run, attention named by the user, kernels
// switched off, weights that come from the host.
std::unique_ptr<TextDecoder> make_graph_decoder(const MotBackbone& model, std::int64_t capacity,
                                                const Runtime& runtime);

}  // namespace diptych
