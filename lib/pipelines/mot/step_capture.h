// Which denoise steps run as CUDA graphs.
#pragma once

#include "lib/pipelines/mot/paint_request.h"

namespace diptych {

// Whether a denoise step of this request runs as a CUDA graph where there are graphs
// (make_launch_graphs) and nothing looks into its steps (MotDenoiser::is_plain).
bool captures_steps(const PaintRequest& request, const MotModel& model, const Runtime& runtime);
// Whether it is so on every rank that divides the steps of a request on GPUs, where memory decides
// and theirs may differ; elsewhere `own`. All of them call it.
bool on_all_ranks(bool own, const Runtime& runtime);
// Whether every one of them captures the request's steps.
bool all_capture(const PaintRequest& request, const MotModel& model, const Runtime& runtime);

}  // namespace diptych
