// The list itself. A new setting of every family is one entry here; run_config.h holds its default,
// or each family declares one.
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "lib/base/error.h"
#include "lib/config/fields.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

constexpr std::int64_t kMostPixels = 65'536;  // of a side in a PNG
constexpr std::int64_t kMostFrames = 100'000;
constexpr std::int64_t kMostSteps = 10'000;
constexpr std::int64_t kMostPictures = 100'000;
constexpr std::int64_t kMostTokens = 1'000'000;
constexpr std::int64_t kMostBranches = 3;
constexpr std::int64_t kMostRanks = 1'024;

// Members of Options as the functions that slots hold.
template <auto Member>
auto& run(Options& options) {
  return options.run.*Member;
}
template <auto Member>
auto& sampling(Options& options) {
  return options.run.sampling.*Member;
}
template <auto Member>
auto& text(Options& options) {
  return options.run.text.*Member;
}
template <auto Member>
auto& degree(Options& options) {
  return options.run.parallel.*Member;
}
template <auto Stage, auto Member>
auto& stage(Options& options) {
  return options.run.*Stage.*Member;
}
template <auto Member>
auto& enhance(Options& options) {
  return options.enhance.*Member;
}
template <auto Member>
auto& front(Options& options) {
  return options.*Member;
}

template <typename Enum>
std::size_t place_of(Enum value) {
  return static_cast<std::size_t>(value);
}
template <typename Enum>
std::size_t place_of(const std::optional<Enum>& value) {
  return value ? static_cast<std::size_t>(*value) : kChoiceNames<Enum>.size();
}
template <typename Enum>
void set_place(Enum& value, std::size_t place) {
  value = static_cast<Enum>(place);
}
template <typename Enum>
void set_place(std::optional<Enum>& value, std::size_t place) {
  value =
      place < kChoiceNames<Enum>.size() ? std::optional(static_cast<Enum>(place)) : std::nullopt;
}
template <auto Member>  // such as run<&RunConfig::kernels>
constexpr ChoiceSlot choice(std::span<const OtherName> other_names = {}) {
  using Choice = std::remove_reference_t<decltype(Member(std::declval<Options&>()))>;
  return {[](Options& options) { return place_of(Member(options)); },
          [](Options& options, std::size_t place) { set_place(Member(options), place); },
          kChoiceNames<Choice>, other_names};
}

// Of the format that the output's name or --format says.
std::optional<NamedRange> range_of_crf(const Options& options) {
  std::optional<ClipFormat> format = clip_format(options.format);
  if (!format) format = clip_format_of_name(options.output);
  const auto crf = format ? facts_of(*format).crf : std::nullopt;
  if (!crf) return std::nullopt;
  return NamedRange{crf->min, crf->max, facts_of(*format).name};
}

std::optional<NamedRange> no_other_range(const Options&) {
  return std::nullopt;
}

constexpr std::string_view kNoFloat16 =
    "is not supported: the released weights are bfloat16, whose range float16 does not have; "
    "expected bfloat16, which takes as much memory";
constexpr OtherName kOtherDtypes[] = {{"bf16", "bfloat16"},        {"fp32", "float32"},
                                      {"f32", "float32"},          {"fp16", {}, kNoFloat16},
                                      {"float16", {}, kNoFloat16}, {"half", {}, kNoFloat16}};

using R = RunConfig;
using S = SamplingConfig;
using T = TextConfig;
using A = StageAttention;
using P = ParallelConfig;
using E = EnhanceConfig;
using enum Scope;

