#include "lib/tensor/layout_problems.h"

#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych {

std::vector<std::string> layout_problems(const Weights& weights,
                                         std::span<const TensorShape> layout,
                                         std::string_view unneeded) {
  std::vector<std::string> problems;
  for (const auto& [name, shape] : layout) {
    if (!weights.contains(name)) {
      problems.push_back(fmt::format("missing: {} [{}]", name, fmt::join(shape, ", ")));
      continue;
    }
    const std::vector<std::int64_t> found = weights.shape(name);
    weights.check(name, found);
    if (found != shape)
      problems.push_back(fmt::format("wrong shape: {}: found [{}], expected [{}]", name,
                                     fmt::join(found, ", "), fmt::join(shape, ", ")));
  }
  for (const std::string& name : weights.unread()) {
    if (name != unneeded) problems.push_back("unexpected: " + name);
  }
  return problems;
}

}  // namespace diptych
