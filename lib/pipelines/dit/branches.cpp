#include "lib/pipelines/dit/branches.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych {

std::optional<std::string> why_sequential(const BranchSituation& situation) {
  if (situation.gated) return "adaptive guidance leaves out a branch of later steps";
  if (!situation.conditioned_by.empty())
    return fmt::format("the steps are conditioned by {}",
                       fmt::join(situation.conditioned_by, " and "));
  if (!situation.equal_text_shapes) return "the texts of both branches have other shapes";
  return std::nullopt;
}

Tensor of_branches(const Tensor& jobs, std::int64_t branches) {
  std::vector<std::int64_t> sizes = jobs.sizes().vec();
  sizes.insert(sizes.begin(), branches);
  return jobs.unsqueeze(0).expand(sizes).flatten(0, 1);
}

}  // namespace diptych
