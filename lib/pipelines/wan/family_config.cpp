// The defaults of each released model are in release.cpp; those here hold where none is named.
#include "lib/pipelines/wan/family_config.h"

#include <array>
#include <initializer_list>
#include <type_traits>

#include "lib/config/family_fields.h"
#include "lib/pipelines/dit/model_index.h"
#include "lib/pipelines/wan/release.h"
#include "lib/pipelines/wan/settings.h"

namespace diptych {
namespace {

std::vector<Task> tasks() {
  return {
      {.name = "t2v",
       .help = "make a video from text",
       .makes = MediaKind::clip,
       .results = "videos from text"},
      {.name = "i2v",
       .help = "make a video that begins with a picture",
       .reads = {.pictures = kOne},
       .makes = MediaKind::clip,
       .size_of_input = true,
       .sampling_key = "i2v_sampling_params",
       .results = "videos from a picture"},
      {.name = "t2i", .help = "paint from text: a video of one frame"},
  };
}

std::vector<FieldDefault> defaults() {
  return {{"width", "832"},          {"height", "480"},       {"video_frames", "81"},
          {"steps", "50"},           {"cfg_text_scale", "5"}, {"timestep_shift", "3"},
          {"cache_threshold", "0.2"}};
}

std::vector<FieldLimit> limits() {
  constexpr std::int64_t kRow = 16;  // pixels of a latent row
  constexpr std::string_view kSide =
      ", a multiple of 16 (of Wan 2.2 TI2V-5B, 32); i2v without it keeps the shape of its picture";
  return {{.field = "width", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "height", .low = kRow, .multiple = kRow, .help = kSide},
          {.field = "video_frames",
           .help = "; one more than a multiple of 4, else the next such number below"},
          {.field = "steps", .help = "; as many updates"}};
}

WanSettings& own(Options& options) {
  return options.run.own.get<WanSettings>();
}

// A choice among WanSettings.
template <auto Member>
constexpr ChoiceSlot choice() {
  using Choice = std::remove_reference_t<decltype(std::declval<WanSettings>().*Member)>;
  return {[](Options& options) { return static_cast<std::size_t>(own(options).*Member); },
          [](Options& options, std::size_t place) {
            own(options).*Member = static_cast<Choice>(place);
          },
          kChoiceNames<Choice>};
}
template <auto Member>
auto& member(Options& options) {
  return own(options).*Member;
}

constexpr std::string_view kSamplers = "unipc|unipc_official|unipc_fastvideo|euler|euler_omni";

constexpr auto kFields = std::to_array<Field>({
    {"lora", Scope::session, "--lora", "[high=|low=|both=]FILE[:SCALE]",
     "add the weights of a LoRA file, times SCALE (1); may be repeated. Of two experts high= and "
     "low= say which one it is for; without that the name of the file, else both",
     AddedWeightsSlot{member<&WanSettings::loras>, kWanLoraParts}, YamlPlace::top, "lora"},
    {"lora_diffs", Scope::session, "--lora-diffs", "diffusers|all",
     "which .diff keys of LoRA files count: those that diffusers reads (biases of linear layers "
     "and the last layer), or all, also of norms, tables and the patch embedding",
     choice<&WanSettings::lora_diffs>(), YamlPlace::top, "lora_diffs"},
    {"transformer", Scope::session, "--transformer", "FILE",
     "weights of the transformer instead of the folder's, of two experts the one for high noise: a "
     "single file in Wan's own or diffusers' naming, also of fp8 codes with or without scales",
     PathSlot{member<&WanSettings::transformer>, PathKind::weights}, YamlPlace::top, "transformer"},
    {"transformer_2", Scope::session, "--transformer-2", "FILE",
     "likewise, of the expert for low noise",
     PathSlot{member<&WanSettings::transformer_2>, PathKind::weights}, YamlPlace::top,
     "transformer_2"},
    {"text_encoder", Scope::session, "--text-encoder", "FILE",
     "weights of the text encoder instead of the folder's, likewise",
     PathSlot{member<&WanSettings::text_encoder>, PathKind::weights}, YamlPlace::top,
     "text_encoder"},
    {"vae", Scope::session, "--vae", "FILE",
     "weights of the autoencoder instead of the folder's, likewise; also a .pth file",
     PathSlot{member<&WanSettings::vae>, PathKind::weights}, YamlPlace::top, "vae"},
    {"release", Scope::session, "--release", "t2v-1.3b|t2v-14b|i2v-14b|t2v-a14b|i2v-a14b|ti2v-5b",
     "with random weights and without a folder: whose sizes", choice<&WanSettings::release>(),
     YamlPlace::top, "release"},
    {"sampler", Scope::painting, "--sampler", kSamplers,
     "how steps go on from a velocity, and whose timesteps they have",
     choice<&WanSettings::sampler>(), YamlPlace::painting,
     "default_sampling_params.extra_args.sampler"},
    {"prompt_cleaning", Scope::generation, "--prompt-cleaning",
     "none|strip|diffusers|ftfy|whitespace",
     "what is made of a prompt before it becomes tokens: as the official code and diffusers with "
     "ftfy (ftfy), as diffusers without it, as FastVideo (strip), as vLLM-Omni (whitespace)",
     choice<&WanSettings::cleaning>(), YamlPlace::painting,
     "default_sampling_params.extra_args.prompt_cleaning"},
    {"guidance_scale_2", Scope::guidance, "--guidance-scale-2", "X",
     "text guidance of the expert for low noise; 0: as of the other",
     RealSlot{member<&WanSettings::low_noise_scale>, 0, true}, YamlPlace::painting,
     "default_sampling_params.guidance_scale_2"},
    {"boundary_ratio", Scope::painting, "--boundary-ratio", "X",
     "where the expert for low noise takes over, as a share of the timesteps; 0: where the "
     "checkpoint says",
     RealSlot{member<&WanSettings::boundary>, 0, true, 1}, YamlPlace::painting,
     "default_sampling_params.boundary_ratio"},
    {"guidance_rescale", Scope::guidance, "--guidance-rescale", "X",
     "how far guidance keeps the deviation of the branch with the prompt; 0: off",
     RealSlot{member<&WanSettings::guidance_rescale>, 0, true, 1}, YamlPlace::painting,
     "default_sampling_params.guidance_rescale"},
    {"cfg_gate", Scope::guidance, "--cfg-gate", "X",
     "share of the steps behind which the negative branch is no longer computed but guessed from "
     "its last difference; 1: off",
     RealSlot{member<&WanSettings::cfg_gate>, 0, true, 1}, YamlPlace::painting,
     "default_sampling_params.extra_args.cfg_gate"},
    {"teacache_coefficients", Scope::step_cache, "--teacache-coefficients", "A,B,...",
     "teacache: of the polynomial that estimates a change, highest power first; without them those "
     "published for the model, or a calibration's",
     TextSlot{member<&WanSettings::teacache>}, YamlPlace::painting,
     "default_sampling_params.extra_args.teacache_coefficients"},
    {"teacache_first_steps", Scope::step_cache, "--teacache-first-steps", "N",
     "teacache: steps at the start that are computed in any case; 0: as published, 5 with "
     "--teacache-ret-steps and 1 without",
     WholeSlot{member<&WanSettings::teacache_first>, 0, 10'000}, YamlPlace::painting,
     "default_sampling_params.extra_args.teacache_first_steps"},
    {"teacache_ret_steps", Scope::step_cache, "--teacache-ret-steps", "",
     "teacache: look at the projected timestep instead of the embedded one",
     BoolSlot{member<&WanSettings::teacache_ret_steps>}, YamlPlace::painting,
     "default_sampling_params.extra_args.teacache_ret_steps"},
});

std::vector<OwnIdle> idle_of_wan(const Options& options) {
  const RunConfig& run = options.run;
  std::vector<OwnIdle> idle;
  const auto forbid = [&](std::initializer_list<std::string_view> fields, const SettingText& why) {
    for (const std::string_view field : fields) idle.push_back({field, why});
  };
  if (!run.model.empty())
    forbid({"release"}, {"has no effect with a folder, whose configs have the sizes"});
  const auto forbid_timesteps = [&](const SettingText& why) {
    forbid({"teacache_coefficients", "teacache_first_steps", "teacache_ret_steps"}, why);
  };
  if (run.cache_mode != StepCacheMode::teacache) {
    forbid_timesteps({"given without ", Setting::of("cache_mode", "teacache")});
  } else if (!run.cache_calibration.empty()) {
    forbid_timesteps({"has no effect with ", Setting::of("cache_calibration")});
  } else if (wan_has_experts(run)) {
    forbid_timesteps(
        {"has no effect on a model with two transformers, whose steps a calibration "
         "chooses"});
  }
  if (run.own.get<WanSettings>().loras.empty())
    forbid({"lora_diffs"}, {"given without ", Setting::of("lora")});
  if (!wan_has_experts(run)) {
    forbid({"guidance_scale_2", "boundary_ratio"},
           {"has no effect on a model with one transformer"});
  }
  return idle;
}

// This family's reasons for keys that lib/config/stage_config_known.cpp has.
std::vector<RefusedKey> refused_keys_of_wan() {
  using enum YamlMap;
  constexpr std::string_view kScale = "set extra_args.cfg_text_scale";
  constexpr std::string_view kNoText = "this family writes no text";
  return {
      {stage, "boundary_ratio", "", "set default_sampling_params.boundary_ratio"},
      {sampling, "guidance_scale", "", kScale},
      {sampling, "true_cfg_scale", "", kScale},
      {sampling, "strength", "", "videos have no start picture with noise"},
      {sampling, "repetition_penalty", "", kNoText},
      {extra_args, "cfg_scale", "", kScale},
      {extra_args, "do_sample", "", kNoText},
      {extra_args, "text_temperature", "", kNoText},
  };
}

}  // namespace

const FamilyConfig& wan_config() {
  static const FamilyConfig config = {
      .name = "wan",
      .released_model = "Wan2.1-T2V-1.3B-Diffusers",
      .owns = owns_wan,
      .tasks = tasks(),
      .defaults = defaults(),
      .of_checkpoint = wan_defaults,
      .limits = limits(),
      .stages = {{YamlPlace::painting, "paints"}},
      .fields = with_common_fields(kFields),
      .unused = {"read_device", "connector", "think", "think_output", "max_think_tokens",
                 "max_tokens", "temperature", "top_k", "top_p", "cfg_img_scale", "cfg_interval",
                 "cfg_renorm_type", "cfg_renorm_min", "read_attention", "read_attention_self",
                 "read_enforce_eager", "enforce_eager"},
      .refused = refused_keys_of_wan(),
      .idle = idle_of_wan,
      .describe_foreign = foreign_pipeline,
  };
  return config;
}

}  // namespace diptych
