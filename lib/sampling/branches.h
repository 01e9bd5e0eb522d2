// Classifier-free guidance over any number of branches: which are needed at t, and how their
// velocities combine. Pure maths; how branches execute is the caller's.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

// v <- v_branch + scale * (v - v_branch), which leads away from what the branch has read.
struct GuidanceTerm {
  std::string_view branch;  // "text_uncond"
  double scale = 1;         // 1 or less: off
  bool operator==(const GuidanceTerm&) const = default;
};

// The terms act in their order on the velocity of the conditional branch. One that is off switches
// off those behind it, which would lead away from a velocity that it has not made. With a text and
// an image term: ByteDance-Seed/Bagel @056b5fd, modeling/bagel/bagel.py (_forward_flow); specs:
// bagel.md 7.1.
struct Guidance {
  std::vector<GuidanceTerm> terms;
  double interval_low = 0, interval_high = 1;
  Renorm renorm = Renorm::global;
  double renorm_min = 0;
  bool operator==(const Guidance&) const = default;

  // Guidance acts where low < t <= high, compared in float32 as torch compares a float32 tensor
  // with a Python number.
  bool active(float t) const;
  // How many of the terms, from the first on, act at t.
  std::size_t terms_at(float t) const;

  // cond and the velocity of each acting term's branch, all [rows, columns]. The dtype follows the
  // official code: the factor of `global` keeps the velocity's dtype, the per-row factors make it
  // float32.
  Tensor combine(const Tensor& cond, std::span<const Tensor> branches) const;
  // What the renorm multiplies a velocity v with: float32 [1], or [rows] where each has its own.
  Tensor renorm_factor(const Tensor& v, const Tensor& cond) const;
};

}  // namespace diptych
