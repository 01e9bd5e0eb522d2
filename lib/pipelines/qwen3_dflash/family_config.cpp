// The defaults are those of the reference for drafted decoding (z-lab/dflash @44947fb,
// dflash/benchmark.py): greedy, at most 2048 new tokens, no thoughts. A generation_config.json of
// the checkpoint is not read, as there.
#include "lib/pipelines/qwen3_dflash/family_config.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include <fmt/format.h>

#include "lib/base/json_file.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/qwen3_dflash/settings.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

bool is_qwen3(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) return false;
  const auto json = read_json_object(file);
  const auto names = json.find("architectures");
  return names != json.end() && names->is_array() &&
         std::ranges::find(*names, "Qwen3ForCausalLM") != names->end();
}

// Other models of this layout, drafters among them.
std::string foreign_model(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) return "";
  const auto json = read_json_object(file);
  if (json.contains("dflash_config"))
    return "it is a drafter, which belongs to --draft-model (of an enhancer: --enhancer-drafter); "
           "expected the model that it drafts for";
  const auto names = json.find("architectures");
  if (names == json.end() || !names->is_array() || names->empty()) return "";
  return fmt::format("its config.json is of {}", shown_json(names->front()));
}

// Recorded cases have a model and its drafters in one folder.
bool owns(const fs::path& folder) {
  return is_qwen3(folder) || is_qwen3(folder / kRecordedTarget);
}

std::vector<FieldDefault> defaults() {
  return {{"max_tokens", "2048"}};
}

Qwen3Settings& own(Options& options) {
  return options.run.own.get<Qwen3Settings>();
}
DraftSettings& drafting(Options& options) {
  return own(options);
}
template <auto Member>
auto& member(Options& options) {
  return own(options).*Member;
}

constexpr ChoiceSlot kPromptFormat = {
    [](Options& options) { return static_cast<std::size_t>(own(options).prompt_format); },
    [](Options& options, std::size_t place) {
      own(options).prompt_format = static_cast<PromptFormat>(place);
    },
    kChoiceNames<PromptFormat>};

constexpr auto kFields = std::to_array<Field>({
    {"adaptive_drafting", Scope::answer, "--adaptive-drafting", "",
     "leave the drafter out of the rest of a text that it is measured to slow down; not with "
     "--temperature",
     BoolSlot{member<&Qwen3Settings::adaptive_drafting>}, YamlPlace::reading,
     "default_sampling_params.extra_args.adaptive_drafting"},
    {"forced_acceptance", Scope::answer, "--forced-acceptance", "N",
     "for measuring with --load-format dummy: every block of drafts gives N tokens, and no end "
     "marker ends a text",
     WholeSlot{member<&Qwen3Settings::forced_acceptance>, 0, kMostBlock}, YamlPlace::reading,
     "default_sampling_params.extra_args.forced_acceptance"},
    {"prompt_format", Scope::answer, "--prompt-format", "chat|raw",
     "chat: the prompt is what a user says; raw: the text that the model goes on with",
     kPromptFormat, YamlPlace::reading, "default_sampling_params.extra_args.prompt_format"},
    {"system", Scope::answer, "--system", "TEXT", "what the model is told before the conversation",
     TextSlot{member<&Qwen3Settings::system>}, YamlPlace::reading,
     "default_sampling_params.extra_args.system"},
    {"messages", Scope::request, "--messages", "FILE",
     "a conversation that goes on: JSON lines of {\"role\": \"user\", \"content\": \"...\"}, also "
     "of system, assistant and tool; a prompt is the next thing that the user says",
     PathSlot{member<&Qwen3Settings::messages>}},
    {"enable_thinking", Scope::answer, "--enable-thinking", "",
     "let the model think before it answers; the thoughts are part of the text",
     BoolSlot{member<&Qwen3Settings::enable_thinking>}, YamlPlace::reading,
     "default_sampling_params.extra_args.enable_thinking"},
    {"stop", Scope::answer, "--stop", "TEXT",
     "end the answer in front of this text; may be repeated",
     TextListSlot{member<&Qwen3Settings::stop>, /*exact=*/true}, YamlPlace::reading,
     "default_sampling_params.stop"},
    {"ignore_eos", Scope::answer, "--ignore-eos", "",
     "write on behind the end of the answer, up to --max-tokens",
     BoolSlot{member<&Qwen3Settings::ignore_eos>}, YamlPlace::reading,
     "default_sampling_params.ignore_eos"},
});

// The one stage writes, and draws what it samples.
std::vector<Field> fields() {
  constexpr auto kDrafts = draft_fields<drafting>();
  std::vector<Field> own(kDrafts.begin(), kDrafts.end());
  own.insert(own.end(), kFields.begin(), kFields.end());
  std::vector<Field> all = with_common_fields(own);
  all[field_index("seed", all)].place = YamlPlace::reading;
  // One field for the flag and the key.
  all[field_index("read_enforce_eager", all)].place = YamlPlace::none;
  Field& eager = all[field_index("enforce_eager", all)];
  eager.place = YamlPlace::reading;
  eager.scope = Scope::generation;
  return all;
}

std::vector<RefusedKey> refused_keys_of_qwen3() {
  using enum YamlMap;
  constexpr std::string_view kNoPicture = "this family paints nothing";
  constexpr std::string_view kNone = "this version does not have it";
  return {
      {stage, "vae_use_tiling", "", kNoPicture},
      {stage, "speculative_config", "", "set draft_model at the top of the file"},
      {stage, "max_num_seqs", "1", "diptych batch --batch-size decodes several texts at once"},
      {sampling, "repetition_penalty", "1|1.0", kNone},
      {sampling, "min_p", "0|0.0", kNone},
      {sampling, "generator_device", "cpu", "races of tokens are drawn on the CPU"},
      {extra_args, "do_sample", "", "set temperature; 0 is greedy"},
  };
}

}  // namespace

const FamilyConfig& qwen3_config() {
  static const FamilyConfig config = {
      .name = "qwen3_dflash",
      .released_model = "Qwen3-8B",
      .owns = owns,
      .tasks = {{.name = "chat", .help = "answer", .makes = MediaKind::text}},
      .defaults = defaults(),
      .limits = {},
      .stages = {{YamlPlace::reading, "writes"}},
      .fields = fields(),
      .unused = {"negative_prompt",
                 "enhance_prompt",
                 "enhancer",
                 "enhancer_drafter",
                 "enhance_instructions",
                 "enhance_picture_instructions",
                 "enhance_clip_instructions",
                 "enhance_max_tokens",
                 "read_device",
                 "connector",
                 "cfg_parallel_size",
                 "ulysses_degree",
                 "ring_degree",
                 "quality",
                 "crf",
                 "contact_sheet",
                 "think",
                 "think_output",
                 "max_think_tokens",
                 "width",
                 "height",
                 "video_frames",
                 "fps",
                 "batch_count",
                 "steps",
                 "cfg_text_scale",
                 "cfg_img_scale",
                 "cfg_interval",
                 "cfg_renorm_type",
                 "cfg_renorm_min",
                 "timestep_shift",
                 "cfg_mode",
                 "paint_attention",
                 "paint_attention_self",
                 "read_enforce_eager",
                 "cache_mode",
                 "cache_threshold",
                 "cache_calibration",
                 "cache_report",
                 "offload",
                 "vae_dtype",
                 "vae_tiling",
                 "noise"},
      .prompt_file = "messages",
      .drafting = kDrafting,
      .instructions = "system",
      .refused = refused_keys_of_qwen3(),
      .describe_foreign = foreign_model,
  };
  return config;
}

}  // namespace diptych
