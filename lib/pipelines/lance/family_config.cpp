// The defaults are those of the official script and of its README's examples (bytedance/Lance
// @4baeee0, inference_lance.sh).
#include "lib/pipelines/lance/family_config.h"

#include <type_traits>

#include "lib/base/json_file.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/pipelines/lance/settings.h"
#include "lib/pipelines/lance/sizes.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The root config.json only describes the folder, and an older download has none.
bool owns(const fs::path& folder) {
  const auto holds = [&](const char* part) {
    return fs::exists(folder / part / "llm_config.json");
  };
  if (holds("Lance_3B") || holds("Lance_3B_Video")) return true;
  if (!fs::exists(folder / "config.json")) return false;
  const auto json = read_json_object(folder / "config.json");
  const auto name = json.find("model_name");
  return name != json.end() && *name == "Lance";
}

constexpr FieldDefault kClipFromText[] = {
    {"width", "848"}, {"height", "480"}, {"resolution", "video_480p"}};
constexpr FieldDefault kClipFromPicture[] = {{"resolution", "video_480p"}, {"video_frames", "61"}};
constexpr TaskIdle kReadsNone[] = {{"resolution", "is of what is read; expected --size"}};
constexpr FieldDefault kOfClips[] = {{"resolution", "video_480p"}};

std::vector<Task> tasks() {
  return {
      {.name = "t2i", .help = "paint from text", .idle = kReadsNone},
      {.name = "image_edit",
       .help = "edit a picture",
       .reads = {.pictures = kOne},
       .size_of_input = true,
       .sampling_key = "image_edit_sampling_params",
       .results = "edits"},
      {.name = "video_edit",
       .help = "edit a video",
       .reads = {.clips = kOne},
       .makes = MediaKind::clip,
       .defaults = kOfClips,
       .size_of_input = true,
       .frames_of_input = true,
       .sampling_key = "video_edit_sampling_params",
       .results = "edited videos"},
      {.name = "t2v",
       .help = "make a video from text",
       .makes = MediaKind::clip,
       .defaults = kClipFromText,
       .sampling_key = "t2v_sampling_params",
       .results = "videos from text",
       .idle = kReadsNone},
      {.name = "i2v",
       .help = "make a video that begins with a picture",
       .reads = {.pictures = kOne},
       .makes = MediaKind::clip,
       .defaults = kClipFromPicture,
       .size_of_input = true,
       .sampling_key = "i2v_sampling_params",
       .results = "videos from a picture"},
      {.name = "x2t_image",
       .help = "answer about a picture",
       .reads = {.pictures = kOne},
       .makes = MediaKind::text},
      {.name = "x2t_video",
       .help = "answer about a video",
       .reads = {.clips = kOne},
       .makes = MediaKind::text,
       .defaults = kOfClips,
       .results = "answers about a video"},
  };
}

std::vector<FieldDefault> defaults() {
  return {{"max_tokens", "256"},
          {"width", "768"},
          {"height", "768"},
          {"video_frames", "121"},
          {"steps", "30"},
          {"cfg_text_scale", "4"},
          {"cfg_interval", "0.4,1"},
          {"cfg_renorm_type", "global"},
          {"cfg_renorm_min", "0"},
          {"timestep_shift", "3.5"},
          {"resolution", "image_768res"}};
}

std::vector<FieldLimit> limits() {
  constexpr std::int64_t kRow = 16;  // pixels of a latent row
  constexpr std::string_view kSide = ", a multiple of 16; an edit has the size of its last input";
  return {{.field = "width", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "height", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "video_frames",
           .high = kMaxLanceFrames,
           .help = ", at most 121; one more than a multiple of 4, else the next lower such number"},
          {.field = "steps", .help = "; as many updates"}};
}

LanceSettings& own(Options& options) {
  return options.run.own.get<LanceSettings>();
}

