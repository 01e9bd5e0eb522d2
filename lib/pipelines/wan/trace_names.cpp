#include "lib/pipelines/wan/trace_names.h"

#include <array>
#include <string_view>

#include "lib/pipelines/dit/trace_parts.h"

namespace diptych {
namespace {

constexpr auto kStages = joined(
    std::to_array<std::string_view>({"dequant", "fused", "metadata", "tokens", "text", "image",
                                     "schedule", "step", "final", "vae.latent_denormalized", "vae",
                                     "encode", "decode", "plain", "lora", "omni_wan_euler"}),
    kPartStages);

constexpr auto kWithin =
    joined(std::to_array<std::string_view>({"prompt_ids",
                                            "negative_ids",
                                            "prompt_embeds_valid_rows",
                                            "negative_prompt_embeds_valid_rows",
                                            "vae_pixels",
                                            "clip_pixels",
                                            "clip_hidden",
                                            "embeds",
                                            "condition",
                                            "first_frame_mask",
                                            "timesteps",
                                            "sigmas",
                                            "t",
                                            "token_timesteps",
                                            "cond",
                                            "batch",
                                            "uncond",
                                            "patch_embedding",
                                            "rope_cos",
                                            "rope_sin",
                                            "timestep_sinusoid",
                                            "temb",
                                            "timestep_proj",
                                            "context_text_first64",
                                            "context_image",
                                            "chunk",
                                            "block",
                                            "norm1",
                                            "self_q_normed",
                                            "self_k_normed",
                                            "self_v",
                                            "self_attn_out",
                                            "norm2",
                                            "cross_q_normed",
                                            "cross_attn_out",
                                            "norm3",
                                            "ffn_out",
                                            "hidden",
                                            "norm_out",
                                            "proj_out",
                                            "v_cond",
                                            "v_uncond",
                                            "v_guided",
                                            "std_cond",
                                            "std_guided",
                                            "v_rescaled",
                                            "x0_pred",
                                            "corrected_sample",
                                            "predictor_order",
                                            "latent",
                                            "latent_denormalized",
                                            "decoded"}),
           kPartWithin);

constexpr auto kGroups =
    joined(std::to_array<TraceGroups>(
               {{"step*", {"step_tensors"}},
                {"image.*", {"step_tensors"}},
                {"text.*", {"text", "step_tensors"}},
                {"final.latent", {"final_latent"}},
                {"vae.latent_denormalized", {"latent_denormalized", "final_latent"}},
                {"dequant.*", {"dequant"}},
                {"fused.*", {"fused_weights"}},
                {"metadata.fused.*", {"fused_weights"}},
                {"plain.final.latent", {"plain_final_latent"}},
                {"plain.*", {"step_tensors"}},
                {"lora.fused.*", {"lora_fused_weights"}},
                {"lora.final.latent", {"lora_final_latent"}},
                {"lora.step*", {"lora_v_cond"}},
                {"vae.decoded", {"video"}},
                {"encode.*", {"encode"}},
                {"decode.*", {"decode"}}}),
           kPartGroups);

constexpr TraceNames kNames = {kStages, kWithin, {}, kGroups};

}  // namespace

const TraceNames& wan_trace_names() {
  return kNames;
}

}  // namespace diptych
