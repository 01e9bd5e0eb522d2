#include "lib/sampling/flow_solver.h"

namespace diptych {

FlowSolver make_flow_solver(FlowSampler sampler, std::int64_t steps, double shift,
                            const UniPcOptions& options) {
  FlowSolver solver;
  solver.sampler_ = sampler;
  if (is_unipc(sampler)) {
    solver.unipc_.emplace(make_unipc_schedule(sampler, steps, shift, options));
  } else {
    solver.table_ = make_flow_table(sampler, steps, shift);
  }
  return solver;
}

Tensor FlowSolver::step(std::int64_t i, const Tensor& v, const Tensor& x) {
  if (unipc_) return unipc_->step(i, v, x);
  const auto level = static_cast<std::size_t>(i);
  const float change = table_.sigmas.at(level + 1) - table_.sigmas[level];
  // diffusers multiplies in the velocity's dtype and makes the latent that dtype, too. Here both
  // stay float32.
  return x + v.to(at::kFloat) * change;
}

void FlowSolver::reset() {
  if (unipc_) unipc_->reset();
}

}  // namespace diptych