// A choice among LanceSettings.
template <auto Member>
constexpr ChoiceSlot choice() {
  using Choice = std::remove_reference_t<decltype(std::declval<LanceSettings>().*Member)>;
  return {[](Options& options) { return static_cast<std::size_t>(own(options).*Member); },
          [](Options& options, std::size_t place) {
            own(options).*Member = static_cast<Choice>(place);
          },
          kChoiceNames<Choice>};
}

constexpr auto kFields = std::to_array<Field>({
    {"resolution", Scope::generation, "--resolution",
     "video_96p|video_192p|image_256res|image_512res|image_768res|video_360p|video_480p",
     "how large the pictures and videos are that are read, and what is made of them",
     choice<&LanceSettings::resolution>(), YamlPlace::painting,
     "default_sampling_params.extra_args.resolution"},
    {"noise_source", Scope::generation, "--noise-source", "auto|cpu|cuda",
     "whose generator draws the noise of a seed; cuda: in bfloat16, as the official code on a GPU; "
     "auto: that of the device in use",
     choice<&LanceSettings::noise_source>(), YamlPlace::painting,
     "default_sampling_params.extra_args.noise_source"},
    {"instruction", Scope::answer, "--instruction", "TEXT",
     "system text of an answer; default: that of the official examples",
     TextSlot{[](Options& options) -> std::string& { return own(options).instruction; }},
     YamlPlace::reading, "default_sampling_params.extra_args.instruction"},
});

DraftSettings& drafting(Options& options) {
  return own(options);
}

std::vector<Field> own_fields() {
  std::vector<Field> fields(kFields.begin(), kFields.end());
  for (const Field& field : draft_fields<drafting>()) fields.push_back(field);
  return fields;
}

std::vector<OwnIdle> idle(const Options& options) {
  return idle_drafts(options.run);
}

// This family's reasons for keys that lib/config/stage_config_known.cpp has, with their values that
// are allowed all the same.
std::vector<RefusedKey> refused_keys_of_lance() {
  using enum YamlMap;
  constexpr std::string_view kOneWay = "clips are decoded chunk by chunk, there is no other way";
  constexpr std::string_view kScale = "set extra_args.cfg_text_scale";
  constexpr std::string_view kSelf = "the layers have self-attention only";
  return {
      {stage, "vae_use_slicing", "", kOneWay},
      {stage, "vae_fast_path", "", kOneWay},
      {sampling, "guidance_scale", "", kScale},
      {sampling, "guidance_scale_2", "", kScale},
      {sampling, "guidance_rescale", "", kScale},
      {sampling, "true_cfg_scale", "", kScale},
      {sampling, "generator_device", "", "set extra_args.noise_source"},
      {sampling, "strength", "", "edits have no start picture; the model reads the input instead"},
      {sampling, "repetition_penalty", "", "the official code has none"},
      {extra_args, "cfg_scale", "", kScale},
      {extra_args, "do_sample", "", "set temperature in the stage that reads; 0 is greedy"},
      {extra_args, "text_temperature", "", "set temperature in the stage that reads"},
      {attention_roles, "cross", "", kSelf},
      {attention_roles, "joint", "", kSelf},
  };
}

}  // namespace

const FamilyConfig& lance_config() {
  static const FamilyConfig config = {
      .name = "lance",
      .released_model = "Lance",
      .owns = owns,
      .tasks = tasks(),
      .defaults = defaults(),
      .limits = limits(),
      .stages = {{YamlPlace::reading, "reads"}, {YamlPlace::painting, "paints"}},
      .fields = with_common_fields(own_fields()),
      .unused = {"think", "think_output", "max_think_tokens", "negative_prompt", "cfg_img_scale",
                 "vae_tiling"},
      .drafting = kDrafting,
      .refused = refused_keys_of_lance(),
      .demo_notice =
          "the demo of stage_configs knows clips of one or two coloured shapes, of 17 to 33 frames "
          "and 96 to 176 pixels a side; -m takes a Lance checkpoint for anything else",
      .dummy_demo_notice =
          "random weights of the demo's sizes; -c stage_configs/lance.yaml takes those of the "
          "released model",
      .idle = idle,
  };
  return config;
}

}  // namespace diptych
