// Any sampler of a video model behind one shape, so that a loop can hold either.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/sampling/flow_table.h"
#include "lib/sampling/unipc.h"

namespace diptych {

class FlowSolver {
 public:
  FlowSampler sampler() const { return sampler_; }
  const std::vector<float>& sigmas() const { return table().sigmas; }        // [steps + 1]
  const std::vector<float>& timesteps() const { return table().timesteps; }  // [steps]
  std::int64_t steps() const { return table().steps(); }

  // x: float32, any shape; v: the guided velocity in the direction of rising sigma, any floating
  // dtype, taken as float32. Returns the latent of the next level, a fresh float32 tensor. Steps
  // come in order; x is kept as UniPcState keeps it. Launches and does not wait.
  Tensor step(std::int64_t i, const Tensor& v, const Tensor& x);
  void reset();  // begins another clip

  // What a trace shows of UniPC beside the latent; null for Euler.
  const UniPcState* unipc() const { return unipc_ ? &*unipc_ : nullptr; }

 private:
  friend FlowSolver make_flow_solver(FlowSampler, std::int64_t, double, const UniPcOptions&);
  FlowSolver() = default;
  const FlowTable& table() const { return unipc_ ? unipc_->schedule().table : table_; }

  FlowSampler sampler_ = FlowSampler::unipc;
  FlowTable table_;                  // of Euler
  std::optional<UniPcState> unipc_;  // holds its table itself
};

// Throws as make_flow_table and UniPcOptions::check. Euler reads no options.
FlowSolver make_flow_solver(FlowSampler sampler, std::int64_t steps, double shift,
                            const UniPcOptions& options = {});

}  // namespace diptych
