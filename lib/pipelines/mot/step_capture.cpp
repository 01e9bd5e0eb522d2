#include "lib/pipelines/mot/step_capture.h"

#include "lib/runtime/ranks.h"

namespace diptych {

// Experts that come from the host and operations that look at values on the host cannot be
// captured. NCCL's exchanges can, those of several groups too: they follow each other on one
// stream, in the same order on all ranks.
bool captures_steps(const PaintRequest& request, const MotModel& model, const Runtime& runtime) {
  return request.step_graphs && runtime.kernels != KernelPolicy::reference &&
         !model.backbone.layers.streams({.und = true, .gen = true});
}

bool on_all_ranks(bool own, const Runtime& runtime) {
  if (!runtime.device.is_cuda() || runtime.ranks == nullptr ||
      !runtime.ranks->comm().divides_steps())
    return own;
  const Tensor mine =
      at::full({1}, own ? 1 : 0, at::TensorOptions(at::kInt).device(runtime.device));
  return runtime.ranks->all_gather(RankAxis::request, mine).min().item<int>() == 1;
}

bool all_capture(const PaintRequest& request, const MotModel& model, const Runtime& runtime) {
  return on_all_ranks(captures_steps(request, model, runtime), runtime);
}

}  // namespace diptych
