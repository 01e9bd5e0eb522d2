// Tables of the keys of stage configs, made from the fields of the families. Each key has an
// example, which a stage config must take.
#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/config/stage_config.h"
#include "lib/config/stage_config_known.h"
#include "lib/pipelines/registry.h"
#include "tests/docs/pages.h"

namespace diptych::docs {
namespace {

namespace fs = std::filesystem;

// By the field's name, as YAML.
constexpr auto kExamples = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"pipeline", "bagel"},
    {"model", "BAGEL-7B-MoT"},
    {"negative_prompt", "blurry, low contrast"},
    {"enhance_prompt", "true"},
    {"enhancer", "../Qwen3-8B"},
    {"enhancer_drafter", "../Qwen3-8B-DFlash-b16"},
    {"enhance_instructions", "instructions.txt"},
    {"enhance_picture_instructions", "Describe an oil painting of it."},
    {"enhance_clip_instructions", "Say how the camera moves."},
    {"enhance_max_tokens", "200"},
    {"think", "true"},
    {"max_think_tokens", "200"},
    {"max_tokens", "200"},
    {"temperature", "0.7"},
    {"top_k", "50"},
    {"top_p", "0.9"},
    {"width", "640"},
    {"height", "512"},
    {"video_frames", "33"},
    {"fps", "24"},
    {"seed", "7"},
    {"batch_count", "4"},
    {"steps", "20"},
    {"cfg_text_scale", "5.5"},
    {"cfg_img_scale", "1.5"},
    {"cfg_interval", "[0.2, 0.9]"},
    {"cfg_renorm_type", "channel"},
    {"cfg_renorm_min", "0.2"},
    {"timestep_shift", "2.5"},
    {"cfg_mode", "auto"},
    {"read_attention", "flash"},
    {"read_attention_self", "sdpa"},
    {"paint_attention", "cudnn"},
    {"paint_attention_self", "flash"},
    {"kernels", "strict"},
    {"device", "cuda:1"},
    {"dtype", "float32"},
    {"quantization", "fp8"},
    {"load_format", "dummy"},
    {"cfg_parallel_size", "2"},
    {"ulysses_degree", "4"},
    {"ring_degree", "2"},
    {"enforce_eager", "true"},
    {"read_enforce_eager", "true"},
    {"cache_mode", "taylorseer"},
    {"cache_threshold", "0.3"},
    {"cache_calibration", "calibration.json"},
    {"cache_report", "true"},
    {"offload", "layers"},
    {"vae_tiling", "on"},
    {"vae_dtype", "float32"},
    {"max_vram", "24"},
    {"resolution", "image_512res"},
    {"noise_source", "cpu"},
    {"instruction", "Answer in one word."},
    {"lora", "high=style.safetensors:0.8"},
    {"lora_diffs", "all"},
    {"transformer", "wan_high_noise_fp8_scaled.safetensors"},
    {"transformer_2", "wan_low_noise_fp8_scaled.safetensors"},
    {"text_encoder", "umt5_xxl_fp8_e4m3fn_scaled.safetensors"},
    {"vae", "wan_2.1_vae.safetensors"},
    {"release", "ti2v-5b"},
    {"cosmos_release", "2b-v2w"},
    {"sampler", "euler"},
    {"prompt_cleaning", "strip"},
    {"guidance_scale_2", "3.5"},
    {"boundary_ratio", "0.9"},
    {"guidance_rescale", "0.7"},
    {"cfg_gate", "0.5"},
    {"teacache_coefficients", "0,0,0,1,0"},
    {"teacache_first_steps", "2"},
    {"teacache_ret_steps", "true"},
    {"draft_model", "../Qwen3-8B-DFlash-b16"},
    {"block_size", "8"},
    {"adaptive_drafting", "true"},
    {"prompt_format", "raw"},
    {"system", "Answer in one sentence."},
    {"enable_thinking", "true"},
    {"stop", "[\"END\"]"},
    {"ignore_eos", "true"},
    {"forced_acceptance", "6"},
});

std::string_view example_of(const Field& field) {
  const auto found = std::ranges::find(kExamples, field.name,
                                       &std::pair<std::string_view, std::string_view>::first);
  return found == kExamples.end() ? std::string_view() : found->second;
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return fmt::format("{} to {}", low, high);
}

// What a value may be, in words.
struct Type {
  const FieldLimit limit;

