// The defaults are the official notebook's (ByteDance-Seed/Bagel, inference.ipynb).
#include "lib/pipelines/bagel/family_config.h"

#include "lib/base/json_file.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/drafting/settings.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The official code reads no config.json; a model_type in one counts. Else the configs of the two
// transformers tell: Lance has an llm_config.json, too, but not beside a vit_config.json.
bool owns(const fs::path& folder) {
  if (fs::exists(folder / "config.json")) {
    const auto json = read_json_object(folder / "config.json");
    if (const auto type = json.find("model_type"); type != json.end()) return *type == "bagel";
  }
  return fs::exists(folder / "llm_config.json") && fs::exists(folder / "vit_config.json");
}

constexpr FieldDefault kEditDefaults[] = {
    {"cfg_img_scale", "2"}, {"cfg_interval", "0,1"}, {"cfg_renorm_type", "text_channel"}};

std::vector<Task> tasks() {
  return {
      {.name = "t2i", .help = "paint from text"},
      {.name = "edit",
       .help = "edit pictures",
       .reads = {.pictures = kOneOrMore},
       .defaults = kEditDefaults,
       .size_of_input = true,
       .sampling_key = "edit_sampling_params",
       .results = "edits"},
      {.name = "understand",
       .help = "answer about pictures",
       .reads = {.pictures = kOneOrMore},
       .makes = MediaKind::text},
      {.name = "chat", .help = "answer", .makes = MediaKind::text},
  };
}

std::vector<FieldDefault> defaults() {
  return {{"max_think_tokens", "1000"}, {"max_tokens", "512"},  {"width", "1024"},
          {"height", "1024"},           {"steps", "50"},        {"cfg_text_scale", "4"},
          {"cfg_interval", "0.4,1"},    {"timestep_shift", "3"}};
}

std::vector<FieldLimit> limits() {
  constexpr std::int64_t kPatch = 16;  // pixels: 8 per VAE cell, 2 cells per latent patch
  constexpr std::string_view kSide = ", a multiple of 16; an edit has the size of its last input";
  return {{.field = "width", .low = kPatch, .multiple = kPatch, .help = kSide},
          {.field = "height", .low = kPatch, .multiple = kPatch, .help = kSide},
          {.field = "steps",
           .low = 2,
           .why = "makes 0 updates",
           .help = "; N of them make N - 1 updates"}};
}

DraftSettings& drafting(Options& options) {
  return options.run.own.get<DraftSettings>();
}

std::vector<OwnIdle> idle(const Options& options) {
  return idle_drafts(options.run);
}

// This family's reasons for keys that lib/config/stage_config_known.cpp has, with their values that
// are allowed all the same.
std::vector<RefusedKey> refused_keys_of_bagel() {
  using enum YamlMap;
  constexpr std::string_view kStill = "only still pictures are painted";
  constexpr std::string_view kWholeVae = "there is one way to decode; vae_tiling saves memory";
  constexpr std::string_view kScales = "set extra_args.cfg_text_scale and cfg_img_scale";
  constexpr std::string_view kSampled = "set temperature in the stage that reads; 0 is greedy";
  constexpr std::string_view kSelf = "the layers have self-attention only";
  return {
      {stage, "vae_use_slicing", "", kWholeVae},
      {stage, "vae_fast_path", "", kWholeVae},
      {stage, "video_output_transport", "", kStill},
      {sampling, "num_frames", "", kStill},
      {sampling, "fps", "", kStill},
      {sampling, "guidance_scale", "", kScales},
      {sampling, "guidance_scale_2", "", kScales},
      {sampling, "guidance_rescale", "", kScales},
      {sampling, "true_cfg_scale", "", kScales},
      {sampling, "generator_device", "", "noise is drawn on the CPU, as the official code does"},
      {sampling, "strength", "", "edits have no start picture; the model reads the input instead"},
      {sampling, "repetition_penalty", "", "the official code has none"},
      {extra_args, "cfg_scale", "", kScales},
      {extra_args, "do_sample", "", kSampled},
      {extra_args, "text_temperature", "", kSampled},
      {attention_roles, "cross", "", kSelf},
      {attention_roles, "joint", "", kSelf},
  };
}

}  // namespace

const FamilyConfig& bagel_config() {
  static const FamilyConfig config = {
      .name = "bagel",
      .released_model = "BAGEL-7B-MoT",
      .owns = owns,
      .tasks = tasks(),
      .defaults = defaults(),
      .limits = limits(),
      .stages = {{YamlPlace::reading, "reads"}, {YamlPlace::painting, "paints"}},
      .fields = with_common_fields(draft_fields<drafting>()),
      .unused = {"video_frames", "fps", "crf", "contact_sheet"},
      .drafting = kDrafting,
      .refused = refused_keys_of_bagel(),
      .demo_notice =
          "the demo of stage_configs knows pictures of one to three coloured shapes, at "
          "192x192, 256x192 and 192x256; -m takes a BAGEL checkpoint for anything else",
      .dummy_demo_notice =
          "random weights of the demo's sizes; -c stage_configs/bagel.yaml takes "
          "those of the released model",
      .idle = idle,
  };
  return config;
}

}  // namespace diptych