constinit const auto kFields = std::to_array<Field>({
    {"config", command, "-c,--config", "FILE", "stage config; without -c and -m the demo runs",
     PathSlot{front<&Options::config>}},
    {"pipeline", command, "", "", "model family", TextSlot{run<&R::pipeline>}, YamlPlace::top,
     "pipeline"},
    // The tasks are the families' (task_help()).
    {"task", request, "--task", "TASK", "what is asked for", TaskSlot{run<&R::task>}},
    {"model", session, "-m,--model", "DIR", "checkpoint folder",
     PathSlot{run<&R::model>, PathKind::checkpoint}, YamlPlace::top, "model",
     "--checkpoint,--ckpt,--ckpt-dir,--model-path"},
    // Set by --prompt, --image and --video, whose order is kept.
    {"inputs", request, "", "", "texts, pictures and videos in their order",
     InputsSlot{run<&R::inputs>}},
    {"negative_prompt", picture, "-n,--negative-prompt", "TEXT",
     "text that guidance leads away from; the flag and its variable read @FILE from a file",
     TextSlot{run<&R::negative_prompt>}, YamlPlace::painting,
     "default_sampling_params.extra_args.negative_prompt", "--negative,--neg-prompt"},
    {"enhance_prompt", enhancing, "--enhance-prompt", "",
     "let the enhancer rewrite the prompt before it is painted; the record keeps both",
     BoolSlot{enhance<&E::on>}, YamlPlace::enhancing,
     "default_sampling_params.extra_args.enhance_prompt"},
    {"enhancer", enhancing, "--enhancer", "DIR",
     "checkpoint folder of the language model that rewrites prompts, such as Qwen3-8B",
     PathSlot{enhance<&E::model>, PathKind::checkpoint}, YamlPlace::enhancing, "model"},
    {"enhancer_drafter", enhancing, "--enhancer-drafter", "DIR",
     "folder of a drafter for the enhancer, with which it writes the same text faster",
     PathSlot{enhance<&E::drafter>, PathKind::checkpoint}, YamlPlace::enhancing, "draft_model"},
    {"enhance_instructions", enhancing, "--enhance-instructions", "FILE",
     "text file with what the enhancer is told instead of the texts that --print-config shows",
     PathSlot{enhance<&E::instructions>}, YamlPlace::enhancing,
     "default_sampling_params.extra_args.instructions"},
    {"enhance_picture_instructions", enhancing, "", "",
     "what the enhancer is told where a picture is painted",
     TextSlot{enhance<&E::picture_instructions>}, YamlPlace::enhancing,
     "default_sampling_params.extra_args.picture_instructions"},
    {"enhance_clip_instructions", enhancing, "", "",
     "what the enhancer is told where a video is made", TextSlot{enhance<&E::clip_instructions>},
     YamlPlace::enhancing, "default_sampling_params.extra_args.clip_instructions"},
    {"enhance_max_tokens", enhancing, "--enhance-max-tokens", "N",
     "most tokens of a rewritten prompt", WholeSlot{enhance<&E::max_tokens>, 1, kMostTokens},
     YamlPlace::enhancing, "default_sampling_params.max_tokens"},
    {"output",
     output,
     "-o,--output",
     "FILE",
     "a .png, .jpg or .webp, of a video a .mp4, .webm, .gif, .webp or .frames (a folder of PNG "
     "files), replaced if it exists; a pattern such as pic-%03d.png, a folder for 0000.png, ..., "
     "or "
     "- for stdout; for an answer a .txt instead of stdout, or a .json, which has its record, too",
     PathSlot{front<&Options::output>},
     YamlPlace::none,
     {},
     "--outfile,--save-file"},
    {"format", encoding, "--format", "auto|png|jpg|webp|mp4|webm|gif|json",
     "format of results without a name: on stdout, in a folder; auto: png, of a video mp4, of an "
     "answer its text alone; png of a video is a folder of frames; json: of an answer, with its "
     "record",
     choice<front<&Options::format>>()},
    {"quality", encoding, "--quality", "N",
     "quality of a .jpg or .webp, 1 to 100; 100 is lossless for .webp",
     WholeSlot{front<&Options::quality>, 1, 100}},
    {"crf", encoding, "--crf", "N",
     "constant rate factor of a .mp4 (1 to 51) or .webm (0 to 63): smaller is better and larger; "
     "auto: 18 and 24",
     FreeWholeSlot{front<&Options::crf>, 0, 63, range_of_crf}},
    {"contact_sheet", output, "--contact-sheet", "FILE",
     "also write frames of a video side by side to this .png",
     PathSlot{front<&Options::contact_sheet>}},
    {"think", generation, "--think", "", "write a plan first, for a picture or before an answer",
     BoolSlot{run<&R::think>}, YamlPlace::painting, "default_sampling_params.extra_args.think"},
    {"think_output", output, "--think-output", "FILE",
     "also write the plan of a picture to this .txt", PathSlot{front<&Options::think_output>}},
    {"max_think_tokens", generation, "--max-think-tokens", "N",
     "most tokens of a plan, or of an answer with its thoughts",
     WholeSlot{text<&T::max_think_tokens>, 1, kMostTokens}, YamlPlace::painting,
     "default_sampling_params.extra_args.max_think_tokens"},
    {"max_tokens", answer, "--max-tokens", "N",
     "most tokens of an answer, counting the one that begins it",
     WholeSlot{text<&T::max_tokens>, 1, kMostTokens}, YamlPlace::reading,
     "default_sampling_params.max_tokens", "--max-new-tokens,--n-predict"},
    {"temperature", generation, "--temperature", "X",
     "randomness of written text; 0: always the likeliest token",
     RealSlot{text<&T::temperature>, 0, true, 100}, YamlPlace::reading,
     "default_sampling_params.temperature", "--temp"},
    {"top_k", generation, "--top-k", "N",
     "choose written text from the N likeliest tokens; 0: from all",
     WholeSlot{text<&T::top_k>, 0, kMostTokens}, YamlPlace::reading,
     "default_sampling_params.top_k"},
    {"top_p", generation, "--top-p", "X",
     "choose written text from the likeliest tokens that together have this probability",
     RealSlot{text<&T::top_p>, 0, false, 1}, YamlPlace::reading, "default_sampling_params.top_p"},
    {"width", picture, "-W,--width", "N", "width in pixels",
     WholeSlot{sampling<&S::width>, 1, kMostPixels, true}, YamlPlace::painting,
     "default_sampling_params.width"},
    {"height", picture, "-H,--height", "N", "height in pixels",
     WholeSlot{sampling<&S::height>, 1, kMostPixels, true}, YamlPlace::painting,
     "default_sampling_params.height"},
    {"video_frames", picture, "--video-frames", "N", "frames of a video",
     WholeSlot{sampling<&S::frames>, 1, kMostFrames}, YamlPlace::painting,
     "default_sampling_params.num_frames", "--num-frames,--frames,--frame-num"},
    {"fps", picture, "--fps", "X",
     "frames a second of a video, such as 24 or 30000/1001; auto: the model's",
     FrameRateSlot{sampling<&S::fps>}, YamlPlace::painting, "default_sampling_params.fps"},
    {"seed", generation, "-s,--seed", "N",
     "seed of the first picture; the next ones count up; random or -1 draws one, which the record "
     "keeps",
     SeedSlot{sampling<&S::seed>, sampling<&S::seed_drawn>}, YamlPlace::painting,
     "default_sampling_params.seed"},
    {"batch_count", request, "-b,--batch-count", "N", "number of pictures",
     WholeSlot{sampling<&S::batch_count>, 1, kMostPictures}, YamlPlace::painting,
     "default_sampling_params.num_outputs_per_prompt",
     "--n-images,--num-images,--num-images-per-prompt,--num-outputs"},
    {"steps", painting, "--steps", "N", "timesteps", WholeSlot{sampling<&S::steps>, 1, kMostSteps},
     YamlPlace::painting, "default_sampling_params.num_inference_steps",
     "--num-inference-steps,--num-steps,--num-timesteps,--sample-steps,--sampling-steps"},
    {"cfg_text_scale", painting, "--cfg-scale,--cfg-text-scale", "X",
     "text guidance; 1 or less is off", RealSlot{sampling<&S::cfg_text_scale>, 0, true},
     YamlPlace::painting, "default_sampling_params.extra_args.cfg_text_scale",
     "--cfg,--guidance-scale"},
    {"cfg_img_scale", painting, "--cfg-img-scale", "X", "image guidance; 1 or less is off",
     RealSlot{sampling<&S::cfg_img_scale>, 0, true}, YamlPlace::painting,
     "default_sampling_params.extra_args.cfg_img_scale", "--img-cfg-scale,--image-guidance-scale"},
    {"cfg_interval", guidance, "--cfg-interval", "LO,HI",
     "guidance where LO < t <= HI; t runs from 1 to 0",
     IntervalSlot{sampling<&S::cfg_interval_low>, sampling<&S::cfg_interval_high>},
     YamlPlace::painting, "default_sampling_params.extra_args.cfg_interval"},
    {"cfg_renorm_type", guidance, "--cfg-renorm-type", "global|channel|text_channel|none",
     "norm that guidance keeps", choice<sampling<&S::cfg_renorm_type>>(), YamlPlace::painting,
     "default_sampling_params.extra_args.cfg_renorm_type"},
    {"cfg_renorm_min", guidance, "--cfg-renorm-min", "X",
     "smallest factor of the renorm; 1 switches it off",
     RealSlot{sampling<&S::cfg_renorm_min>, 0, true, 1}, YamlPlace::painting,
     "default_sampling_params.extra_args.cfg_renorm_min"},
    {"timestep_shift", painting, "--timestep-shift,--flow-shift", "X",
     "above 1: more of the steps near noise", RealSlot{sampling<&S::timestep_shift>, 0, false},
     YamlPlace::painting, "default_sampling_params.extra_args.timestep_shift",
     "--shift,--sample-shift"},
    {"cfg_mode", guidance, "--cfg-mode", "batched|sequential|auto",
     "run the guidance branches in one forward (batched) or one by one; auto measures which is "
     "faster, and may choose differently on another machine",
     choice<run<&R::cfg_mode>>(), YamlPlace::painting, "cfg_mode"},
    {"read_attention", session, "", "", "attention of the stage that reads",
     AttentionSlot{stage<&R::read_attention, &A::default_backend>, false}, YamlPlace::reading,
     "diffusion_attention_config.default"},
    {"read_attention_self", session, "", "", "self-attention of that stage, if different",
     AttentionSlot{stage<&R::read_attention, &A::self>, true}, YamlPlace::reading,
     "diffusion_attention_config.per_role.self"},
    {"paint_attention", session, "", "", "attention of the stage that paints",
     AttentionSlot{stage<&R::paint_attention, &A::default_backend>, false}, YamlPlace::painting,
     "diffusion_attention_config.default"},
    {"paint_attention_self", session, "", "", "self-attention of that stage, if different",
     AttentionSlot{stage<&R::paint_attention, &A::self>, true}, YamlPlace::painting,
     "diffusion_attention_config.per_role.self"},
    {"kernels", session, "--kernels", "automatic|strict|reference",
     "automatic: own kernels where they serve; strict: an error where one does not; reference: "
     "none of them",
     choice<run<&R::kernels>>(), YamlPlace::top, "kernels"},
    {"device", session, "--device", "auto|cpu|cuda|cuda:N", "where to compute; gpu is cuda",
     DeviceSlot{run<&R::device>}, YamlPlace::top, "device"},
    {"read_device", parallel, "--read-device", "same|auto|cpu|cuda|cuda:N",
     "where to read what is painted: texts, pictures and plans; another device than same has a "
     "model "
     "of its own and reads ahead (batch)",
     FreeDeviceSlot{run<&R::read_device>}, YamlPlace::none},
    {"connector", parallel, "--connector", "auto|in_process|shared_memory|c10d",
     "with --read-device: how the caches come to the device that paints; auto: in_process, or of "
     "two "
     "processes shared_memory on one host, else c10d",
     choice<run<&R::connector>>(), YamlPlace::none},
    {"dtype", session, "--dtype", "auto|float32|bfloat16",
     "auto: bfloat16 on CUDA; on the CPU float32, but bfloat16 where 1 GiB or more of weights are "
     "stored so and the CPU has AVX512-BF16 or AMX-BF16; also bf16, fp32",
     choice<run<&R::dtype>>(kOtherDtypes), YamlPlace::top, "dtype"},
    {"quantization", session, "--quantization", "none|fp8|int8",
     "quantise the projections of the decoder layers while loading: less memory, a different "
     "picture; fp8 needs a GPU of compute capability 8.9 or newer, or the CPU",
     choice<run<&R::quantization>>(), YamlPlace::top, "quantization"},
    {"tuned_config_dir", session, "--tuned-config-dir", "DIR",
     "folder with the table that `diptych tune` measured on this GPU; default: the built-in tables",
     PathSlot{run<&R::tuned_config_dir>, PathKind::tuning}},
    {"load_format", session, "--load-format", "safetensors|dummy",
     "dummy: random weights in the sizes of the checkpoint or, without one, of the released model",
     choice<run<&R::load_format>>(), YamlPlace::top, "load_format"},
    {"cfg_parallel_size", parallel, "--cfg-parallel-size", "auto|N",
     "of the processes that torchrun, mpirun or srun started: into how many parts they divide the "
     "guidance branches",
     FreeWholeSlot{degree<&P::cfg>, 1, kMostBranches, no_other_range}, YamlPlace::painting,
     "cfg_parallel_size"},
    {"ulysses_degree", parallel, "--ulysses-degree", "auto|N",
     "likewise, the rows of a picture or video and the heads of attention (Ulysses)",
     FreeWholeSlot{degree<&P::ulysses>, 1, kMostRanks, no_other_range}, YamlPlace::painting,
     "ulysses_degree"},
    {"ring_degree", parallel, "--ring-degree", "auto|N",
     "likewise, the rows, all of whose keys and values each process gets for attention",
     FreeWholeSlot{degree<&P::ring>, 1, kMostRanks, no_other_range}, YamlPlace::painting,
     "ring_degree"},
    {"enforce_eager", painting, "--enforce-eager", "",
     "launch every operation of a denoise step, or of written tokens where nothing is painted, "
     "instead of CUDA graphs; the "
     "same result, for comparison",
     BoolSlot{run<&R::enforce_eager>}, YamlPlace::painting, "enforce_eager"},
    {"read_enforce_eager", generation, "", "",
     "launch every operation of a token of written text instead of one CUDA graph",
     BoolSlot{run<&R::read_enforce_eager>}, YamlPlace::reading, "enforce_eager"},
    {"cache_mode", step_cache, "--cache-mode", "none|taylorseer|teacache",
     "predict some steps instead of computing them; teacache needs coefficients: published ones, "
     "or "
     "those of `diptych calibrate`",
     choice<run<&R::cache_mode>>(), YamlPlace::painting, "cache_mode"},
    {"cache_threshold", step_cache, "--cache-threshold", "X",
     "teacache: the estimated change at which a step is computed; larger is faster",
     RealSlot{run<&R::cache_threshold>, 0, false}, YamlPlace::painting, "cache_threshold"},
    {"cache_calibration", step_cache, "--cache-calibration", "FILE",
     "teacache: the file that `diptych calibrate` wrote; default: the one in the checkpoint "
     "folder, "
     "unless coefficients are published",
     PathSlot{run<&R::cache_calibration>}, YamlPlace::painting, "cache_calibration"},
    {"cache_report", report, "--cache-report", "",
     "with --cache-mode: also paint without the cache, and log how far apart the pictures are and "
     "how much slower that is",
     BoolSlot{run<&R::cache_report>}, YamlPlace::painting, "cache_report"},
    {"offload", session, "--offload", "auto|none|layers",
     "layers: keep weights in host memory and copy them to the GPU layer by layer; auto: only if "
     "they do not fit",
     choice<run<&R::offload>>(), YamlPlace::top, "offload"},
    {"vae_dtype", session, "--vae-dtype", "auto|float32|tf32|bfloat16",
     "precision of the autoencoder, of which a family takes some: tf32 needs a GPU, is faster than "
     "float32 and keeps near it; auto: the family's choice; float32 where --dtype is",
     choice<run<&R::vae_dtype>>(), YamlPlace::painting, "vae_dtype"},
    {"vae_tiling", painting, "--vae-tiling", "auto|on|off",
     "run the autoencoder in parts: less memory; in strips of rows the same picture except for "
     "rounding, in the tiles of some models a little changed; auto: only if needed",
     choice<run<&R::vae_tiling>>(), YamlPlace::painting, "vae_tiling"},
    {"max_vram", command, "--max-vram", "GIB",
     "most GPU memory that the run may take; 0: what is free", RealSlot{run<&R::max_vram>, 0, true},
     YamlPlace::top, "max_vram"},
    {"noise", start, "--noise", "FILE",
     "safetensors file with the start noise, instead of the noise of the seed",
     PathSlot{run<&R::noise>}},
    {"trace",
     output,
     "--trace",
     "FILE",
     "write the tensors of the run to this .safetensors file, or to trace.safetensors in this "
     "folder, which is made where it is missing",
     PathSlot{run<&R::trace>},
     YamlPlace::none,
     {},
     "--dump-dir"},
    {"trace_filter", output, "--trace-filter", "GLOB",
     "write only the tensors whose names match; may be repeated",
     TextListSlot{run<&R::trace_filter>}},
    {"progress", display, "--progress", "auto|none|kv|jsonl",
     "auto: a bar on a terminal; kv and jsonl: lines for programs; all on stderr",
     choice<front<&Options::progress>>()},
});

