// How well a second model drafts what a language model writes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace diptych {

struct DraftingReport {
  std::int64_t block_size = 0;           // the token before the drafts among them
  std::vector<std::int64_t> acceptance;  // drafts that were accepted + 1, of each verification
  bool switched_off = false;             // the rest was written without, which was faster

  double mean() const;  // 0 of none
  // Of each draft of a block, the share of verifications that accepted it: block_size - 1 of them,
  // not conditioned on the drafts before. Their sum is mean() - 1.
  std::vector<double> position_rates() const;
  // How many verifications accepted so many, from 0 to block_size.
  std::vector<std::int64_t> histogram() const;
  // Of another text beside these; the larger block counts.
  void add(const DraftingReport& other);
  // "6.54 tokens a verification of 16, accepted 0.92 0.85 ..."
  std::string summary() const;
};

// The mean of the means of several texts, in which a long one counts no more than a short one; 0 of
// none.
double mean_of_means(std::span<const DraftingReport> texts);

}  // namespace diptych
