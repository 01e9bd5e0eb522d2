#include "lib/session/result.h"

#include <algorithm>

#include "lib/tensor/finite.h"

namespace diptych {

std::vector<std::pair<std::string, double>> stages_between(const Report& before,
                                                           const Report& after) {
  std::vector<std::pair<std::string, double>> stages;
  for (const auto& [stage, seconds] : after.seconds) {
    const auto earlier =
        std::ranges::find(before.seconds, stage, &std::pair<std::string, double>::first);
    const double own = seconds - (earlier == before.seconds.end() ? 0 : earlier->second);
    if (own != 0) stages.emplace_back(stage, own);
  }
  return stages;
}

void help_decode(const Media& media) {
  const auto* clip = std::get_if<Clip>(&media);
  if (clip != nullptr && clip->help_decode) clip->help_decode();
}

void require_finite(const Tensor& values, std::string_view what) {
  if (values.isfinite().all().item<bool>()) return;
  throw NotFinite("{} is not finite (NaN or infinity): weights, start noise or scales out of range",
                  what);
}

}  // namespace diptych
