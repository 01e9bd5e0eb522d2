#include "lib/config/stage_config_known.h"

#include <algorithm>
#include <array>

namespace diptych {
namespace {

constexpr std::string_view kOneGpu =
    "processes divide a request by cfg_parallel_size, ulysses_degree and ring_degree";
constexpr std::string_view kLauncher =
    "processes are started with torchrun, mpirun or srun, and share the list of a batch";
constexpr std::string_view kWholeContexts = "a stage hands on what it has read as a whole";
constexpr std::string_view kNoPython = "this program runs no Python";
constexpr std::string_view kOffload = "set offload at the top of the file";
constexpr std::string_view kMemory = "a request takes the memory it needs, up to max_vram";
constexpr std::string_view kNoLora = "lora stands at the top of the file where the model has it";
constexpr std::string_view kNoCache = "set cache_mode and cache_threshold";
constexpr std::string_view kNoCompile = "nothing is compiled at run time";
constexpr std::string_view kQuantization = "set quantization at the top of the file";
constexpr std::string_view kPlainCaches = "keys and values are not quantised";
constexpr std::string_view kTopLevel = "it holds for all stages; set it at the top of the file";
constexpr std::string_view kOther = "no pipeline of this version has it";
constexpr std::string_view kNotHere = "this pipeline does not have it";  // another may

using enum YamlMap;

// After vllm-omni 0.30: config/stage_config.py (DeployConfig, StageDeployConfig) and the sampling
// parameters of its diffusion requests.
constexpr auto kRefused = std::to_array<RefusedKey>({
    // The file.
    {file, "async_chunk", "false", kWholeContexts},
    {file, "edges", "", "set input_connectors in the next stage"},
    {file, "platforms", "", "a file holds for every device"},
    {file, "session_mode", "turn", kOther},
    {file, "model_runner", "", kOther},
    {file, "active_stream_window", "0", kOther},
    {file, "duplex_session", "", kOther},
    {file, "trust_remote_code", "true|false", kNoPython},
    {file, "distributed_executor_backend", "uni", kLauncher},
    {file, "enable_prefix_caching", "false", "every context is prefilled anew"},
    {file, "enable_chunked_prefill", "false", "a context is prefilled in one piece"},
    {file, "data_parallel_size", "1", kOneGpu},
    {file, "pipeline_parallel_size", "1", kOneGpu},
    {file, "custom_voice_dir", "", kOther},
    // A stage: identity, wiring.
    {stage, "num_replicas", "1", kLauncher},
    {stage, "env", "", "set the variables of the command itself"},
    {stage, "runtime", "", "set devices in the stage itself"},
    {stage, "engine_args", "", "set the keys in the stage itself"},
    {stage, "engine_extras", "", "set the keys in the stage itself"},
    {stage, "model_config", "", "the checkpoint's own config.json is read"},
    {stage, "model_class_name", "", "set pipeline at the top of the file"},
    {stage, "async_chunk", "false", kWholeContexts},
    {stage, "output_connectors", "", "set input_connectors in the next stage"},
    {stage, "default_pooling_params", "", kOther},
    {stage, "subtalker_sampling_params", "", kOther},
    {stage, "silence_ban_frames", "0", kOther},
    // A stage: the text engine.
    {stage, "tensor_parallel_size", "1", kOneGpu},
    {stage, "data_parallel_size", "1", kOneGpu},
    {stage, "pipeline_parallel_size", "1", kOneGpu},
    {stage, "enable_expert_parallel", "false", kOneGpu},
    {stage, "distributed_executor_backend", "uni", kLauncher},
    {stage, "gpu_memory_utilization", "", kMemory},
    {stage, "max_num_seqs", "1", "one request runs at a time"},
    {stage, "max_num_batched_tokens", "", kMemory},
    {stage, "max_model_len", "", "the checkpoint's own limit holds"},
    {stage, "async_scheduling", "false", kWholeContexts},
    {stage, "disable_hybrid_kv_cache_manager", "", kMemory},
    {stage, "mm_processor_cache_gb", "0", kMemory},
    {stage, "mamba_ssm_cache_dtype", "", kOther},
    {stage, "compilation_config", "", kNoCompile},
    {stage, "profiler_config", "", "there is no profiler"},
    {stage, "skip_mm_profiling", "true|false", kMemory},
    {stage, "enable_flashinfer_autotune", "false", kOther},
    {stage, "config_format", "auto", kOther},
    {stage, "tokenizer_mode", "auto", kOther},
    {stage, "trust_remote_code", "true|false", kNoPython},
    {stage, "enable_prefix_caching", "false", "every context is prefilled anew"},
    {stage, "enable_chunked_prefill", "false", "a context is prefilled in one piece"},
    {stage, "model", "", kTopLevel},
    {stage, "device", "", kTopLevel},
    {stage, "dtype", "", kTopLevel},
    {stage, "quantization", "", kTopLevel},
    {stage, "kernels", "", kTopLevel},
    {stage, "load_format", "", kTopLevel},
    // A stage: several devices.
    {stage, "ulysses_mode", "strict", kOneGpu},
    {stage, "ulysses_a2a_permute", "false", kOneGpu},
    {stage, "allgather_degree", "1", kOneGpu},
    {stage, "sequence_parallel_size", "1", kOneGpu},
    {stage, "vae_patch_parallel_size", "1", kOneGpu},
    {stage, "vae_parallel_mode", "", kOneGpu},
    {stage, "text_encoder_tp_size", "1", kOneGpu},
    {stage, "use_hsdp", "false", kOneGpu},
    {stage, "hsdp_shard_size", "-1|1", kOneGpu},
    {stage, "hsdp_replicate_size", "1", kOneGpu},
    // A stage: the model.
    {stage, "diffusion_load_format", "default", "set load_format at the top of the file"},
    {stage, "lora_path", "", kNoLora},
    {stage, "lora_backend", "", kNoLora},
    {stage, "lora_scale", "", kNoLora},
    {stage, "diffusers_load_kwargs", "", kNoPython},
    {stage, "diffusers_call_kwargs", "", kNoPython},
    {stage, "diffusion_quantization_config", "none", kQuantization},
    {stage, "auxiliary_text_encoder", "", kOther},
    {stage, "enable_multithread_weight_load", "false", "files are mapped and read in order"},
    {stage, "num_weight_load_threads", "1", "files are mapped and read in order"},
    {stage, "enable_broadcast_weight_load", "false", kOneGpu},
    // A stage: attention, compilation, step caches.
    {stage, "diffusion_attention_backend", "", "diffusion_attention_config.default replaced it"},
    {stage, "fa_deterministic", "false", "there is no such switch"},
    {stage, "fastvideo_vsa_topk", "", kOther},
    {stage, "diffusion_kv_cache_dtype", "auto", kPlainCaches},
    {stage, "diffusion_kv_cache_skip_steps", "", kPlainCaches},
    {stage, "diffusion_kv_cache_skip_layers", "", kPlainCaches},
    {stage, "diffusion_compile_granularity", "", kNoCompile},
    {stage, "diffusion_compile_dynamic", "", kNoCompile},
    {stage, "cache_backend", "none", kNoCache},
    {stage, "cache_config", "", kNoCache},
    {stage, "enable_cache_dit_summary", "false", kNoCache},
    {stage, "step_execution", "false", kNoCache},
    // A stage: VAE, offloading, profiling.
    {stage, "vae_use_slicing", "false", kNotHere},
    {stage, "vae_use_tiling", "", "set vae_tiling"},
    {stage, "vae_fast_path", "off", kNotHere},
    {stage, "boundary_ratio", "", kNotHere},
    {stage, "flow_shift", "", "set extra_args.timestep_shift"},
    {stage, "video_output_transport", "", kNotHere},
    {stage, "max_generated_image_size", "", "the checkpoint's own limit holds"},
    {stage, "diffusion_offload_config", "", kOffload},
    {stage, "enable_cpu_offload", "false", kOffload},
    {stage, "enable_layerwise_offload", "false", kOffload},
    {stage, "enable_distributed_layerwise_offload", "false", kOffload},
    {stage, "enable_diffusion_pipeline_profiler", "false", "there is no profiler"},
    // default_sampling_params.
    {sampling, "num_frames", "1", kNotHere},
    {sampling, "fps", "", kNotHere},
    {sampling, "guidance_scale", "", kNotHere},
    {sampling, "guidance_scale_2", "", kNotHere},
    {sampling, "guidance_rescale", "0|0.0", kNotHere},
    {sampling, "true_cfg_scale", "", kNotHere},
    {sampling, "generator_device", "cpu", "noise is drawn on the CPU"},
    {sampling, "sigmas", "", "the schedule is num_inference_steps and timestep_shift"},
    {sampling, "boundary_ratio", "", kNotHere},
    {sampling, "strength", "", kNotHere},
    {sampling, "repetition_penalty", "1|1.0", kNotHere},
    {sampling, "detokenize", "true", "answers are text"},
    {extra_args, "cfg_scale", "", kNotHere},
    {extra_args, "do_sample", "", kNotHere},
    {extra_args, "text_temperature", "", kNotHere},
    // diffusion_attention_config.per_role.
    {attention_roles, "cross", "", kNotHere},
    {attention_roles, "joint", "", kNotHere},
});

}  // namespace

std::span<const RefusedKey> refused_keys() {
  return kRefused;
}

const RefusedKey* find_refused(std::span<const RefusedKey> keys, YamlMap map,
                               std::string_view key) {
  const auto found = std::ranges::find_if(
      keys, [&](const RefusedKey& each) { return each.map == map && each.key == key; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace diptych
