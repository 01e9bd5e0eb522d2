#include "lib/config/flag_hints.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych {
namespace {

// Of sd.cpp, llama.cpp, diffusers, ffmpeg and the models' own scripts.
constexpr FlagHint kHints[] = {
    {"--list-devices", "`diptych devices` lists them"},
    {"-t,--threads,--num-threads,--n-threads",
     "the variable OMP_NUM_THREADS sets the number of CPU threads"},
    {"-y,--overwrite,--force", "not needed: existing output files are replaced"},
    {"--init-img,--init-image",
     "-i FILE gives a picture, which an edit reads; no picture is used as the start of denoising"},
    {"--strength,--denoising-strength",
     "not supported: an edit reads the picture and paints a new one from noise; the prompt says "
     "what changes"},
    {"--mask,--mask-image,--mask-img",
     "not supported: there is no inpainting; the prompt of an edit says what changes where"},
    {"--sampling-method,--sample-method,--sample-solver,--scheduler",
     "use --sampler where the model has it; the others take Euler steps, which --steps and "
     "--timestep-shift set"},
    {"--lora-dir,--lora-model-dir,--lora-path,--lora-scale",
     "use --lora FILE:SCALE where the model has it; weights of the others are merged with it "
     "first"},
    {"--control-net,--controlnet,--control-image", "not supported: there is no ControlNet"},
    {"--vae-path,--taesd",
     "use --vae FILE where the model has it; the autoencoder of the others is the checkpoint's"},
    {"--clip-skip", "not supported: the text is read by the model itself"},
    {"--upscale-model,--upscale", "not supported: there is no upscaler"},
    {"--fp16,--half,--float16", "float16 is not supported; --dtype bfloat16 takes as much memory"},
    {"--bf16,--bfloat16", "use --dtype bfloat16"},
    {"--fp32,--float32", "use --dtype float32"},
    {"--fp8,--int8", "use --quantization fp8 or int8"},
    {"--type,--precision,--torch-dtype,--quantize", "use --dtype, or --quantization fp8 or int8"},
    {"--cpu", "use --device cpu"},
    {"--cuda,--gpu", "use --device cuda"},
    {"--offload-to-cpu,--cpu-offload,--offload-model,--enable-model-cpu-offload,--low-vram,--"
     "lowvram",
     "use --offload layers"},
    {"--n-gpu-layers,--gpu-layers", "--offload auto keeps on the GPU what fits"},
    {"--flash-attn,--diffusion-fa,--fa", "use --attention flash"},
    {"--rng",
     "use --noise-source where the model has it; noise of the others is drawn on the CPU, as "
     "torch.manual_seed does"},
    {"-M,--mode", "--task says what is made"},
    {"--min-p,--repeat-penalty,--repetition-penalty",
     "not supported; --temperature, --top-k and --top-p are"},
    {"--system-prompt",
     "use --system or --instruction for an answer, as the model has it; the others read the prompt "
     "alone"},
    {"--ctx-size", "not needed: the context is as long as the request"},
    {"--server,--host,--port,--listen",
     "not supported: there is no server; `diptych batch` keeps a "
     "model loaded for many requests"},
};

constexpr std::string_view kVideoFlags =
    "--frames,--num-frames,--frame-num,--video-frames,--fps,--video,--crf,--contact-sheet";
// Of other programs alone.
constexpr std::string_view kLengthFlags = "--duration,--video-length";

bool is_among(std::string_view flag, std::string_view flags) {
  while (!flags.empty()) {
    const std::size_t end = std::min(flags.find(','), flags.size());
    if (flags.substr(0, end) == flag) return true;
    flags.remove_prefix(std::min(end + 1, flags.size()));
  }
  return false;
}

// What the tasks of a family make, each kind once.
std::vector<std::string_view> kinds_of(const FamilyConfig& family) {
  std::vector<std::string_view> kinds;
  for (const Task& task : family.tasks) {
    const std::string_view kind = kind_name(task.makes);
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace

std::span<const FlagHint> flag_hints() {
  return kHints;
}

std::string flag_hint(std::string_view flag, std::span<const FamilyConfig* const> families) {
  const bool makes_videos = std::ranges::any_of(
      families, [](const FamilyConfig* family) { return family->makes(MediaKind::clip); });
  if (!makes_videos && (is_among(flag, kVideoFlags) || is_among(flag, kLengthFlags)))
    return families.empty() ? "" : who_makes(kVideos, families);
  if (is_among(flag, kLengthFlags))
    return "use --video-frames N; they last N seconds divided by --fps";
  const auto hint = std::ranges::find_if(
      kHints, [&](const FlagHint& each) { return is_among(flag, each.flags); });
  return hint == std::end(kHints) ? "" : std::string(hint->text);
}

std::string who_makes(std::string_view results, std::span<const FamilyConfig* const> families) {
  std::vector<std::string> makers, others;
  for (const FamilyConfig* family : families) {
    others.push_back(fmt::format("{}: {}", family->name, fmt::join(kinds_of(*family), " and ")));
    std::vector<std::string_view> tasks;
    for (const Task& task : family->tasks) {
      if (kind_name(task.makes) == results) tasks.push_back(task.name);
    }
    if (!tasks.empty())
      makers.push_back(fmt::format("{} (--task {})", family->name, fmt::join(tasks, " or ")));
  }
  if (!makers.empty()) return fmt::format("{} are made by {}", results, fmt::join(makers, ", "));
  return fmt::format("no model of this version makes {} ({})", results, fmt::join(others, "; "));
}

bool is_video_task(std::string_view task) {
  static constexpr std::array<std::string_view, 9> kTasks = {
      "t2v", "i2v", "ti2v", "v2v", "flf2v", "s2v", "vid_gen", "video", "video_edit"};
  return std::ranges::find(kTasks, task) != kTasks.end();
}

bool is_video_extension(std::string_view extension) {
  static constexpr std::array<std::string_view, 7> kExtensions = {".mp4", ".webm", ".mov", ".mkv",
                                                                  ".avi", ".m4v",  ".gif"};
  std::string lower(extension);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kExtensions, lower) != kExtensions.end();
}

}  // namespace diptych
