// What each guidance branch on a MoT backbone has read before it paints or answers, and the caches
// that hold it. specs: bagel.md sections 4.3 and 5.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/pipelines/mot/model.h"
#include "lib/runtime/runtime.h"

namespace diptych {

struct TextSegment {
  std::vector<std::int64_t> ids;
  // Rope position of the first token; none: it follows what was read before.
  std::optional<std::int64_t> position = {};
  bool operator==(const TextSegment&) const = default;
};

// Rope positions of a block's rows, its two markers included, in the order of its tokens: three
// lists of as many, one behind the other. Empty: all rows are at the one position that follows what
// was read before.
using BlockPositions = std::vector<std::int64_t>;

// One of a sample's pictures, as the autoencoder or as the vision transformer sees it. Equal only
// to itself: the same file given twice has two draws of posterior noise.
struct ImageSegment {
  enum class Kind { vae, vit };
  Kind kind = Kind::vae;
  std::int64_t image = 0;  // index among the sample's pictures
  std::int64_t rows = 0;   // latent or patch rows, without the two markers
  BlockPositions positions = {};
  bool operator==(const ImageSegment&) const = default;
};

using Segment = std::variant<TextSegment, ImageSegment>;

// What one branch of one sample reads, in order.
struct MotContext {
  std::vector<Segment> segments;
  // Of what follows: rope position of a text, and positions of a painted block.
  std::optional<std::int64_t> next_position = {};
  BlockPositions block = {};
  bool operator==(const MotContext&) const = default;
  std::int64_t length() const;    // cache rows
  std::int64_t position() const;  // rope position of what follows
  std::int64_t length_before(std::size_t segment) const;
  std::int64_t position_before(std::size_t segment) const;
  // Of the rows of a segment, in the order of its tokens: int64 [rows], or [3, rows].
  Tensor positions(std::size_t segment) const;
  Tensor block_positions(std::int64_t rows) const;  // likewise, of what is painted
};

struct BranchContexts {
  std::string_view name;            // "cond", "text_uncond", "img_uncond"
  std::vector<MotContext> samples;  // one per request of the packed batch
  // The number of the official code's prefill call that reads each segment (of the first sample),
  // or -1 where it copies another branch's cache. For traces (MotTrace::call_name).
  std::vector<std::int64_t> calls;
  // Its step cache counts its own calls, so that it cannot share a context with a branch that has
  // made others.
  bool counts_apart = false;
  bool shares_with(const BranchContexts& other) const {
    return counts_apart == other.counts_apart && samples == other.samples;
  }
};

// The rows of one image block without its markers: of a latent, or of patches.
struct ImageRows {
  Tensor gen;  // [rows, hidden], undefined for a picture that is looked at
  Tensor und;  // likewise, undefined for a latent
};
// Encodes and embeds a picture of a sample. `block`: where its rows go in the cache. `name`: of the
// call in a trace; "" without one.
using ReadImage = std::function<ImageRows(std::int64_t sample, const ImageSegment& segment,
                                          const MotSample& block, const std::string& name)>;

// What looks at the call that reads the rows [first, first + rows) of a context.
using ContextObserver = std::function<MotObserver(std::int64_t first, std::int64_t rows)>;
// The rows of one sample's call, in the order of its tokens.
Tensor in_token_order(const MotRows& rows);

class MotTrace;
class PrefilledContexts;

struct ContextsRequest {
  std::vector<BranchContexts> branches;  // cond first; only those that will be asked for
  // Rows that each sample will add behind its context (an image block, or generated text), for
  // which room is kept.
  std::vector<std::int64_t> own_rows;
  ReadImage read_image;  // called in order of reading
  // Contexts of the same samples whose caches are copied as far as they agree; null: none.
  const PrefilledContexts* earlier = nullptr;
  MotTrace* trace = nullptr;  // null: off
  // Of a single sample: looks at what the first context reads that no other has read before. Empty:
  // nobody does.
  ContextObserver observer = {};
};

// The contexts of all branches a run needs, each distinct one computed once, and what two of them
// begin with in common computed once. Branches whose contexts are equal in every sample share one:
// what they would compute is the same to the last bit.
class PrefilledContexts {
 public:
  static PrefilledContexts read(const MotModel& model, const ContextsRequest& request,
                                const Runtime& runtime);
  // What read() has given on another device, or in another process, from its rows(). Of the request
  // only the branches and the room behind them are looked at.
  static PrefilledContexts received(const MotModel& model, const ContextsRequest& request,
                                    const Runtime& runtime, std::span<const Tensor> rows);
  // Keys and values of one cache row after the other, contiguous: [layers, length, kv_heads,
  // head_dim].
  std::vector<Tensor> rows() const;

  std::int64_t samples() const { return samples_; }
  std::int64_t distinct() const { return static_cast<std::int64_t>(distinct_.size()); }
  // Index of the distinct context that serves a branch; cond is 0. Nothing for a branch not asked
  // for.
  std::optional<std::int64_t> context_of(std::string_view branch) const;
  const std::vector<BranchContexts>& branches() const { return branches_; }
  const MotContext& context(std::int64_t distinct, std::int64_t sample) const;
  std::int64_t cache_row(std::int64_t distinct, std::int64_t sample) const {
    return distinct * samples_ + sample;
  }
  const KvCache& cache() const { return *cache_; }
  // Whether `other` has as many samples, branches that share alike, and as much room: what is laid
  // out for these contexts then fits those, but for lengths and positions.
  bool laid_out_as(const PrefilledContexts& other) const;
  bool as_long_as(const PrefilledContexts& other) const;  // which is laid out as these are
  // Becomes what `other`, laid out as these, has read; the cache stays where it is.
  void copy(const PrefilledContexts& other);

 private:
  friend class ContextReader;
  // Laid out, nothing read.
  PrefilledContexts(const MotModel& model, const ContextsRequest& request, const Runtime& runtime);

  std::vector<BranchContexts> branches_;
  std::vector<std::int64_t> context_of_branch_;  // parallel to branches_
  std::vector<std::size_t> distinct_;            // the branch each distinct context comes from
  std::int64_t samples_ = 0;
  std::optional<KvCache> cache_;
};

}  // namespace diptych
