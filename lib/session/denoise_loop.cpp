#include "lib/session/denoise_loop.h"

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/euler.h"

namespace diptych {

Tensor DenoiseLoop::run_by_step(const DenoiseModel& model, const Tensor& noise, TraceSink* trace,
                                Progress& progress) {
  used_graphs_ = false;
  const Tensor sizes = schedule_.step_sizes().to(device_);
  const Tensor x = noise.to(device_, /*non_blocking=*/false, /*copy=*/true);
  for (std::int64_t i = 0; i < schedule_.updates(); ++i) {
    check_interrupted();
    euler_step_(x, model.velocity(x, i), sizes.narrow(0, i, 1));
    if (trace != nullptr) trace->record(fmt::format("step{:03}.latent", i), x);
    progress.update(i + 1);
  }
  return x;
}

DenoiseLoop::State DenoiseLoop::make_state(at::IntArrayRef shape, bool graphs) const {
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  State state;
  state.x = at::empty(shape, options);
  state.step = at::empty({1}, options.dtype(at::kLong));
  state.sizes = schedule_.step_sizes().to(device_);
  if (graphs) state.graphs = make_launch_graphs(device_);
  return state;
}

// Steps of one kind that follow each other are one work.
std::vector<RepeatedWork> DenoiseLoop::plan_steps(const DenoiseModel& model) const {
  std::vector<RepeatedWork> works;
  for (std::int64_t i = 0; i < schedule_.updates(); ++i) {
    const std::int64_t kind = model.kinds.at(static_cast<std::size_t>(i));
    if (works.empty() || works.back().key != kind) {
      works.push_back({kind, 0, [&state = *state_, &model, kind] {
                         const Tensor v = model.launch_velocity(state.x, state.step, kind);
                         euler_step_(state.x, v, state.sizes.index_select(0, state.step));
                         state.step.add_(1);
                       }});
    }
    ++works.back().times;
  }
  return works;
}

void DenoiseLoop::prepare(const DenoiseModel& model, at::IntArrayRef shape) {
  state_ = make_state(shape, true);
  TORCH_CHECK(state_->graphs != nullptr, "[denoise_loop] nothing to prepare without graphs");
  state_->x.zero_();
  state_->step.zero_();
  synchronize(device_);  // graphs have a stream of their own
  state_->graphs->prepare(plan_steps(model));
  used_graphs_ = true;
}

Tensor DenoiseLoop::run_on_device(const DenoiseModel& model, const Tensor& noise, OnDevice how,
                                  Progress& progress) {
  used_graphs_ = false;
  if (!state_) state_ = make_state(noise.sizes(), how.graphs);
  State& state = *state_;
  state.x.copy_(noise);
  state.step.zero_();
  synchronize(device_);  // graphs have a stream of their own
  check_interrupted();
  std::int64_t done = 0;
  const auto after = [&] {
    progress.update(++done);
    check_interrupted();
  };
  const std::vector<RepeatedWork> works = plan_steps(model);
  if (state.graphs) {
    used_graphs_ = state.graphs->run(works, after);
  } else {
    for (const RepeatedWork& work : works) {
      for (std::int64_t i = 0; i < work.times; ++i) work.once(), after();
    }
  }
  Tensor latent = state.x.clone();
  if (!how.keep) state_.reset();
  return latent;
}

}  // namespace diptych
