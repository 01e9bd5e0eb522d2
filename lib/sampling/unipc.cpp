#include "lib/sampling/unipc.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <c10/util/Exception.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::int64_t kMaxOrder = 3;

// log((1 - sigma) / sigma) of every level, half the logarithm of its signal-to-noise ratio.
// FlowUniPC clamps what it takes logarithms of, so that its last is finite.
std::vector<float> log_ratios(const FlowTable& table, FlowSampler sampler) {
  const float least = sampler == FlowSampler::unipc ? 0.0F : 1e-12F;
  std::vector<float> lambdas;
  for (const float sigma : table.sigmas) {
    lambdas.push_back(std::log(std::max(1 - sigma, least)) - std::log(std::max(sigma, least)));
  }
  return lambdas;
}

// The weights of an update whose differences are `distances` away: as many of the equations
// sum_k distances[k]^j weights[k] = b[j] as there are differences, with b of the variant bh2.
std::vector<float> solve_weights(std::span<const float> distances, float h) {
  const auto count = static_cast<std::int64_t>(distances.size());
  const Tensor base = at::tensor(at::ArrayRef<float>(distances.data(), distances.size()));
  const float scale = std::expm1(-h);
  float phi = scale / -h - 1, factorial = 1;
  std::vector<Tensor> rows;
  std::vector<float> b;
  for (std::int64_t j = 0; j < count; ++j) {
    rows.push_back(base.pow(j));
    b.push_back(phi * factorial / scale);
    factorial *= static_cast<float>(j + 2);
    phi = phi / -h - 1 / factorial;
  }
  const Tensor weights = at::linalg_solve(at::stack(rows), at::tensor(b));
  const float* data = weights.const_data_ptr<float>();
  return {data, data + count};
}

// Levels by their index in the table.
class Updates {
 public:
  Updates(const std::vector<float>& sigmas, std::vector<float> lambdas)
      : sigmas_(sigmas), lambdas_(std::move(lambdas)) {}

  // The way from level `from` to the next, with order - 1 differences to levels before `from`.
  UniPcUpdate predictor(std::size_t from, std::int64_t order) const {
    UniPcUpdate update = way(from, order);
    // diffusers and FlowUniPC take the limit of small h for a single weight.
    if (order == 2) update.weights = {0.5F};
    if (order > 2) update.weights = solve_weights(update.distances, step(from));
    return update;
  }

  UniPcUpdate corrector(std::size_t from, std::int64_t order) const {
    UniPcUpdate update = way(from, order);
    std::vector<float> distances = update.distances;
    distances.push_back(1);
    update.weights = order == 1 ? std::vector<float>{0.5F} : solve_weights(distances, step(from));
    return update;
  }

 private:
  float step(std::size_t from) const { return lambdas_[from + 1] - lambdas_[from]; }

  UniPcUpdate way(std::size_t from, std::int64_t order) const {
    const float h = step(from), shrink = std::expm1(-h), alpha = 1 - sigmas_[from + 1];
    UniPcUpdate update;
    update.sample = sigmas_[from + 1] / sigmas_[from];
    update.output = update.change = alpha * shrink;
    for (std::size_t k = 1; k < static_cast<std::size_t>(order); ++k)
      update.distances.push_back((lambdas_[from - k] - lambdas_[from]) / h);
    return update;
  }

  const std::vector<float>& sigmas_;
  std::vector<float> lambdas_;
};

bool is_finite(const UniPcUpdate& update) {
  const auto finite = [](float value) { return std::isfinite(value); };
  return finite(update.sample) && finite(update.output) && finite(update.change) &&
         std::ranges::all_of(update.distances, finite) &&
         std::ranges::all_of(update.weights, finite);
}

bool is_listed(const std::vector<std::int64_t>& steps, std::int64_t step) {
  return std::ranges::find(steps, step) != steps.end();
}

