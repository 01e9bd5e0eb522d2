#include "lib/pipelines/drafting/draft_trial.h"

#include <algorithm>

namespace diptych {

bool DraftTrial::drafts(std::size_t texts) {
  if (off_) return false;
  if (measured_texts_ == 0 || 2 * texts <= measured_texts_) {
    measured_texts_ = texts;
    drafting_ = true;
    warm_ = false;
    blocks_.clear();
    plain_.clear();
    plain_seconds_.reset();
  }
  texts_ = texts;
  return drafting_;
}

void DraftTrial::add(double seconds, std::int64_t tokens) {
  if (off_) return;
  if (!warm_) {
    warm_ = true;
    return;
  }
  if (!drafting_) {
    plain_.push_back(seconds);
    if (plain_.size() < kPlainSteps) return;
    std::ranges::nth_element(plain_, plain_.begin() + kPlainSteps / 2);
    plain_seconds_ = plain_[kPlainSteps / 2];
    drafting_ = true;
    return judge();
  }
  blocks_.push_back({seconds, static_cast<double>(tokens) / static_cast<double>(texts_)});
  if (blocks_.size() > kBlocks) blocks_.pop_front();
  if (blocks_.size() < kBlocks) return;
  if (plain_seconds_) return judge();
  drafting_ = false;
  warm_ = false;
}

// A plain step gives each text one token.
void DraftTrial::judge() {
  Block sum{0, 0};
  for (const Block& block : blocks_) {
    sum.seconds += block.seconds;
    sum.tokens += block.tokens;
  }
  off_ = sum.tokens * plain_seconds_.value() < sum.seconds;
}

}  // namespace diptych
