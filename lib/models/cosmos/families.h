// What the launches of a Cosmos block are for. Profiles show kernels in these families. Norms and
// the like are named by their operations (lib/ops/launch_label.h).
#pragma once

namespace diptych::cosmos_families {

inline constexpr const char* kModulation = "adaln modulation";
inline constexpr const char* kQkv = "attn1 qkv";
inline constexpr const char* kSelfAttention = "attn1 attention";
inline constexpr const char* kSelfOut = "attn1 to_out";
inline constexpr const char* kCrossQ = "attn2 to_q";
inline constexpr const char* kCrossAttention = "attn2 attention";
inline constexpr const char* kCrossOut = "attn2 to_out";
inline constexpr const char* kFfIn = "ff in";
inline constexpr const char* kFfOut = "ff out";

}  // namespace diptych::cosmos_families
