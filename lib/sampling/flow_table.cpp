#include "lib/sampling/flow_table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <c10/util/Exception.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr double kTrainTimesteps = 1000;

// numpy.linspace: float64, i * step + start, and the stop itself where it is the last.
std::vector<double> line(double start, double stop, std::int64_t points) {
  std::vector<double> values(static_cast<std::size_t>(points), start);
  const double step = (stop - start) / static_cast<double>(std::max<std::int64_t>(points - 1, 1));
  for (std::size_t i = 1; i < values.size(); ++i) values[i] = static_cast<double>(i) * step + start;
  if (points > 1) values.back() = stop;
  return values;
}

template <typename Number>
Number shifted(Number sigma, double shift) {
  return static_cast<Number>(shift) * sigma / (1 + static_cast<Number>(shift - 1) * sigma);
}

std::vector<double> shifted(std::vector<double> sigmas, double shift) {
  for (double& sigma : sigmas) sigma = shifted(sigma, shift);
  return sigmas;
}

// A line of steps + 1 points without its last.
std::vector<double> line_without_end(double start, double stop, std::int64_t steps) {
  std::vector<double> sigmas = line(start, stop, steps + 1);
  sigmas.pop_back();
  return sigmas;
}

std::vector<double> unipc_sigmas(std::int64_t steps, double shift) {
  constexpr double kEps = 1e-6;  // the first level must not be 1, whose log(1 - sigma) is infinite
  std::vector<double> sigmas = shifted(line_without_end(1, 1 / kTrainTimesteps, steps), shift);
  if (std::abs(sigmas.front() - 1) < kEps) sigmas.front() -= kEps;
  return sigmas;
}

// FlowUniPC takes its first level from the float32 table that its constructor makes.
constexpr float kFlowUniPcFirst = static_cast<float>(1 - 1 / kTrainTimesteps);

FlowTable unipc_table(const std::vector<double>& sigmas) {
  FlowTable table;
  for (const double sigma : sigmas) {
    table.sigmas.push_back(static_cast<float>(sigma));
    table.timesteps.push_back(static_cast<float>(std::trunc(sigma * kTrainTimesteps)));
  }
  table.sigmas.push_back(0);
  return table;
}

// `last`: the level behind the last step.
FlowTable euler_table(const std::vector<double>& sigmas, double last) {
  FlowTable table;
  for (const double sigma : sigmas) {
    table.sigmas.push_back(static_cast<float>(sigma));
    table.timesteps.push_back(table.sigmas.back() * static_cast<float>(kTrainTimesteps));
  }
  table.sigmas.push_back(static_cast<float>(last));
  return table;
}

// The constructor shifts 1 and 1 / 1000 in float32, and set_timesteps() the line between them
// again.
FlowTable double_shifted_euler_table(std::int64_t steps, double shift) {
  const double least = shifted(static_cast<float>(1 / kTrainTimesteps), shift);
  std::vector<double> sigmas = line(kTrainTimesteps, least * kTrainTimesteps, steps);
  for (double& sigma : sigmas) sigma /= kTrainTimesteps;
  return euler_table(shifted(sigmas, shift), 0);
}

// float32 throughout.
FlowTable omni_euler_table(std::int64_t steps, double shift) {
  std::vector<double> sigmas = line_without_end(kTrainTimesteps, 0, steps);
  for (double& sigma : sigmas) {
    const float timestep = static_cast<float>(sigma);
    sigma = shifted(timestep / static_cast<float>(kTrainTimesteps), shift);
  }
  return euler_table(sigmas, 0);
}

// Karras et al. 2022, arXiv:2206.00364, equation 5. Cosmos repeats the last level, so that its last
// step leaves the latent as it is.
FlowTable karras_table(std::int64_t steps) {
  constexpr double kMost = 80, kLeast = 0.002, kRho = 7;
  const double from = std::pow(kMost, 1 / kRho), to = std::pow(kLeast, 1 / kRho);
  std::vector<double> sigmas = line(0, 1, steps);
  for (double& sigma : sigmas) sigma = std::pow(from + sigma * (to - from), kRho);
  return euler_table(sigmas, sigmas.back());
}

FlowTable table_of(FlowSampler sampler, std::int64_t steps, double shift) {
  switch (sampler) {
    case FlowSampler::unipc:
      return unipc_table(unipc_sigmas(steps, shift));
    case FlowSampler::unipc_official:
      return unipc_table(shifted(line_without_end(kFlowUniPcFirst, 0, steps), shift));
    case FlowSampler::unipc_fastvideo:
      return unipc_table(
          shifted(line_without_end(shifted(kFlowUniPcFirst, shift), 0, steps), shift));
    case FlowSampler::euler:
      return double_shifted_euler_table(steps, shift);
    case FlowSampler::euler_omni:
      return omni_euler_table(steps, shift);
    case FlowSampler::euler_karras:
      return karras_table(steps);
  }
  TORCH_CHECK(false, "[flow table] sampler ", static_cast<int>(sampler));
}

bool falls(const FlowTable& table) {
  const auto& sigmas = table.sigmas;
  const auto end = sigmas.end() - 1;  // Karras' last level is there twice
  return std::all_of(sigmas.begin(), end, [](float sigma) { return std::isfinite(sigma); }) &&
         std::adjacent_find(sigmas.begin(), end, std::less_equal<>()) == end && *(end - 1) > 0;
}

}  // namespace

bool is_unipc(FlowSampler sampler) {
  return sampler == FlowSampler::unipc || sampler == FlowSampler::unipc_official ||
         sampler == FlowSampler::unipc_fastvideo;
}

FlowTable make_flow_table(FlowSampler sampler, std::int64_t steps, double shift) {
  TORCH_CHECK(steps >= 1, "[flow table] ", steps, " steps");
  const Setting setting = Setting::of("timestep_shift");
  if (!(shift > 0 && std::isfinite(shift)))
    throw InputError(setting, "found {}, expected a number above 0", shift);
  FlowTable table = table_of(sampler, steps, shift);
  // UniPC takes logarithms of sigma and 1 - sigma.
  if (!falls(table) || (is_unipc(sampler) && table.sigmas.front() >= 1)) {
    throw InputError(setting, "{} is too extreme for {} steps in float32", shift, steps);
  }
  return table;
}

EdmPreconditioning EdmPreconditioning::of(float sigma) {
  const float t = sigma / (sigma + 1);
  return {t, 1 - t, 1 - t, -t};
}

}  // namespace diptych
