// How the guidance branches of a diffusion transformer run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/tensor/types.h"

namespace diptych {

struct BranchSituation {
  // What conditions the steps beside the text, by the names of the field: "image_latent" and the
  // like.
  std::span<const std::string_view> conditioned_by;
  bool equal_text_shapes = true;  // of both branches
  bool gated = false;             // adaptive guidance leaves steps without the second branch
};

// Why [negative, positive] do not run in one forward; nothing where they may. Any conditioning
// counts, known or not (FastVideo's batched guidance, PR 1416; specs: wan.md 8, R3 and R6).
std::optional<std::string> why_sequential(const BranchSituation& situation);

// What all branches of a forward see: [jobs, ...] -> [branches * jobs, ...], those of a branch
// together.
Tensor of_branches(const Tensor& jobs, std::int64_t branches);

}  // namespace diptych
