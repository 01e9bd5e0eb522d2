#include "lib/pipelines/bagel_kept_painters.h"

#include <algorithm>
#include <utility>

namespace diptych {

void KeptPainters::add(std::unique_ptr<BagelPainter> painter, std::int64_t bytes) {
  if (kept_.size() == kMost) kept_.erase(kept_.begin());
  kept_.push_back({std::move(painter), bytes});
}

std::unique_ptr<BagelPainter> KeptPainters::take(const Matches& matches) {
  const auto latest = std::find_if(kept_.rbegin(), kept_.rend(),
                                   [&](const Kept& kept) { return matches(*kept.painter); });
  if (latest == kept_.rend()) return nullptr;
  std::unique_ptr<BagelPainter> painter = std::move(latest->painter);
  kept_.erase(std::next(latest).base());
  return painter;
}

void KeptPainters::make_room(std::int64_t room, const Matches& matches) {
  if (room < 0) return clear();
  std::int64_t held = 0;
  bool matched = false;
  for (auto kept = kept_.end(); kept != kept_.begin();) {
    --kept;
    if (!matched && matches(*kept->painter)) {
      matched = true;
      continue;
    }
    held += kept->bytes;
    if (held > room) kept = kept_.erase(kept);
  }
}

}  // namespace diptych
