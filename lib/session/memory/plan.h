// What a run takes of the GPU's memory, or on the CPU of the host's, in parts with names, and the
// choices it was computed for. A family computes the parts from its sizes before a byte is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diptych {

// Weights that wait in host memory: units (a layer's weights, say) that the device holds for good,
// and places there for those that come and go.
struct OffloadChoice {
  std::int64_t resident = 0, slots = 0;
};

struct MemoryChoice {
  bool batched = true;  // guidance branches in one call; else one after the other
  bool strips = false;  // the autoencoder works in strips
  std::optional<OffloadChoice> offload;
};

using NamedBytes = std::vector<std::pair<std::string_view, std::int64_t>>;

// Parts that the plan itself looks for: those of a denoise step that may be kept.
inline constexpr std::string_view kDenoiseStepPart = "denoise step",
                                  kDenoiseLayoutPart = "denoise layout",
                                  kKeyValueCachePart = "key-value cache";

struct MemoryPlan {
  MemoryChoice choice;
  NamedBytes held;         // from loading to the end: weights, slots, caches
  NamedBytes work;         // one at a time
  std::int64_t slack = 0;  // holes in the allocator's blocks, cuBLAS workspace
  std::int64_t host = 0;   // page-locked host memory
  // On the CPU, of the files that are used where they are mapped: no memory of the run's own.
  std::int64_t mapped = 0;

  std::int64_t held_bytes() const;
  // What the run needs of the device at most; where there is more, the allocator keeps some of what
  // was freed at hand.
  std::int64_t peak() const;
  // The same where the memory of a denoise step and its caches are kept while the rest is done, the
  // caches of the next request among it.
  std::int64_t peak_with_kept_step() const;
  // What a step that is kept holds itself: its memory, caches and layout.
  std::int64_t kept_step_bytes() const;
  std::string summary() const;  // "31.5 GiB: weights 24.3, ..., denoise step 1.0, ..."
};

// The part that takes most; {"none", 0} of no parts.
std::pair<std::string_view, std::int64_t> largest_part(const NamedBytes& parts);

double to_gib(std::int64_t bytes);

}  // namespace diptych
