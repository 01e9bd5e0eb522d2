#include "lib/pipelines/cosmos/trace_names.h"

#include <array>
#include <string_view>

#include "lib/pipelines/dit/trace_parts.h"

namespace diptych {
namespace {

constexpr auto kStages =
    joined(std::to_array<std::string_view>({"tokens", "text", "cond", "schedule", "step", "final",
                                            "vae.latent_denormalized", "vae"}),
           kPartStages);

constexpr auto kWithin =
    joined(std::to_array<std::string_view>({"prompt_ids",
                                            "negative_ids",
                                            "prompt_embeds_valid_rows",
                                            "negative_prompt_embeds_valid_rows",
                                            "pixels",
                                            "indicator",
                                            "mask",
                                            "latents",
                                            "timesteps",
                                            "sigmas",
                                            "sigma",
                                            "t_model",
                                            "model_input",
                                            "cond",
                                            "uncond",
                                            "batch",
                                            "timestep_sinusoid",
                                            "temb",
                                            "embedded_timestep",
                                            "rope_cos",
                                            "rope_sin",
                                            "patch_embed",
                                            "block",
                                            "norm1_modulated",
                                            "norm1_gate",
                                            "self_q_normed",
                                            "self_k_normed",
                                            "self_attn_out",
                                            "norm2_modulated",
                                            "norm2_gate",
                                            "cross_attn_out",
                                            "norm3_modulated",
                                            "norm3_gate",
                                            "ff_out",
                                            "hidden",
                                            "norm_out",
                                            "proj_out",
                                            "out_cond",
                                            "out_uncond",
                                            "x0_cond",
                                            "x0_uncond",
                                            "x0_guided",
                                            "velocity",
                                            "latent",
                                            "latent_denormalized",
                                            "decoded"}),
           kPartWithin);

constexpr auto kGroups =
    joined(std::to_array<TraceGroups>({{"step*", {"step_tensors"}},
                                       {"text.*", {"step_tensors"}},
                                       {"cond.*", {"step_tensors"}},
                                       {"final.latent", {"final_latent"}},
                                       {"vae.latent_denormalized", {"final_latent"}},
                                       {"vae.decoded", {"video"}}}),
           kPartGroups);

constexpr TraceNames kNames = {kStages, kWithin, {}, kGroups};

}  // namespace

const TraceNames& cosmos_trace_names() {
  return kNames;
}

}  // namespace diptych