  std::string operator()(const WholeSlot& slot) const {
    const std::int64_t low = std::max(slot.low, limit.low);
    const std::string range = range_text(low, std::min(slot.high, limit.high));
    return limit.multiple > 1
               ? fmt::format("whole number, a multiple of {}, {}", limit.multiple, range)
               : "whole number, " + range;
  }
  std::string operator()(const SeedSlot&) const {
    return "whole number, 0 to 18446744073709551615, or `random`";
  }
  std::string operator()(const RealSlot& slot) const {
    return fmt::format("number, {} {}, at most {}", slot.low_included ? "at least" : "more than",
                       slot.low, slot.high);
  }
  std::string operator()(const FreeWholeSlot& slot) const {
    return fmt::format("whole number, {}, or `{}`", range_text(slot.low, slot.high), kUnset);
  }
  std::string operator()(const FrameRateSlot&) const {
    return fmt::format("number or fraction, {} to {}, or `{}`", kMinFrameRate, kMaxFrameRate,
                       kUnset);
  }
  std::string operator()(const IntervalSlot&) const { return "two numbers, 0 <= LO < HI <= 1"; }
  std::string operator()(const ChoiceSlot& slot) const {
    return fmt::format("`{}`", fmt::join(slot.names, "`, `"));
  }
  std::string operator()(const TaskSlot&) const { return "a task of the family"; }
  std::string operator()(const AttentionSlot& slot) const {
    return slot.may_be_empty ? "as `default`, or empty"
                             : "`auto`, `math`, `sdpa`, `flash`, `cudnn`, `hopper`";
  }
  std::string operator()(const FreeDeviceSlot&) const { return "`same` or a device"; }
  std::string operator()(const DeviceSlot&) const { return "`auto`, `cpu`, `cuda`, `cuda:N`"; }
  std::string operator()(const TextSlot&) const { return "text"; }
  std::string operator()(const PathSlot&) const { return "path, relative to the file"; }
  std::string operator()(const TextListSlot&) const { return "texts"; }
  std::string operator()(const AddedWeightsSlot&) const {
    return "list of `[PART=]FILE[:SCALE]`, relative to the file";
  }
  std::string operator()(const BoolSlot&) const { return "`true`, `false`"; }
  std::string operator()(const InputsSlot&) const { return "texts, pictures and videos"; }
};

std::string default_text(const Field& field, const FamilyConfig& family) {
  const std::string text = value_text(field, default_options(family));
  std::string cell = text.empty() ? "not set" : code(text);
  for (const Task& task : family.tasks) {
    const std::string_view own = task_default(task, field.name);
    if (!own.empty() && !task.results.empty())
      cell += fmt::format("; of {} {}", task.results, code(own));
  }
  return cell;
}

// What `text` says of each family that uses the field; once where all say the same.
template <typename Text>
std::string of_families(const Field& field, const Text& text) {
  std::vector<std::pair<std::string_view, std::string>> all;
  for (const FamilyConfig* family : all_family_configs()) {
    const bool has =
        std::ranges::find(family->fields, field.name, &Field::name) != family->fields.end();
    if (has && family->uses(field.name)) all.emplace_back(family->name, text(*family));
  }
  const auto is_first = [&](const auto& each) { return each.second == all.front().second; };
  if (std::ranges::all_of(all, is_first)) return all.front().second;
  std::string cell;
  for (const auto& [name, own] : all)
    cell += fmt::format("{}{}: {}", cell.empty() ? "" : "<br>", name, own);
  return cell;
}

std::string types_text(const Field& field) {
  return of_families(field, [&](const FamilyConfig& family) {
    return std::visit(Type{family.limit_of(field.name)}, field.slot);
  });
}

std::string key_row(const Field& field) {
  const std::string key(field.yaml.substr(field.yaml.rfind('.') + 1));
  const auto help = [&](const FamilyConfig& family) {
    return std::string(field.help) + std::string(family.limit_of(field.name).help);
  };
  const auto preset = [&](const FamilyConfig& family) { return default_text(field, family); };
  return table_row({code(field.yaml), types_text(field), of_families(field, preset),
                    code(fmt::format("{}: {}", key, example_of(field))), of_families(field, help)});
}

std::string keys_table(std::string_view place) {
  std::string text = table_head({"key", "value", "default", "example", "meaning"});
  std::vector<std::string_view> done;
  for (const FamilyConfig* family : all_family_configs()) {
    for (const Field& field : family->fields) {
      const bool is_new = std::ranges::find(done, field.yaml) == done.end();
      if (field.place != place || !is_new || !family->uses(field.name)) continue;
      done.push_back(field.yaml);
      text += key_row(field);
    }
  }
  return text;
}

std::string_view map_name(YamlMap map) {
  using enum YamlMap;
  switch (map) {
    case file:
      return "the file";
    case stage:
      return "a stage";
    case sampling:
      return "`default_sampling_params`";
    case extra_args:
      return "`extra_args`";
    case attention:
      return "`diffusion_attention_config`";
    case attention_roles:
      return "`per_role`";
  }
  return "";
}

// The families' own reasons where they have some.
std::string why_refused(const RefusedKey& key) {
  const auto families = all_family_configs();
  std::string why;
  for (const FamilyConfig* family : families) {
    const RefusedKey* own = find_refused(family->refused, key.map, key.key);
    if (own == nullptr) continue;
    if (!why.empty()) why += "; ";
    why += families.size() == 1 ? std::string(own->why)
                                : fmt::format("{}: {}", family->name, own->why);
  }
  return why.empty() ? std::string(key.why) : why;
}