std::vector<UniPcStep> steps_of(const FlowTable& table, std::vector<float> lambdas,
                                const UniPcOptions& options) {
  const Updates updates(table.sigmas, std::move(lambdas));
  std::vector<UniPcStep> steps;
  std::int64_t order = 0;  // of the predictor before
  for (std::int64_t i = 0; i < table.steps(); ++i) {
    const auto level = static_cast<std::size_t>(i);
    UniPcStep step;
    step.sigma = table.sigmas[level];
    step.corrects = i > 0 && !is_listed(options.disable_corrector, i - 1);
    if (step.corrects) step.corrector = updates.corrector(level - 1, order);
    order = std::min(options.solver_order, i + 1);
    if (options.lower_order_final) order = std::min(order, table.steps() - i);
    step.predictor = updates.predictor(level, order);
    step.predictor_order = order;
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace

void UniPcOptions::check() const {
  if (solver_order < 1 || solver_order > kMaxOrder)
    throw InputError("solver_order: found {}, expected 1 to {}", solver_order, kMaxOrder);
  if (solver_type != "bh2") {
    throw InputError("solver_type: found \"{}\", expected \"bh2\"{}", solver_type,
                     solver_type == "bh1" ? ": bh1 ends in NaN where the last level is 0" : "");
  }
  if (!lower_order_final && solver_order > 1) {
    throw InputError(
        "lower_order_final: found false, expected true: a last step of order {} ends in NaN",
        solver_order);
  }
  for (const std::int64_t step : disable_corrector) {
    if (step < 0) throw InputError("disable_corrector: found {}, expected steps from 0 on", step);
  }
}

UniPcSchedule make_unipc_schedule(FlowSampler sampler, std::int64_t steps, double shift,
                                  const UniPcOptions& options) {
  TORCH_CHECK(is_unipc(sampler), "[unipc] ", name_of(sampler), " is another solver's");
  options.check();
  UniPcSchedule schedule;
  schedule.table = make_flow_table(sampler, steps, shift);
  schedule.steps = steps_of(schedule.table, log_ratios(schedule.table, sampler), options);
  const bool finite = std::ranges::all_of(schedule.steps, [](const UniPcStep& step) {
    return is_finite(step.predictor) && is_finite(step.corrector);
  });
  if (!finite) {
    throw InputError(Setting::of("timestep_shift"), "{} is too extreme for {} steps in float32",
                     shift, steps);
  }
  return schedule;
}

Tensor UniPcState::step(std::int64_t i, const Tensor& v, const Tensor& x) {
  TORCH_CHECK(i == next_ && i < schedule_.table.steps(), "[unipc] step ", i, " of ",
              schedule_.table.steps(), ", expected ", next_);
  TORCH_CHECK(x.scalar_type() == at::kFloat && v.sizes() == x.sizes(), "[unipc] latent ", x.sizes(),
              " ", x.scalar_type(), ", velocity ", v.sizes());
  const UniPcStep& step = schedule_.steps[static_cast<std::size_t>(i)];
  // diffusers rounds sigma * v to the velocity's dtype. Here it is float32 for any of them.
  const Tensor x0 = x - v.to(at::kFloat) * step.sigma;
  corrected_ = step.corrects ? updated(step.corrector, corrected_, &x0) : x;
  outputs_.push_front(x0);  // of the sample before its correction: it is not computed again
  if (outputs_.size() > static_cast<std::size_t>(kMaxOrder)) outputs_.pop_back();
  ++next_;
  return updated(step.predictor, corrected_, nullptr);
}

Tensor UniPcState::updated(const UniPcUpdate& update, const Tensor& from,
                           const Tensor* at_end) const {
  const Tensor& m0 = outputs_.front();
  const Tensor base = from * update.sample - m0 * update.output;
  Tensor changes;
  const auto add = [&](const Tensor& change) {
    changes = changes.defined() ? changes + change : change;
  };
  for (std::size_t k = 0; k < update.distances.size(); ++k)
    add((outputs_[k + 1] - m0) / update.distances[k] * update.weights[k]);
  if (at_end != nullptr) add((*at_end - m0) * update.weights.back());
  return changes.defined() ? base - changes * update.change : base;
}

void UniPcState::reset() {
  outputs_.clear();
  corrected_ = Tensor();
  next_ = 0;
}

}  // namespace diptych
