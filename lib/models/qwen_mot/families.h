// What the launches of a layer are for. Profiles show kernels in these families, and mot_work()
// counts what each of them has to do. Norms and the like are named by their operations
// (lib/ops/launch_label.h).
#pragma once

namespace diptych::mot_families {

inline constexpr const char* kQkv = "qkv_proj";
inline constexpr const char* kO = "o_proj";
inline constexpr const char* kGateUp = "gate_up_proj";
inline constexpr const char* kDown = "down_proj";
inline constexpr const char* kAttention = "attention";
// Of generation or of understanding rows: "qkv_proj gen".
inline constexpr const char* kGen = "gen";
inline constexpr const char* kUnd = "und";

}  // namespace diptych::mot_families
