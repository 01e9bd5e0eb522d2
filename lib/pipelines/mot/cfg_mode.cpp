#include "lib/pipelines/mot/cfg_mode.h"

#include <algorithm>
#include <bit>
#include <map>
#include <ranges>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/pipelines/mot/guided_velocity.h"
#include "lib/pipelines/mot/step_capture.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

struct StepKind {
  std::int64_t contexts = 0, first = 0, count = 0;  // steps of so many contexts, the first of them
};

// By contexts ascending.
std::vector<StepKind> kinds_of(const PaintRequest& request, const PrefilledContexts& contexts) {
  std::map<std::int64_t, StepKind> kinds;
  for (std::int64_t step = 0; step < request.schedule.updates(); ++step) {
    const std::int64_t count = contexts_of(request.terms_in(step), request.guidance, contexts);
    ++kinds.try_emplace(count, StepKind{count, step, 0}).first->second.count;
  }
  const auto values = std::views::values(kinds);
  return {values.begin(), values.end()};
}

MotDenoiser make_denoiser(const MotModel& model, const PaintRequest& request,
                          const PrefilledContexts& contexts, CfgMode mode, const Runtime& runtime) {
  return {model, contexts, request.denoised(), request.schedule, mode, runtime};
}

Tensor any_latent(const MotModel& model, const PaintRequest& request, const Runtime& runtime) {
  at::Generator generator = cpu_generator(0);
  return randn({request.rows(), model.latents.width}, generator).to(runtime.device);
}

}  // namespace

double time_steps(const MotModel& model, const PaintRequest& request,
                  const PrefilledContexts& contexts, const Runtime& runtime) {
  const MotDenoiser denoiser = make_denoiser(model, request, contexts, request.cfg_mode, runtime);
  const Tensor x = any_latent(model, request, runtime);
  const bool graphs = all_capture(request, model, runtime);
  double seconds = 0;
  for (const StepKind& kind : kinds_of(request, contexts)) {
    const auto launch = [&] {
      denoiser.velocities_at(x, denoiser.times()[kind.first], kind.contexts);
    };
    seconds += static_cast<double>(kind.count) * time_step(launch, graphs, runtime.device);
  }
  return seconds;
}

CfgModeTimes time_widest_step(const MotModel& model, const PaintRequest& request,
                              const PrefilledContexts& contexts, const Runtime& runtime) {
  const auto denoiser = [&](CfgMode mode) {
    return make_denoiser(model, request, contexts, mode, runtime);
  };
  const MotDenoiser batched = denoiser(CfgMode::batched),
                    sequential = denoiser(CfgMode::sequential);
  const Tensor x = any_latent(model, request, runtime);
  const StepKind widest = kinds_of(request, contexts).back();
  const auto launch = [&](const MotDenoiser& mode) {
    return [&] { mode.velocities_at(x, mode.times()[widest.first], widest.contexts); };
  };
  return time_cfg_modes(launch(batched), launch(sequential), all_capture(request, model, runtime),
                        runtime.ranks != nullptr, runtime.device);
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
