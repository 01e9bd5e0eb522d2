// What the launches of a Wan block are for. Profiles show kernels in these families. Norms and the
// like are named by their operations (lib/ops/launch_label.h).
#pragma once

namespace diptych::wan_families {

inline constexpr const char* kQkv = "attn1 qkv";
inline constexpr const char* kSelfAttention = "attn1 attention";
inline constexpr const char* kSelfOut = "attn1 to_out";
inline constexpr const char* kCrossQ = "attn2 to_q";
inline constexpr const char* kCrossAttention = "attn2 attention";
inline constexpr const char* kCrossOut = "attn2 to_out";
inline constexpr const char* kFfnIn = "ffn in";
inline constexpr const char* kFfnOut = "ffn out";

}  // namespace diptych::wan_families
