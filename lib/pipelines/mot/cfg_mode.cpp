#include "lib/pipelines/mot/cfg_mode.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/interrupt.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

constexpr double kEnoughSeconds = 0.2;  // of timed steps: what is short is timed more than once
constexpr int kMostRounds = 8;

struct WidestStep {
  std::int64_t step = 0, contexts = 0;
};

WidestStep widest_step(const PaintRequest& request, const PrefilledContexts& contexts) {
  const FlowSchedule schedule = request.schedule();
  WidestStep widest;
  for (std::int64_t step = 0; step < schedule.updates(); ++step) {
    const float t = schedule.times[static_cast<std::size_t>(step)];
    const std::int64_t count = contexts_at(t, request.guidance, contexts);
    if (count > widest.contexts) widest = {step, count};
  }
  return widest;
}

}  // namespace

CfgModeTimes time_cfg_modes(const BagelCheckpoint& checkpoint, const PaintRequest& request,
                            const PrefilledContexts& contexts, const Runtime& runtime) {
  const auto denoiser = [&](CfgMode mode) {
    return BagelDenoiser(checkpoint.model, contexts, request.sizes, checkpoint.markers,
                         request.schedule(), mode, runtime);
  };
  const BagelDenoiser batched = denoiser(CfgMode::batched),
                      sequential = denoiser(CfgMode::sequential);
  std::int64_t rows = 0;
  for (const LatentSize& size : request.sizes) rows += size.rows();
  at::Generator generator = cpu_generator(0);
  const Tensor x = randn({rows, checkpoint.model.config.row_width()}, generator).to(runtime.device);
  const WidestStep widest = widest_step(request, contexts);
  const auto graphs =
      captures_steps(request, checkpoint, runtime) ? make_launch_graphs(runtime.device) : nullptr;
  const auto seconds_of = [&](const BagelDenoiser& mode) {
    const RepeatedWork step = {&mode == &batched ? 0 : 1, 1, [&] {
                                 mode.velocities_at(x, mode.times()[widest.step], widest.contexts);
                               }};
    check_interrupted();
    synchronize(runtime.device);
    const double start = steady_seconds();
    if (graphs) {
      graphs->run(std::span(&step, 1), [] {});
    } else {
      step.once();
      synchronize(runtime.device);
    }
    return steady_seconds() - start;
  };
  // Warm-up; of a graph the second run is the one that captures it.
  for (int run = 0; run < (graphs ? 2 : 1); ++run) seconds_of(batched), seconds_of(sequential);
  CfgModeTimes least = {seconds_of(batched), seconds_of(sequential)};
  double spent = least.batched + least.sequential;
  for (int round = 1; round < kMostRounds && spent < kEnoughSeconds; ++round) {
    const CfgModeTimes next = {seconds_of(batched), seconds_of(sequential)};
    least.batched = std::min(least.batched, next.batched);
    least.sequential = std::min(least.sequential, next.sequential);
    spent += next.batched + next.sequential;
  }
  return least;
}

std::string describe_step(const BagelConfig& model, const PaintRequest& request,
                          const PrefilledContexts& contexts) {
  std::vector<std::string> sizes;
  for (const LatentSize& size : request.sizes) {
    const std::int64_t step = model.pixels_per_row();
    sizes.push_back(fmt::format("{}x{}", size.w * step, size.h * step));
  }
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
