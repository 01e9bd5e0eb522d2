// What each guidance branch of BAGEL has read before it paints, and the caches that hold it.
// specs: bagel.md sections 4.3 and 5.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/models/bagel/bagel.h"
#include "lib/runtime/runtime.h"

namespace diptych {

enum class BagelBranch { cond, text_uncond, img_uncond };
inline constexpr std::array<std::string_view, 3> kBagelBranchNames = {"cond", "text_uncond",
                                                                      "img_uncond"};

struct TextSegment {
  std::vector<std::int64_t> ids;  // with begin and end markers
  bool operator==(const TextSegment&) const = default;
};

// What one branch of one sample reads, in order.
struct BagelContext {
  std::vector<TextSegment> segments;
  bool operator==(const BagelContext&) const = default;
  std::int64_t length() const;    // cache rows
  std::int64_t position() const;  // rope position of what follows
};

struct BranchContexts {
  std::string_view name;              // "cond", "text_uncond", "img_uncond"
  std::vector<BagelContext> samples;  // one per prompt of the batch
};

// The contexts of all branches a run needs, each distinct one computed once. Branches whose
// contexts are equal in every sample share one: what they would compute is the same to the last
// bit.
class PrefilledContexts {
 public:
  // `branches`: cond first; only those that guidance will ask for. `own_rows`: the rows of each
  // sample's image block, for which room is kept behind its context.
  PrefilledContexts(const Bagel& model, std::vector<BranchContexts> branches,
                    std::span<const std::int64_t> own_rows, const Runtime& runtime);

  std::int64_t samples() const { return samples_; }
  std::int64_t distinct() const { return static_cast<std::int64_t>(distinct_.size()); }
  // Index of the distinct context that serves a branch; cond is 0. Nothing for a branch not asked
  // for.
  std::optional<std::int64_t> context_of(std::string_view branch) const;
  const std::vector<BranchContexts>& branches() const { return branches_; }
  const BagelContext& context(std::int64_t distinct, std::int64_t sample) const;
  std::int64_t cache_row(std::int64_t distinct, std::int64_t sample) const {
    return distinct * samples_ + sample;
  }
  const KvCache& cache() const { return *cache_; }

 private:
  void prefill(const Bagel& model, std::int64_t distinct, const Runtime& runtime);

  std::vector<BranchContexts> branches_;
  std::vector<std::int64_t> context_of_branch_;  // parallel to branches_
  std::vector<std::size_t> distinct_;            // the branch each distinct context comes from
  std::int64_t samples_ = 0, prefill_calls_ = 0;
  std::optional<KvCache> cache_;
};

}  // namespace diptych
