// The trace names of runs on a MoT backbone, as the golden data of BAGEL has them. A branch that
// shares another's context is recorded under both names, but for what its own prefill would have
// computed.
#pragma once

#include <cstdint>
#include <span>

#include "lib/pipelines/mot/contexts.h"
#include "lib/tensor/trace.h"

namespace diptych {

// prefill.NN.<branch>.text.* (ids and lengths) and kv.<branch>.*
void trace_contexts(const PrefilledContexts& contexts, TraceSink& trace);
// <name>.packed_* of a picture that is read: its markers and `rows` latent or patch rows.
void trace_image_block(TraceSink& trace, const std::string& name, const MotSample& block,
                       ImageMarkers markers, std::int64_t rows);
// gen.*: noise float32 [rows of all samples, 64] and the index tensors of the official code.
void trace_generation(const PrefilledContexts& contexts, const MotModel& model,
                      std::span<const LatentSize> sizes, const Tensor& noise, TraceSink& trace);
// stepNNN.time_embed, stepNNN.vae2llm
void trace_step_inputs(TraceSink& trace, std::int64_t step, const Tensor& time_embed,
                       const Tensor& vae2llm);
// stepNNN.<branch>.embeds, .layerLL.hidden, .final_norm, .position_ids for the distinct contexts
// [first, first + count); rows in the official order [start marker, latents, end marker].
MotObserver trace_step_observer(const PrefilledContexts& contexts,
                                std::span<const LatentSize> sizes, std::int64_t step,
                                std::int64_t first, std::int64_t count, TraceSink& trace);

}  // namespace diptych
