// Recorded cases of the text encoder and of the autoencoder, for replay_parts.cpp.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

// tokens.*, encoder.* and prompt_embeds of the case's prompts. Wan's are cleaned as with ftfy:
// CheckFailed where that gives another text than the recorded one. Rows of padding inside the
// encoder are left out: it computes none.
void replay_umt5_texts(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);
void replay_t5_texts(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);

// encode.* and decode.*, whole or in the case's tiles.
void replay_dit_vae(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);

}  // namespace diptych
