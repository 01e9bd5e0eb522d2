// From start noise to the final latent: the steps of a schedule, each a velocity and the stepper,
// launched by hand or as CUDA graphs. Knows no model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/sampling/schedule.h"
#include "lib/tensor/trace.h"

namespace diptych {

// What a family gives the loop. x: the latent, float32 [rows, columns] on the device; velocities
// are [rows, columns], guided, in the model's dtype.
struct DenoiseModel {
  // Of step i, with what looks into single steps: traces, observers and step caches.
  std::function<Tensor(const Tensor& x, std::int64_t i)> velocity;
  // The same without these, so that it can be captured: `step` [1], int64 on the device, says which
  // step it is. Everything else that it reads stays where it is from one step to the next.
  std::function<Tensor(const Tensor& x, const Tensor& step, std::int64_t kind)> launch_velocity;
  // Of each step. Steps of one kind launch the same work.
  std::vector<std::int64_t> kinds;
};

class DenoiseLoop {
 public:
  DenoiseLoop(FlowSchedule schedule, c10::Device device)
      : schedule_(std::move(schedule)), device_(device) {}

  // Every step through model.velocity(), without waiting for the device in between. `trace` gets
  // "stepNNN.latent"; null: off. Throws Interrupted between steps.
  Tensor run_by_step(const DenoiseModel& model, const Tensor& noise, TraceSink* trace,
                     Progress& progress);

  struct OnDevice {
    bool graphs = true;  // a CUDA graph for each kind of step, where the device has such
    bool keep = false;   // the graphs and their memory, for the next run
  };
  // The same updates, bit for bit, through model.launch_velocity(), with all that changes from one
  // step to the next on the device. `model` must stay as it is while graphs are kept. Throws
  // Interrupted as LaunchGraphs::run.
  Tensor run_on_device(const DenoiseModel& model, const Tensor& noise, OnDevice how,
                       Progress& progress);

  // Makes and keeps the graphs of every kind of step ahead of a run, for latents of this shape.
  // What the steps compute is not used. Only where the device has graphs.
  void prepare(const DenoiseModel& model, at::IntArrayRef shape);

  bool has_kept() const { return state_.has_value(); }
  // By the last run, for a step or more; or prepared for the next.
  bool used_graphs() const { return used_graphs_; }

 private:
  // All that changes from one step to the next, and the graphs that read it where it is.
  struct State {
    Tensor x;                              // the latent
    Tensor step;                           // int64 [1]: which one comes next
    Tensor sizes;                          // float32 [updates]
    std::unique_ptr<LaunchGraphs> graphs;  // null where steps are launched one by one
  };
  State make_state(at::IntArrayRef shape, bool graphs) const;
  std::vector<RepeatedWork> plan_steps(const DenoiseModel& model) const;

  FlowSchedule schedule_;
  c10::Device device_;
  std::optional<State> state_;  // kept, or of the picture that is being painted
  bool used_graphs_ = false;
};

}  // namespace diptych
