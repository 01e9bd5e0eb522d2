#include "lib/session/cfg_mode.h"

#include <algorithm>
#include <memory>
#include <span>

#include "lib/base/interrupt.h"
#include "lib/base/log.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

constexpr double kEnoughSeconds = 0.2;  // of timed steps: what is short is timed more than once
constexpr int kMostRounds = 8, kRoundsTogether = 2;

}  // namespace

CfgModeTimes time_cfg_modes(const std::function<void()>& batched,
                            const std::function<void()>& sequential, bool graphs, bool together,
                            c10::Device device) {
  const std::unique_ptr<LaunchGraphs> captured = graphs ? make_launch_graphs(device) : nullptr;
  const auto seconds_of = [&](const std::function<void()>& launch) {
    const RepeatedWork step = {&launch == &batched ? 0 : 1, 1, launch};
    check_interrupted();
    synchronize(device);
    const double start = steady_seconds();
    if (captured) {
      captured->run(std::span(&step, 1), [] {});
    } else {
      step.once();
      synchronize(device);
    }
    return steady_seconds() - start;
  };
  // Warm-up. Of a graph the second run is the one that captures it.
  for (int run = 0; run < (captured ? 2 : 1); ++run) seconds_of(batched), seconds_of(sequential);
  CfgModeTimes least = {seconds_of(batched), seconds_of(sequential)};
  double spent = least.batched + least.sequential;
  const auto enough = [&](int rounds) {
    return together ? rounds >= kRoundsTogether : rounds >= kMostRounds || spent >= kEnoughSeconds;
  };
  for (int round = 1; !enough(round); ++round) {
    const CfgModeTimes next = {seconds_of(batched), seconds_of(sequential)};
    least.batched = std::min(least.batched, next.batched);
    least.sequential = std::min(least.sequential, next.sequential);
    spent += next.batched + next.sequential;
  }
  return least;
}

}  // namespace diptych
