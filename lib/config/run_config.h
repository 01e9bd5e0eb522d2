// Everything one `generate` needs, resolved from flags, environment, stage config and defaults.
// The defaults that hold for every family stand here. What depends on the model (sizes, steps,
// lengths of texts, guidance) is switched off or 0 here: its defaults are the family's and its
// tasks' (family_config.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/base/frame_rate.h"
#include "lib/config/family_settings.h"

namespace diptych {

struct FamilyConfig;
class Ranks;     // lib/runtime/ranks.h
class StageEnd;  // lib/runtime/handoff.h

// What a task makes, and what it reads.
enum class MediaKind { picture, clip, text };
// "pictures", "videos" or "texts", as messages have it.
std::string_view kind_name(MediaKind kind);
// "image", "video" or "prompt": the flag of an input, without its dashes.
std::string_view input_name(MediaKind kind);
std::optional<MediaKind> kind_of_input(std::string_view name);  // nothing for another name

// How a stage of a stage config attends.
struct StageAttention {
  std::string default_backend = "auto";  // diffusion_attention_config.default
  std::string self;                      // diffusion_attention_config.per_role.self, "" = default
};

struct SamplingConfig {
  std::int64_t width = 0, height = 0;  // pixels
  bool size_of_input = false;          // instead: the last input's, as it is read
  std::int64_t frames = 0;             // of a clip
  bool frames_of_input = false;        // instead: those that are taken from the input clip
  std::optional<FrameRate> fps;        // of a clip; nullopt: the input clip's or the family's
  std::int64_t steps = 0;              // timesteps
  double cfg_text_scale = 1.0, cfg_img_scale = 1.0;        // 1: no guidance
  double cfg_interval_low = 0.0, cfg_interval_high = 1.0;  // guidance where low < t <= high
  Renorm cfg_renorm_type = Renorm::global;
  double cfg_renorm_min = 0.0;
  double timestep_shift = 1.0;  // 1: even steps
  std::uint64_t seed = 42;
  bool seed_drawn = false;       // `random` was asked for, and gave `seed`
  std::int64_t batch_count = 1;  // results, with seeds seed, seed + 1, ...
};

// Text that the model writes: answers, and the plan of think mode.
struct TextConfig {
  std::int64_t max_tokens = 0;        // of an answer
  std::int64_t max_think_tokens = 0;  // of a plan, or of an answer with its thoughts
  double temperature = 0;             // 0: the likeliest token, always
  std::int64_t top_k = 0;             // 0: all
  double top_p = 1;
};

// TeaCache's calibration beside a checkpoint, where nothing else is said.
inline constexpr const char* kCalibrationName = "diptych_teacache.json";

// What the model reads, in the user's order: a text, or the file of a picture or of a clip.
struct InputItem {
  std::string text;
  std::filesystem::path image;                                           // "" = no picture
  std::filesystem::path video = {};                                      // "" = no clip
  std::filesystem::path text_file = {};                                  // that held the text
  static InputItem of_file(MediaKind kind, std::filesystem::path file);  // a picture or a clip
  bool is_image() const { return !image.empty(); }
  bool is_video() const { return !video.empty(); }
  bool is_text() const { return !is_image() && !is_video(); }
  MediaKind kind() const;
  const std::filesystem::path& file() const { return is_video() ? video : image; }  // "": a text
  bool operator==(const InputItem&) const = default;
};

// How many files of each kind a request reads.
struct InputCounts {
  std::int64_t pictures = 0, clips = 0;
};

// Into how many parts processes that share a request divide it; nullopt: as it fits their number.
struct ParallelConfig {
  std::optional<std::int64_t> cfg;      // guidance branches
  std::optional<std::int64_t> ulysses;  // rows, and heads of attention
  std::optional<std::int64_t> ring;     // rows, and keys and values of attention
  // RunConfig::cfg_mode as it was asked for: branches that are divided run one by one.
  std::optional<CfgMode> whole_cfg_mode = CfgMode::batched;
};

// A task that follows from the inputs and the name of the output.
inline constexpr std::string_view kAnyTask = "auto";

// What somebody said in a conversation.
struct ChatTurn {
  ChatRole role = ChatRole::user;
  std::string text;
};

struct RunConfig {
  const FamilyConfig* family = nullptr;  // whose fields, tasks and limits hold
  std::string pipeline;                  // its name, as it was asked for
  std::string task{kAnyTask};            // of the family; resolve() settles it
  MediaKind makes = MediaKind::picture;  // that task
  FamilySettings own;                    // of the family
  std::filesystem::path model;           // checkpoint folder; may be empty with load_format dummy
  LoadFormat load_format = LoadFormat::safetensors;
  DeviceChoice device;
  // Of the stage that reads, which then has a model of its own; none: it shares the one of
  // `device`.
  std::optional<DeviceChoice> read_device;
  Connector connector = Connector::automatic;
  DtypeChoice dtype = DtypeChoice::automatic;
  Quantization quantization = Quantization::none;
  KernelPolicy kernels = KernelPolicy::automatic;
  std::optional<CfgMode> cfg_mode = CfgMode::batched;  // nullopt: the faster one, measured
  std::filesystem::path tuned_config_dir;  // of `diptych tune`'s files, "" = the built-in ones
  bool enforce_eager = false;              // no CUDA graph of a denoise step
  bool read_enforce_eager = false;         // nor, where texts are written, of a token's
  StepCacheMode cache_mode = StepCacheMode::none;  // of steps that are predicted
  double cache_threshold = 0.2;             // teacache: the estimated change that is let pass
  std::filesystem::path cache_calibration;  // teacache's, "" = kCalibrationName of the model
  bool cache_report = false;                // paint without the cache, too, and tell the difference
  OffloadWish offload = OffloadWish::automatic;
  // Weights may be read before it is planned what for; no field sets it. Whoever opens a session
  // and runs it at once says so.
  bool load_ahead = false;
  VaeDtype vae_dtype = VaeDtype::automatic;
  TilingWish vae_tiling = TilingWish::automatic;
  double max_vram = 0;  // GiB of the GPU that the run may take, 0 = what is free
  StageAttention read_attention, paint_attention;
  ParallelConfig parallel;
  std::shared_ptr<Ranks> ranks;  // that share the requests of this run; null: this process alone
  std::shared_ptr<StageEnd> stage_end;  // of the one stage that this model is; null: it is both
  SamplingConfig sampling;
  TextConfig text;
  std::vector<InputItem> inputs;
  std::vector<ChatTurn> history;        // of a conversation, before the inputs; no field sets it
  std::string negative_prompt;          // what text guidance leads away from, "" = nothing
  std::filesystem::path negative_file;  // that held it
  bool think = false;
  std::filesystem::path noise;            // initial noise instead of the seed's
  std::filesystem::path trace;            // safetensors, "" = off
  std::vector<std::string> trace_filter;  // globs

  bool answers() const { return makes == MediaKind::text; }  // neither pictures nor clips
  InputCounts input_counts() const;
  bool reads_images() const { return std::ranges::any_of(inputs, &InputItem::is_image); }
  bool reads_videos() const { return std::ranges::any_of(inputs, &InputItem::is_video); }
  bool reads_texts() const { return std::ranges::any_of(inputs, &InputItem::is_text); }
  std::string prompt() const;  // the texts, one a line
};

}  // namespace diptych
