#include "lib/pipelines/cosmos/family_config.h"

#include <array>

#include "lib/config/family_fields.h"
#include "lib/pipelines/cosmos/release.h"
#include "lib/pipelines/cosmos/settings.h"
#include "lib/pipelines/dit/model_index.h"

namespace diptych {
namespace {

// The presets of diffusers (specs: cosmos.md 1.2); of pictures they are the family's own.
constexpr FieldDefault kOfClips[] = {{"width", "1280"}, {"height", "704"}};

std::vector<Task> tasks() {
  return {
      {.name = "t2i", .help = "paint from text"},
      {.name = "i2v",
       .help = "make a video that begins with a picture",
       .reads = {.pictures = kOne},
       .makes = MediaKind::clip,
       .defaults = kOfClips,
       .sampling_key = "i2v_sampling_params",
       .results = "videos from a picture"},
      {.name = "v2v",
       .help = "make a video that goes on from another",
       .reads = {.clips = kOne},
       .makes = MediaKind::clip,
       .defaults = kOfClips,
       .sampling_key = "v2v_sampling_params",
       .results = "continued videos"},
  };
}

std::vector<FieldDefault> defaults() {
  return {{"width", "1360"}, {"height", "768"}, {"video_frames", "93"},
          {"fps", "16"},     {"steps", "35"},   {"cfg_text_scale", "7"}};
}

std::vector<FieldLimit> limits() {
  constexpr std::int64_t kRow = 16;  // pixels of a latent row
  constexpr std::string_view kSide =
      ", a multiple of 16; what a video begins with is stretched to it";
  return {{.field = "width", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "height", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "video_frames",
           .help = "; one more than a multiple of 4, else the next such number below"},
          {.field = "steps",
           .low = 2,
           .why = "makes no update",
           .help = "; N steps make N - 1 updates"}};
}

constexpr auto kFields = std::to_array<Field>({
    {"cosmos_release", Scope::session, "--cosmos-release", "2b-t2i|2b-v2w|14b-t2i|14b-v2w",
     "with random weights and without a folder: whose sizes",
     ChoiceSlot{[](Options& options) {
                  return static_cast<std::size_t>(options.run.own.get<CosmosSettings>().release);
                },
                [](Options& options, std::size_t place) {
                  options.run.own.get<CosmosSettings>().release = static_cast<CosmosRelease>(place);
                },
                kChoiceNames<CosmosRelease>},
     YamlPlace::top, "cosmos_release"},
});

std::vector<OwnIdle> idle_of_cosmos(const Options& options) {
  if (options.run.model.empty()) return {};
  return {{"cosmos_release", {"has no effect with a folder, whose configs have the sizes"}}};
}

// This family's reasons for keys that lib/config/stage_config_known.cpp has.
std::vector<RefusedKey> refused_keys_of_cosmos() {
  using enum YamlMap;
  constexpr std::string_view kScale = "set extra_args.cfg_text_scale";
  constexpr std::string_view kNoText = "this family writes no text";
  return {
      {sampling, "guidance_scale", "", kScale},
      {sampling, "true_cfg_scale", "", kScale},
      {sampling, "strength", "", "there is no start picture with noise"},
      {sampling, "repetition_penalty", "", kNoText},
      {extra_args, "cfg_scale", "", kScale},
      {extra_args, "do_sample", "", kNoText},
      {extra_args, "text_temperature", "", kNoText},
  };
}

}  // namespace

const FamilyConfig& cosmos_config() {
  static const FamilyConfig config = {
      .name = "cosmos",
      .released_model = "Cosmos-Predict2-2B-Text2Image",
      .released_film = "Cosmos-Predict2-2B-Video2World",
      .owns = owns_cosmos,
      .tasks = tasks(),
      .defaults = defaults(),
      .of_checkpoint = cosmos_defaults,
      .limits = limits(),
      .stages = {{YamlPlace::painting, "paints"}},
      .fields = with_common_fields(kFields),
      .unused = {"read_device", "connector", "think", "think_output", "max_think_tokens",
                 "max_tokens", "temperature", "top_k", "top_p", "cfg_img_scale", "cfg_interval",
                 "cfg_renorm_type", "cfg_renorm_min", "timestep_shift", "read_attention",
                 "read_attention_self", "read_enforce_eager", "enforce_eager"},
      .refused = refused_keys_of_cosmos(),
      .idle = idle_of_cosmos,
      .describe_foreign = foreign_pipeline,
  };
  return config;
}

}  // namespace diptych
