#include "lib/pipelines/mot/cfg_mode.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/tensor/noise.h"

namespace diptych {
namespace {

struct WidestStep {
  std::int64_t step = 0, contexts = 0;
};

WidestStep widest_step(const PaintRequest& request, const PrefilledContexts& contexts) {
  WidestStep widest;
  for (std::int64_t step = 0; step < request.schedule.updates(); ++step) {
    const std::int64_t count = contexts_of(request.terms_in(step), request.guidance, contexts);
    if (count > widest.contexts) widest = {step, count};
  }
  return widest;
}

}  // namespace

CfgModeTimes time_widest_step(const MotModel& model, const PaintRequest& request,
                              const PrefilledContexts& contexts, const Runtime& runtime) {
  const auto denoiser = [&](CfgMode mode) {
    return MotDenoiser(model, contexts, request.denoised(), request.schedule, mode, runtime);
  };
  const MotDenoiser batched = denoiser(CfgMode::batched),
                    sequential = denoiser(CfgMode::sequential);
  at::Generator generator = cpu_generator(0);
  const Tensor x = randn({request.rows(), model.latents.width}, generator).to(runtime.device);
  const WidestStep widest = widest_step(request, contexts);
  const auto launch = [&](const MotDenoiser& mode) {
    return [&] { mode.velocities_at(x, mode.times()[widest.step], widest.contexts); };
  };
  return time_cfg_modes(launch(batched), launch(sequential),
                        captures_steps(request, model, runtime), runtime.ranks != nullptr,
                        runtime.device);
}

std::string describe_step(const PaintRequest& request, const PrefilledContexts& contexts,
                          std::int64_t pixels_per_row) {
  std::vector<std::string> sizes;
  for (const LatentSize& size : request.sizes)
    sizes.push_back(fmt::format("{}x{}", size.w * pixels_per_row, size.h * pixels_per_row));
  std::int64_t longest = 1;
  for (std::int64_t c = 0; c < contexts.distinct(); ++c) {
    for (std::int64_t s = 0; s < contexts.samples(); ++s)
      longest = std::max(longest, contexts.context(c, s).length());
  }
  return fmt::format("{}, {} contexts of up to {} tokens{}", fmt::join(sizes, " and "),
                     contexts.distinct(), std::bit_ceil(static_cast<std::uint64_t>(longest)),
                     request.step_graphs ? "" : ", launched one by one");
}

}  // namespace diptych
