#include "lib/runtime/shared_branches.h"

#include <algorithm>

namespace diptych {

bool shares_branches(const Ranks* ranks) {
  return ranks != nullptr && ranks->comm().cfg.size > 1;
}

std::vector<Tensor> share_branches(Ranks& ranks, std::int64_t count,
                                   const std::function<Tensor(std::int64_t branch)>& compute) {
  const auto size = static_cast<std::int64_t>(ranks.comm().cfg.size);
  const auto index = static_cast<std::int64_t>(ranks.comm().cfg.index);
  std::vector<Tensor> values;
  for (std::int64_t first = 0; first < count; first += size) {
    const Tensor own = compute(std::min(first + index, count - 1));
    const Tensor all = ranks.all_gather(RankAxis::cfg, own.contiguous());
    for (std::int64_t i = 0; i < std::min(size, count - first); ++i) values.push_back(all[i]);
  }
  return values;
}

}  // namespace diptych
