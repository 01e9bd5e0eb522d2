#include "lib/session/stage_clock.h"

#include <chrono>
#include <thread>

#include <doctest/doctest.h>

namespace diptych {
namespace {

void wait(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

double seconds_of(const Report& report, std::string_view stage) {
  for (const auto& [name, seconds] : report.seconds) {
    if (name == stage) return seconds;
  }
  return -1;
}

TEST_CASE("StageClock: what a receiver waits for the frames of a clip is the autoencoder's") {
  StageClock clock;
  Report report;
  clock.start();
  Result result;
  result.media = Clip{{.frames = 3}, [](const std::function<void(const Tensor&)>& take) {
                        for (int i = 0; i < 3; ++i) {
                          wait(40);
                          take(Tensor());
                        }
                        wait(40);
                      }};
  clock.watch_decoding(result);
  int taken = 0;
  std::get<Clip>(result.media).decode([&](const Tensor&) {
    wait(20);
    ++taken;
  });
  clock.lap_encoding(report, at::kCPU);
  CHECK(taken == 3);
  CHECK(seconds_of(report, "vae") >= 0.16);
  CHECK(seconds_of(report, "encode") >= 0.06);

  // The next lap has nothing of it, nor of what is decoded after its own; other media are left as
  // they are.
  const double decoded = seconds_of(report, "vae");
  Result text;
  text.media = Text{.text = "a cup", .finish_reason = kFinishedItself};
  clock.watch_decoding(text);
  std::get<Clip>(result.media).decode([](const Tensor&) {});
  clock.lap_encoding(report, at::kCPU);
  CHECK(std::get<Text>(text.media).text == "a cup");
  CHECK(seconds_of(report, "vae") == decoded);
}

}  // namespace
}  // namespace diptych
