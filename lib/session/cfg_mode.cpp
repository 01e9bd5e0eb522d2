#include "lib/session/cfg_mode.h"

#include <algorithm>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/base/log.h"
#include "lib/runtime/launch_graphs.h"

namespace diptych {
namespace {

constexpr double kEnoughSeconds = 0.2;  // of timed steps: what is short is timed more than once
constexpr int kMostRounds = 8, kRoundsTogether = 2;

// Times steps one at a time, each behind what was launched before.
class StepClock {
 public:
  StepClock(bool graphs, c10::Device device)
      : device_(device), captured_(graphs ? make_launch_graphs(device) : nullptr) {}

  // `key`: one for each step, by which its graph is found again.
  double seconds(std::int64_t key, const std::function<void()>& launch) {
    const RepeatedWork step = {key, 1, launch};
    check_interrupted();
    synchronize(device_);
    const double start = steady_seconds();
    if (captured_) {
      captured_->run(std::span(&step, 1), [] {});
    } else {
      step.once();
      synchronize(device_);
    }
    return steady_seconds() - start;
  }
  // Runs until a step is as fast as it gets: of a graph the second run is the one that captures it.
  int warmups() const { return captured_ ? 2 : 1; }

 private:
  c10::Device device_;
  std::unique_ptr<LaunchGraphs> captured_;
};

}  // namespace

double time_step(const std::function<void()>& launch, bool graphs, c10::Device device) {
  StepClock clock(graphs, device);
  for (int run = 0; run < clock.warmups(); ++run) clock.seconds(0, launch);
  double least = clock.seconds(0, launch);
  for (int round = 1; round < kRoundsTogether; ++round)
    least = std::min(least, clock.seconds(0, launch));
  return least;
}

CfgModeTimes time_cfg_modes(const std::function<void()>& batched,
                            const std::function<void()>& sequential, bool graphs, bool together,
                            c10::Device device) {
  StepClock clock(graphs, device);
  const auto next = [&] {
    const double first = clock.seconds(0, batched);
    return CfgModeTimes{first, clock.seconds(1, sequential)};
  };
  for (int run = 0; run < clock.warmups(); ++run) next();
  CfgModeTimes least = next();
  double spent = least.batched + least.sequential;
  const auto enough = [&](int rounds) {
    return together ? rounds >= kRoundsTogether : rounds >= kMostRounds || spent >= kEnoughSeconds;
  };
  for (int round = 1; !enough(round); ++round) {
    const CfgModeTimes times = next();
    least.batched = std::min(least.batched, times.batched);
    least.sequential = std::min(least.sequential, times.sequential);
    spent += times.batched + times.sequential;
  }
  return least;
}

std::string division_text(const Runtime& runtime) {
  if (runtime.ranks == nullptr || !runtime.ranks->comm().divides_steps()) return "";
  const Comm& comm = runtime.ranks->comm();
  return fmt::format(", {} x {} x {} ranks", comm.cfg.size, comm.ulysses.size, comm.ring.size);
}

}  // namespace diptych
