// Guidance branches, each computed by one rank and known to all.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/runtime/ranks.h"

namespace diptych {

// Whether ranks divide the guidance branches. `ranks`: null: there are none.
bool shares_branches(const Ranks* ranks);

// What compute(i) gives of every i from 0 to count - 1, in order: rank r of the cfg group computes
// r, r + size, ..., and gets the others'. Values are of one shape and dtype, and contiguous. A rank
// that is left over in the last turn computes a branch again, which costs no time.
std::vector<Tensor> share_branches(Ranks& ranks, std::int64_t count,
                                   const std::function<Tensor(std::int64_t branch)>& compute);

}  // namespace diptych
