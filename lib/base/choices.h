// The closed choices of a run, with the names that users write and that records hold. They stand
// here because the settings, which know no torch, and the code that follows them share them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace diptych {

enum class LoadFormat { safetensors, dummy };

// Who says a message of a conversation.
enum class ChatRole { system, user, assistant, tool };
// automatic: bfloat16 on CUDA; on the CPU resolve_dtype() (lib/runtime) decides by the weights.
enum class DtypeChoice { automatic, float32, bfloat16 };

// Of the autoencoder. tf32: its weights and maps are float32, but products round their operands to
// 10 bits of fraction, as tensor cores do. A family has float32 and one of the others. automatic:
// float32 in runs that are float32; else bfloat16 in a family that has it, and tf32, on CUDA alone,
// in one that has that.
enum class VaeDtype { automatic, float32, tf32, bfloat16 };

// Of the decoder layers' projections. none: as the run's dtype. fp8: weights and rows as e4m3.
// int8: weights as int8, rows as they are.
enum class Quantization { none, fp8, int8 };

// There is no fallback from one to the other: on a CUDA device every call the product makes has a
// kernel, and one that has none throws InputError with the reason.
enum class KernelPolicy {
  automatic,  // kernels on CUDA, the reference on the CPU (which is the CPU's implementation)
  strict,     // kernels only: a tensor on the CPU is an InputError
  reference,  // plain ATen on every device
};

// Guidance branches in one forward, or one by one.
enum class CfgMode { batched, sequential };

enum class Renorm {
  global,        // one factor from the norms over all rows and columns
  channel,       // one factor a row
  text_channel,  // one factor a row, behind the first term of guidance (the text's)
  none,          // velocities as guidance makes them
};

// Solver and table of noise levels of a video model. Which of them a front end means by "UniPC" or
// "Euler" differs: their integer timesteps do, so the network sees something else.
enum class FlowSampler {
  unipc,            // UniPCMultistepScheduler of diffusers, use_flow_sigmas
  unipc_official,   // FlowUniPC as the Wan repository and vllm-omni set it up: shifted once
  unipc_fastvideo,  // FlowUniPC as FastVideo sets it up: its first level is shifted twice
  euler,            // FlowMatchEulerDiscreteScheduler of diffusers: every level is shifted twice
  euler_omni,       // WanEulerScheduler of vllm-omni: shifted once
  euler_karras,     // Cosmos-Predict2: levels of Karras et al. 2022 from 80 to 0.002
};

enum class StepCacheMode {
  none,
  taylorseer,  // extrapolates each branch's output from its differences (Liu et al. 2025,
               // arXiv:2503.06923), as the official BAGEL code does
  teacache,  // reuses the last output - input while the input has changed little (Liu et al. 2024,
             // arXiv:2411.19108); needs a calibration for the checkpoint
};

enum class OffloadWish { automatic, none, layers };  // layers: weights wait in host memory
enum class TilingWish { automatic, on, off };        // on: the autoencoder works in strips

// The way from the stage that reads to the one that paints, where they are apart. in_process: two
// devices of one process.
enum class Connector { automatic, in_process, shared_memory, c10d };

// A bar where stderr is a terminal, key=value lines, or JSON lines.
enum class ProgressStyle { automatic, none, kv, jsonl };

// The names of a choice, in the order of its values. An optional choice has one more name, for
// nothing.
template <typename Choice>
inline constexpr std::array<std::string_view, 0> kChoiceNames;
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<ChatRole> = {"system", "user",
                                                                           "assistant", "tool"};
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<LoadFormat> = {"safetensors",
                                                                             "dummy"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<DtypeChoice> = {"auto", "float32",
                                                                              "bfloat16"};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<VaeDtype> = {"auto", "float32",
                                                                           "tf32", "bfloat16"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<Quantization> = {"none", "fp8",
                                                                               "int8"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<KernelPolicy> = {
    "automatic", "strict", "reference"};
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<CfgMode> = {"batched", "sequential"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<std::optional<CfgMode>> = {
    kChoiceNames<CfgMode>[0], kChoiceNames<CfgMode>[1], "auto"};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<Renorm> = {"global", "channel",
                                                                         "text_channel", "none"};
template <>
inline constexpr std::array<std::string_view, 6> kChoiceNames<FlowSampler> = {
    "unipc", "unipc_official", "unipc_fastvideo", "euler", "euler_omni", "euler_karras"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<StepCacheMode> = {
    "none", "taylorseer", "teacache"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<OffloadWish> = {"auto", "none",
                                                                              "layers"};
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<TilingWish> = {"auto", "on", "off"};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<Connector> = {
    "auto", "in_process", "shared_memory", "c10d"};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<ProgressStyle> = {"auto", "none",
                                                                                "kv", "jsonl"};

template <typename Choice>
constexpr std::string_view name_of(Choice choice) {
  return kChoiceNames<Choice>.at(static_cast<std::size_t>(choice));
}

// Nothing for another name.
template <typename Choice>
constexpr std::optional<Choice> parse_choice(std::string_view name) {
  const auto& names = kChoiceNames<Choice>;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Choice>(found - names.begin());
}

// Where to compute. automatic: CUDA where a GPU is usable, else the CPU.
struct DeviceChoice {
  enum class Kind { automatic, cpu, cuda, numbered };
  Kind kind = Kind::automatic;
  int index = 0;  // of a numbered GPU
  bool operator==(const DeviceChoice&) const = default;
};
// "auto", "cpu", "cuda" or "cuda:N"; nothing for another name.
std::optional<DeviceChoice> parse_device(std::string_view name);
std::string device_name(const DeviceChoice& device);

}  // namespace diptych
