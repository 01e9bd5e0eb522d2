// The cache that qk_norm_rope's tests write to: [kCacheSamples, cache_capacity(rows), kv_heads,
// head_dim].
#pragma once

#include <algorithm>
#include <cstdint>

namespace diptych::testing {

inline constexpr std::int64_t kCacheSamples = 3;

// Of each sample: together more than so many rows need.
inline std::int64_t cache_capacity(std::int64_t rows) {
  return std::max<std::int64_t>(90, rows / kCacheSamples + 4);
}

}  // namespace diptych::testing
