#include "lib/pipelines/dit/replay_samplers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/sampling/flow_solver.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

constexpr std::array kSamplers = {
    std::pair{std::string_view("diffusers_unipc"), FlowSampler::unipc},
    std::pair{std::string_view("official_flow_unipc"), FlowSampler::unipc_official},
    std::pair{std::string_view("fastvideo_flow_unipc"), FlowSampler::unipc_fastvideo},
    std::pair{std::string_view("diffusers_flow_match_euler"), FlowSampler::euler},
    std::pair{std::string_view("omni_"), FlowSampler::euler_omni},
    std::pair{std::string_view("karras"), FlowSampler::euler_karras},
};

// "shift12" -> 12; `otherwise` where the name has no such word.
std::int64_t number_behind(std::string_view name, std::string_view word, std::int64_t otherwise) {
  const std::size_t at = name.find(word);
  if (at == std::string_view::npos) return otherwise;
  const std::string_view digits = name.substr(at + word.size());
  std::int64_t value = otherwise;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// A run that a name describes: "diffusers_unipc_order3_shift5_steps12".
struct NamedRun {
  FlowSampler sampler{};
  std::int64_t steps = 0;
  double shift = 1;
  UniPcOptions options{};

  static NamedRun of(const std::string& name, const std::filesystem::path& file) {
    const auto* const known = std::ranges::find_if(
        kSamplers, [&](const auto& entry) { return name.starts_with(entry.first); });
    if (known == kSamplers.end())
      throw Unsupported("{}: {}: this sampler is not in this version", file.string(), name);
    NamedRun run;
    run.sampler = known->second;
    run.steps = number_behind(name, "steps", 0);
    run.shift = static_cast<double>(number_behind(name, "shift", 1));
    run.options.solver_order = number_behind(name, "order", run.options.solver_order);
    constexpr std::int64_t kMostSteps = 10000;
    if (run.steps < 1 || run.steps > kMostSteps)
      throw InputError("{}: {}: expected a name with 1 to {} steps", file.string(), name,
                       kMostSteps);
    return run;
  }
};

Tensor to_tensor(const std::vector<float>& values) {
  return at::tensor(at::ArrayRef<float>(values));
}

// `stem`: with the dot behind it. The same levels stand beside those in float64, before they were
// rounded.
void record_table(const std::string& stem, FlowSampler sampler, const std::vector<float>& sigmas,
                  const std::vector<float>& timesteps, TraceSink& trace) {
  const Tensor levels = to_tensor(sigmas), times = to_tensor(timesteps);
  trace.record(stem + "sigmas", levels);
  trace.record(stem + "sigmas_f64", levels);
  trace.record(stem + "timesteps", is_unipc(sampler) ? times.to(at::kLong) : times);
}

// The names up to their last dot, that dot included.
std::set<std::string> stems_of(const SafetensorsFile& file) {
  std::set<std::string> stems;
  for (const auto& [name, entry] : file.entries())
    stems.insert(name.substr(0, name.rfind('.') + 1));
  return stems;
}

void replay_solver(const std::string& stem, const NamedRun& run, const SafetensorsFile& inputs,
                   TraceSink& trace) {
  const Tensor outputs = inputs.view(stem + "model_outputs");
  Tensor x = inputs.view(stem + "sample0").to(at::kFloat).clone();
  if (outputs.dim() != x.dim() + 1 || outputs.size(0) != run.steps ||
      outputs.sizes().slice(1) != x.sizes())
    throw InputError("{}model_outputs: expected the shape of {}sample0 for each of {} steps", stem,
                     stem, run.steps);
  FlowSolver solver = make_flow_solver(run.sampler, run.steps, run.shift, run.options);
  std::vector<Tensor> samples;
  for (std::int64_t i = 0; i < solver.steps(); ++i) {
    x = solver.step(i, outputs[i], x);
    samples.push_back(x);
  }
  const Tensor all = at::stack(samples);
  trace.record(stem + "samples", all);
  trace.record(stem + "samples_f64", all);
  record_table(stem, run.sampler, solver.sigmas(), solver.timesteps(), trace);
}

}  // namespace

void replay_flow_tables(const RecordedCase& recorded, const RunConfig&, TraceSink& trace) {
  const std::filesystem::path file = recorded.folder / "expected.safetensors";
  for (const std::string& stem : stems_of(SafetensorsFile::open(file))) {
    const NamedRun run = NamedRun::of(stem, file);
    const FlowTable table = make_flow_table(run.sampler, run.steps, run.shift);
    record_table(stem, run.sampler, table.sigmas, table.timesteps, trace);
    if (run.sampler != FlowSampler::euler_karras) continue;
    std::vector<float> times;
    for (const float sigma : table.sigmas) times.push_back(EdmPreconditioning::of(sigma).t);
    trace.record(stem + "t_model", to_tensor(times));
  }
}

void replay_flow_solvers(const RecordedCase& recorded, const RunConfig&, TraceSink& trace) {
  const std::filesystem::path file = recorded.folder / "inputs.safetensors";
  const SafetensorsFile inputs = SafetensorsFile::open(file);
  for (const std::string& stem : stems_of(inputs))
    replay_solver(stem, NamedRun::of(stem, file), inputs, trace);
}

}  // namespace diptych
