// Labels that say what launches are for: a profile adds up the time of GPU work by them
// (lib/runtime/launches.h). Work in a CUDA graph keeps the labels it was captured under
// (lib/runtime/launch_labels.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/record_function.h>

namespace diptych {

// What is launched, and for which rows where there are several sets: "qkv_proj", "gen". Text that
// outlives the label; null: nothing.
struct LaunchName {
  const char* what = nullptr;
  const char* rows = nullptr;
};

// Labels the launches of this thread while it lives, or, without a name, does nothing. Of nested
// labels the innermost counts. It is a user scope of libtorch's RecordFunction, so it costs next to
// nothing where neither a profiler nor a capture listens.
class LaunchLabel {
 public:
  explicit LaunchLabel(LaunchName name);
  explicit LaunchLabel(const char* what) : LaunchLabel(LaunchName{what}) {}

  // The label in the name of a user scope, "qkv_proj gen"; nothing where it is another scope.
  static std::optional<std::string_view> read(std::string_view scope);

 private:
  std::optional<at::RecordFunction> scope_;
};

// How the operations of this library label their own launches.
namespace launch_names {
inline constexpr const char* kNorm = "norm";
inline constexpr const char* kRope = "qk norm, rope, cache write";
inline constexpr const char* kSilu = "silu x gate";
inline constexpr const char* kGelu = "gelu";
inline constexpr const char* kQuantise = "quantise rows";
inline constexpr const char* kQuantiseAttention = "quantise q, k and v";
inline constexpr const char* kDequantise = "dequantise weights";
}  // namespace launch_names

}  // namespace diptych