std::string refused_row(const RefusedKey& key) {
  std::string off = code(key.off);
  for (std::size_t at = off.find('|'); at != std::string::npos; at = off.find('|'))
    off.replace(at, 1, "`, `");
  return table_row({code(key.key), std::string(map_name(key.map)), off, why_refused(key)});
}

std::string refused_table() {
  std::string text = table_head({"key", "in", "allowed all the same", "why it is refused"});
  std::vector<RefusedKey> keys(refused_keys().begin(), refused_keys().end());
  for (const FamilyConfig* family : all_family_configs()) {
    for (const RefusedKey& own : family->refused) {
      if (find_refused(keys, own.map, own.key) == nullptr) keys.push_back(own);
    }
  }
  for (const RefusedKey& key : keys) text += refused_row(key);
  return text;
}

std::string ranges_table() {
  std::string text = table_head({"setting", "values", "default"});
  for (const Field& field : flag_fields(all_family_configs())) {
    const bool is_number = std::holds_alternative<WholeSlot>(field.slot) ||
                           std::holds_alternative<RealSlot>(field.slot) ||
                           std::holds_alternative<SeedSlot>(field.slot) ||
                           std::holds_alternative<IntervalSlot>(field.slot);
    if (!is_number) continue;
    const auto preset = [&](const FamilyConfig& family) { return default_text(field, family); };
    text +=
        table_row({code(flag_label(field.flags)), types_text(field), of_families(field, preset)});
  }
  return text;
}

// Every place that a family's stage config has.
std::vector<std::string_view> places() {
  std::vector<std::string_view> places = {YamlPlace::top, YamlPlace::enhancing};
  for (const FamilyConfig* family : all_family_configs()) {
    for (const StageKind& kind : family->stages) {
      if (std::ranges::find(places, kind.place) == places.end()) places.push_back(kind.place);
    }
  }
  return places;
}

// Sets the example in a file of all the family's stages and reads it.
void take_example(const Field& field, const FamilyConfig& family, const fs::path& file) {
  std::string path(field.yaml), yaml = fmt::format("pipeline: {}\nstages:\n", family.name);
  std::vector<std::string_view> stages;  // by their places
  if (family.uses("enhance_prompt")) stages.push_back(YamlPlace::enhancing);
  for (const StageKind& kind : family.stages) stages.push_back(kind.place);
  for (std::size_t id = 0; id < stages.size(); ++id) {
    yaml += fmt::format("  - stage_id: {}\n", id);
    if (stages[id] == YamlPlace::enhancing) yaml += "    model_stage: enhancer\n";
    if (stages[id] == field.place) path = fmt::format("stages.{}.{}", id, field.yaml);
  }
  std::ofstream(file) << yaml;
  const std::array<std::string, 1> set = {fmt::format("{}={}", path, example_of(field))};
  Options options = default_options(family);
  const std::string before = value_text(field, options);
  for (const Assignment& value : read_stage_tree(load_stage_config(file, set), family))
    assign(family.fields[value.field], options, value.text, value.where);
  if (value_text(field, options) == before && field.name != "pipeline")
    throw InputError("{}: the example is the default", field.yaml);
}

}  // namespace

void add_stage_key_parts(Parts& parts) {
  for (const std::string_view place : places())
    parts[fmt::format("keys {}", place)] = [place] { return keys_table(place); };
  parts["refused keys"] = refused_table;
  parts["numeric ranges"] = ranges_table;
}

void check_stage_keys(const std::vector<Page>& pages, Problems& problems) {
  const fs::path file = fs::temp_directory_path() / fmt::format("docs_pages_{}.yaml", ::getpid());
  std::vector<std::string_view> structure = {"base_config",
                                             "stages",
                                             "stage_id",
                                             "model_stage",
                                             "devices",
                                             "input_connectors",
                                             "connectors",
                                             "default_sampling_params",
                                             "diffusion_attention_config"};
  for (const FamilyConfig* family : all_family_configs()) {
    for (const Task& task : family->tasks) {
      if (!task.sampling_key.empty()) structure.push_back(task.sampling_key);
    }
    for (const Field& field : family->fields) {
      if (field.place.empty() || !family->uses(field.name)) continue;
      try {
        take_example(field, *family, file);
      } catch (const InputError& error) {
        problems.push_back(fmt::format("the example of '{}' (tests/docs/stage_keys.cpp): {}",
                                       field.yaml, error.what()));
      }
    }
  }
  fs::remove(file);
  const auto page = std::ranges::find(pages, "docs/stage-config.md", &Page::name);
  for (const std::string_view key : structure) {
    if (page == pages.end() || page->text.find(code(key)) == std::string::npos)
      problems.push_back(fmt::format("docs/stage-config.md: the key '{}' is missing", key));
  }
}

}  // namespace diptych::docs
