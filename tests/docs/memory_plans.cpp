// The memory that the planner computes for the released model on GPUs of the usual sizes.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/memory.h"
#include "tests/docs/pages.h"

namespace diptych::docs {
namespace {

constexpr std::array<double, 4> kGpus = {16, 24, 48, 80};  // GiB
constexpr std::array<std::pair<std::string_view, Quantization>, 3> kWeights = {
    {{"bfloat16", Quantization::none}, {"fp8", Quantization::fp8}, {"int8", Quantization::int8}}};

// Text to image with text guidance and a short prompt.
MotWork painting(std::int64_t side) {
  MotWork work;
  work.width = work.height = side;
  work.branches = 2;
  work.context_tokens = work.prefill_rows = 14;
  work.two_graphs = true;
  return work;
}

std::string plan_text(double gib, Quantization quantization, std::int64_t side) {
  MotSizes sizes = bagel_sizes({}, {});
  sizes.quantization = quantization;
  sizes.tokens_in_file = true;
  MemoryBudget budget;
  budget.device = static_cast<std::int64_t>(gib * (1 << 30));
  budget.limited = true;
  try {
    const MemoryPlan plan = fit_memory(mot_costs(sizes, painting(side)), {.batched = true}, budget);
    std::string text = fmt::format("{:.1f}", to_gib(plan.peak()));
    if (plan.choice.strips) text += ", strips";
    if (plan.choice.offload) text += fmt::format(", {:.1f} on the host", to_gib(plan.host));
    return text;
  } catch (const InputError&) {
    return "does not fit";
  }
}

std::string plans_table() {
  std::string text = table_head({"weights", "size", "16 GiB", "24 GiB", "48 GiB", "80 GiB"});
  for (const auto& [name, quantization] : kWeights) {
    for (const std::int64_t side : {1024, 512, 256}) {
      std::vector<std::string> cells = {std::string(name), fmt::format("{0}x{0}", side)};
      for (const double gib : kGpus) cells.push_back(plan_text(gib, quantization, side));
      text += table_row(cells);
    }
  }
  return text;
}

}  // namespace

void add_memory_parts(Parts& parts) {
  parts["memory plans"] = plans_table;
}

}  // namespace diptych::docs
