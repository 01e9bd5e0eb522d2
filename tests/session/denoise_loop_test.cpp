#include "lib/session/denoise_loop.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

namespace diptych {
namespace {

// A model whose velocity depends on the latent and on the step, of two kinds.
struct ToyModel {
  std::vector<std::int64_t> kinds;  // that were launched
  std::vector<std::int64_t> steps;  // that velocity() was asked for

  static Tensor at_step(const Tensor& x, const Tensor& step, std::int64_t kind) {
    const Tensor weight = (step.to(at::kFloat) + 1) * (kind == 0 ? 0.5 : -0.25);
    return (x * weight).to(at::kBFloat16);
  }

  DenoiseModel model() {
    DenoiseModel m;
    m.kinds = {0, 0, 1, 1};
    m.velocity = [this, of = m.kinds](const Tensor& x, std::int64_t i) {
      steps.push_back(i);
      return at_step(x, at::full({1}, i, at::kLong), of[static_cast<std::size_t>(i)]);
    };
    m.launch_velocity = [this](const Tensor& x, const Tensor& step, std::int64_t kind) {
      kinds.push_back(kind);
      return at_step(x, step, kind);
    };
    return m;
  }
};

Tensor noise() {
  return at::arange(1, 13, at::kFloat).reshape({3, 4}) / 7;
}

struct Quiet {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
};

TEST_CASE("both ways of a picture's steps give the same bits") {
  Quiet quiet;
  const FlowSchedule schedule = FlowSchedule::shifted(5, 3.0);
  ToyModel toy;
  const DenoiseModel model = toy.model();
  DenoiseLoop loop(schedule, at::kCPU);
  const Tensor start = noise();
  const Tensor by_step = loop.run_by_step(model, start, nullptr, quiet.progress);
  CHECK(toy.steps == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(start.equal(noise()));
  const Tensor launched = loop.run_on_device(model, start, {}, quiet.progress);
  CHECK(launched.equal(by_step));
  CHECK_FALSE(launched.equal(start));
  CHECK(toy.kinds == std::vector<std::int64_t>{0, 0, 1, 1});
  CHECK_FALSE(loop.used_graphs());  // the CPU has none
}

TEST_CASE("the state of a picture's steps is kept where it is asked for, and starts anew") {
  Quiet quiet;
  ToyModel toy;
  const DenoiseModel model = toy.model();
  DenoiseLoop loop(FlowSchedule::shifted(5, 3.0), at::kCPU);
  const Tensor first = loop.run_on_device(model, noise(), {.keep = true}, quiet.progress);
  CHECK(loop.has_kept());
  const Tensor second = loop.run_on_device(model, noise(), {.keep = false}, quiet.progress);
  CHECK(second.equal(first));
  CHECK_FALSE(loop.has_kept());
}

TEST_CASE("the trace has the latent behind every step, the last of which is the result") {
  Quiet quiet;
  ToyModel toy;
  const DenoiseModel model = toy.model();
  DenoiseLoop loop(FlowSchedule::shifted(3, 1.0), at::kCPU);
  TraceSink trace;
  const Tensor latent = loop.run_by_step(model, noise(), &trace, quiet.progress);
  REQUIRE(trace.tensors().size() == 2);
  CHECK(trace.tensors()[1].first == "step001.latent");
  CHECK(trace.tensors()[1].second.equal(latent));
  // x - bf16(v * size), by hand for the first step: v = bf16(x / 2), size 1/2.
  const Tensor x = noise();
  const Tensor moved = ((x * 0.5).to(at::kBFloat16).to(at::kFloat) * 0.5).to(at::kBFloat16);
  CHECK(trace.tensors()[0].second.equal(x - moved));
}

}  // namespace
}  // namespace diptych
