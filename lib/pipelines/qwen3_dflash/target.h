// A Qwen3 as the target of drafts.
#pragma once

#include "lib/models/qwen3/qwen3.h"
#include "lib/pipelines/drafting/text_target.h"

namespace diptych {

// It must outlive what is made of the target.
TextTarget text_target(const Qwen3& model);

}  // namespace diptych
