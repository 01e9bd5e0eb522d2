#include "lib/pipelines/mot/step_floor.h"

#include <algorithm>
#include <cmath>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/guided_velocity.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

constexpr double kSeconds = 0.5;  // of measuring a kind of step, that clocks and heat are a run's
constexpr std::int64_t kLeastRounds = 3;

// The mean of as many rounds as fill kSeconds.
double seconds_of(const std::function<void()>& work, at::Device device) {
  const std::unique_ptr<LaunchGraphs> graphs = make_launch_graphs(device);
  const auto seconds = [&](std::int64_t rounds) {
    check_interrupted();
    synchronize(device);
    const double start = steady_seconds();
    const RepeatedWork repeated = {0, rounds, work};
    if (graphs) {
      graphs->run(std::span(&repeated, 1), [] {});
    } else {
      for (std::int64_t i = 0; i < rounds; ++i) work();
    }
    synchronize(device);
    return (steady_seconds() - start) / static_cast<double>(rounds);
  };
  for (int warmup = 0; warmup < 2; ++warmup) seconds(1);  // the second one captures the graph
  const auto fitting = static_cast<std::int64_t>(std::ceil(kSeconds / seconds(1)));
  return seconds(std::max(fitting, kLeastRounds));
}

std::vector<StepKindWork> kinds_of_steps(const PaintRequest& request,
                                         const PrefilledContexts& contexts) {
  std::vector<StepKindWork> kinds;
  for (std::int64_t step = 0; step < request.schedule.updates(); ++step) {
    const std::int64_t count = contexts_of(request.terms_in(step), request.guidance, contexts);
    auto known = std::ranges::find(kinds, count, &StepKindWork::contexts);
    if (known == kinds.end()) known = kinds.insert(kinds.end(), {count, 0, {}, 0});
    ++known->steps;
  }
  return kinds;
}

}  // namespace

std::vector<StepKindWork> measure_step_kinds(const MotModel& model, const PaintRequest& request,
                                             const PrefilledContexts& contexts,
                                             const Runtime& runtime, bool measures) {
  if (measures && model.backbone.layers.streams({.und = true, .gen = true})) {
    throw InputError(
        Setting::of("floor"),
        "some experts wait in host memory (--offload, --max-vram); expected all of them "
        "on the device");
  }
  const MotDenoiser denoiser(model, contexts, request.denoised(), request.schedule,
                             request.cfg_mode, runtime);
  at::Generator generator = cpu_generator(0);
  const Tensor x = randn({request.rows(), model.latents.width}, generator).to(runtime.device);
  std::vector<StepKindWork> kinds = kinds_of_steps(request, contexts);
  for (StepKindWork& kind : kinds) {
    kind.work = denoiser.work_of(kind.contexts);
    if (!measures) continue;
    const Tensor time = denoiser.times()[0];
    denoiser.velocities_at(x, time, kind.contexts);  // writes the keys and values of all layers
    kind.floor_seconds = seconds_of(denoiser.products_at(x, time, kind.contexts), runtime.device);
  }
  return kinds;
}

}  // namespace diptych