using Texts = std::vector<std::pair<std::string_view, std::string>>;

Texts expand_size(const std::string& text, const Subject& where) {
  const bool is_side = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (is_side) return {{"width", text}, {"height", text}};
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos || cross == 0 || cross + 1 == text.size()) {
    throw where.error("{} is not a size; expected WIDTHxHEIGHT, such as 1024x768", in_quotes(text));
  }
  return {{"width", text.substr(0, cross)}, {"height", text.substr(cross + 1)}};
}

Texts expand_attention(const std::string& text, const Subject& where) {
  const std::string name = attention_name(text, where);
  return {{"read_attention", name},
          {"read_attention_self", ""},
          {"paint_attention", name},
          {"paint_attention_self", ""}};
}

constinit const auto kGroups = std::to_array<FlagGroup>({
    {"--size", picture, "WxH", "width and height in one; 512 is 512x512", expand_size,
     "--resolution,--image-size"},
    {"--attention", session, "auto|math|sdpa|flash|cudnn|hopper",
     "attention backend of both stages; also from DIFFUSION_ATTENTION_BACKEND", expand_attention,
     "--attention-backend"},
});

}  // namespace

std::span<const Field> all_fields() {
  return kFields;
}

std::span<const FlagGroup> all_flag_groups() {
  return kGroups;
}

}  // namespace diptych
