#include "lib/config/stage_config.h"

#include <algorithm>
#include <vector>

#include "lib/config/stage_config_known.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

// The values that a file gives, by field name; the file is "f.yaml" in a folder of its own.
struct File {
  test::Folder folder;
  std::vector<std::string> overrides;
  std::vector<Assignment> read(std::string_view text) const {
    return read_stage_tree(load_stage_config(folder.write("f.yaml", text), overrides),
                           bagel_config());
  }
  // The message without the folder.
  std::string error(std::string_view text) const {
    std::string message = message_of([&] { read(text); });
    const std::string prefix = folder.path().string() + "/";
    for (std::size_t at = 0; (at = message.find(prefix)) != std::string::npos;) {
      message.erase(at, prefix.size());
    }
    return message;
  }
  std::string value(std::string_view text, std::string_view field) const {
    std::string found = "none";
    for (const Assignment& value : read(text)) {
      if (all_fields()[value.field].name == field) found = value.text;
    }
    return found;
  }
};

struct Key {
  const char* map;  // where it stands; "painting" and "reading" are maps of stages 1 and 0
  const char* key;
  const char* good;
  const char* bad;  // of the wrong type
};

constexpr Key kKeys[] = {
    {"file", "pipeline", "bagel", "[bagel]"},
    {"file", "model", "some/folder", "{a: 1}"},
    {"file", "device", "cpu", "[cpu]"},
    {"file", "dtype", "float32", "{}"},
    {"file", "kernels", "strict", "[]"},
    {"file", "quantization", "int8", "{}"},
    {"file", "load_format", "dummy", "[dummy]"},
    {"reading", "devices", "\"0\"", "[0]"},
    {"reading", "diffusion_attention_config", "{default: math}", "math"},
    {"reading", "enforce_eager", "true", "[true]"},
    {"painting", "devices", "\"0\"", "{}"},
    {"painting", "input_connectors", "{from_stage_0: shared_memory_connector}", "shared"},
    {"painting", "cfg_mode", "sequential", "[batched]"},
    {"painting", "enforce_eager", "true", "{}"},
    {"painting", "diffusion_attention_config", "{default: math, per_role: {self: sdpa}}", "[math]"},
    {"painting", "default_sampling_params", "{seed: 1}", "7"},
    {"sampling", "width", "64", "\"64\""},
    {"sampling", "height", "64", "[64]"},
    {"sampling", "num_inference_steps", "8", "{}"},
    {"sampling", "seed", "8", "'8'"},
    {"sampling", "num_outputs_per_prompt", "2", "[2]"},
    {"sampling", "extra_args", "{cfg_text_scale: 2}", "[cfg_text_scale]"},
    {"extra_args", "cfg_text_scale", "4.5", "'4.5'"},
    {"extra_args", "cfg_img_scale", "1.5", "[1.5]"},
    {"extra_args", "cfg_interval", "[0.4, 1.0]", "0.4"},
    {"extra_args", "cfg_renorm_type", "channel", "[channel]"},
    {"extra_args", "cfg_renorm_min", "0.5", "{}"},
    {"extra_args", "timestep_shift", "3.0", "'3'"},
};

// A two-stage file with one key in one of its maps.
std::string file_with(std::string_view map, std::string_view key, std::string_view value) {
  const std::string line = fmt::format("{}: {}", key, value);
  const auto in = [&](std::string_view name, std::string_view before) {
    return map == name ? std::string(before) + line + "\n" : std::string();
  };
  std::string text = in("file", "") + "stages:\n  - stage_id: 0\n" + in("reading", "    ") +
                     "  - stage_id: 1\n" + in("painting", "    ");
  if (map == "sampling" || map == "extra_args") text += "    default_sampling_params:\n";
  text += in("sampling", "      ");
  if (map == "extra_args") text += "      extra_args:\n" + in("extra_args", "        ");
  return text;
}

TEST_CASE("every key is read") {
  const File file;
  for (const Key& key : kKeys) {
    CAPTURE(key.key);
    CHECK(file.error(file_with(key.map, key.key, key.good)) == "no error");
  }
  CHECK(file.value(file_with("file", "load_format", "dummy"), "load_format") == "dummy");
  CHECK(file.value(file_with("extra_args", "cfg_interval", "[0.2, 0.9]"), "cfg_interval") ==
        "0.2,0.9");
  CHECK(file.value(file_with("sampling", "num_outputs_per_prompt", "3"), "batch_count") == "3");
  CHECK(file.value(file_with("reading", "devices", "\"2\""), "device") == "cuda:2");
  CHECK(file.value(file_with("reading", "diffusion_attention_config", "{default: math}"),
                   "read_attention") == "math");
  CHECK(file.value(file_with("reading", "diffusion_attention_config", "{default: math}"),
                   "paint_attention") == "none");
}

TEST_CASE("every key has a misspelling that is refused with the right one") {
  const File file;
  for (const Key& key : kKeys) {
    CAPTURE(key.key);
    std::string slip = key.key;
    std::swap(slip[1], slip[2]);
    if (slip == key.key) slip.erase(1, 1);
    const std::string message = file.error(file_with(key.map, slip, key.good));
    CHECK(message.find(fmt::format("unknown key '{}' (did you mean '{}'? known: ", slip,
                                   key.key)) != std::string::npos);
  }
  CHECK(file.error(file_with("sampling", "sed", "1")) ==
        "f.yaml:5:7: stages.1.default_sampling_params: unknown key 'sed' (did you mean 'seed'? "
        "known: extra_args, width, height, seed, num_outputs_per_prompt, num_inference_steps)");
}

TEST_CASE("every key refuses a value of another type") {
  const File file;
  for (const Key& key : kKeys) {
    CAPTURE(key.key);
    const std::string message = file.error(file_with(key.map, key.key, key.bad));
    CHECK(message.starts_with("f.yaml:"));
    CHECK(message.find("expected") != std::string::npos);
  }
  CHECK(file.error(file_with("sampling", "seed", "'8'")) ==
        "f.yaml:5:13: stages.1.default_sampling_params.seed: expected a number or random, found "
        "the text '8'");
  CHECK(file.error(file_with("file", "model", "")) ==
        "f.yaml:1:1: model: expected a text, found nothing");
}

TEST_CASE("every key that cannot be served passes where it is off, and says why elsewhere") {
  const File file;
  const auto map_of = [](YamlMap map) {
    switch (map) {
      case YamlMap::file:
        return "file";
      case YamlMap::sampling:
        return "sampling";
      case YamlMap::extra_args:
        return "extra_args";
      default:
        return "painting";
    }
  };
  // The family's own reasons come first.
  const auto own_reason = [](const RefusedKey& key) {
    const std::vector<RefusedKey>& own = bagel_config().refused;
    const auto found = std::ranges::find_if(
        own, [&](const RefusedKey& other) { return other.map == key.map && other.key == key.key; });
    if (found != own.end()) CHECK(found->off.empty());
    return found == own.end() ? key.why : found->why;
  };
  std::size_t reasons_of_bagel = 0;
  for (const RefusedKey& key : refused_keys()) {
    CAPTURE(key.key);
    const std::string_view why = own_reason(key);
    reasons_of_bagel += why == key.why ? 0 : 1;
    if (key.map == YamlMap::attention_roles) continue;
    const auto error = [&](std::string_view value) {
      return file.error(file_with(map_of(key.map), key.key, value));
    };
    CHECK(error("") == "no error");
    CHECK(error(key.off.substr(0, key.off.find('|'))) == "no error");
    const std::string message = error("98765");
    CHECK(message.find(fmt::format("{}: '98765' is not supported by this version: {}; ", key.key,
                                   why)) != std::string::npos);
  }
  // Another family refuses these keys, too.
  CHECK(reasons_of_bagel == bagel_config().refused.size());
  CHECK(
      file.error(file_with("painting", "tensor_parallel_size", "3")) ==
      "f.yaml:4:5: stages.1.tensor_parallel_size: '3' is not supported by this version: processes "
      "divide a request by cfg_parallel_size, ulysses_degree and ring_degree; expected 1");
  CHECK(
      file.error(file_with("painting", "diffusion_attention_config", "{per_role: {cross: flash}}"))
          .find("self-attention only") != std::string::npos);
}

TEST_CASE("what belongs to the other stage, or to another place, is said") {
  const File file;
  CHECK(file.error(file_with("reading", "cfg_mode", "batched")) ==
        "f.yaml:3:5: stages.0.cfg_mode: 'batched' is not supported by this version: this stage "
        "reads; the key belongs to the one that paints; remove the key");
  CHECK(file.error(file_with("reading", "default_sampling_params", "{seed: 1}"))
            .find("belongs to the one that paints") != std::string::npos);
  CHECK(file.error(file_with("painting", "default_sampling_params", "{max_tokens: 2048}"))
            .find("belongs to the one that reads") != std::string::npos);
  CHECK(file.error(file_with("reading", "edit_sampling_params", "{seed: 1}"))
            .find("belongs to the one that paints") != std::string::npos);
  CHECK(file.error(file_with("painting", "edit_sampling_params", "{max_tokens: 8}"))
            .find("default_sampling_params of the stage that reads") != std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, edit_sampling_params: {temperature: 1}}]")
            .find("default_sampling_params of the stage that reads") != std::string::npos);
  CHECK(file.error(file_with("painting", "edit_sampling_params", "{width: 64}"))
            .find("an edited picture has the size of the last one") != std::string::npos);
  CHECK(file.error(file_with("painting", "edit_sampling_params", "{sed: 64}"))
            .find("did you mean 'seed'?") != std::string::npos);
  CHECK(file.error("stage_args:\n  - stage_id: 0\n").find("stage_args: the old layout") !=
        std::string::npos);
}

TEST_CASE("one stage reads and paints") {
  const File file;
  constexpr const char* text =
      "stages: [{stage_id: 0, cfg_mode: sequential, default_sampling_params: {seed: 9},"
      " diffusion_attention_config: {default: sdpa}}]";
  CHECK(file.value(text, "seed") == "9");
  CHECK(file.value(text, "read_attention") == "sdpa");
  CHECK(file.value(text, "paint_attention") == "sdpa");
}

TEST_CASE("quantization is of the model, which the stages share") {
  const File file;
  CHECK(file.value("quantization: int8\nstages: [{stage_id: 0}]\n", "quantization") == "int8");
  CHECK(file.error("stages: [{stage_id: 0, quantization: int8}]")
            .find("quantization: 'int8' is not supported by this version: it holds for all "
                  "stages; set it at the top of the file") != std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, diffusion_quantization_config: fp8}]")
            .find("set quantization at the top of the file") != std::string::npos);
}

TEST_CASE("enforce_eager is of its own stage: texts in the one that reads, steps in the other") {
  const File file;
  const auto eager = [&](const std::string& reading, const std::string& painting) {
    const std::string text =
        fmt::format("stages: [{{stage_id: 0{}}}, {{stage_id: 1{}}}]", reading, painting);
    return std::pair(file.value(text, "read_enforce_eager"), file.value(text, "enforce_eager"));
  };
  using Texts = std::pair<std::string, std::string>;
  CHECK(eager(", enforce_eager: true", "") == Texts("true", "none"));
  CHECK(eager("", ", enforce_eager: true") == Texts("none", "true"));
  CHECK(eager(", enforce_eager: false", ", enforce_eager: true") == Texts("false", "true"));
  constexpr const char* one = "stages: [{stage_id: 0, enforce_eager: true}]";
  CHECK(file.value(one, "read_enforce_eager") == "true");
  CHECK(file.value(one, "enforce_eager") == "true");
}

TEST_CASE("stages are one or two, numbered from 0, each once") {
  const File file;
  CHECK(file.error("pipeline: bagel\n") == "f.yaml:1:1: key 'stages' is missing");
  CHECK(file.error("stages: 7\n") == "f.yaml:1:9: stages: expected a list of stages, found '7'");
  CHECK(file.error("stages: []\n").find("0 stages; expected one") != std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2}]").find("3 stages") !=
        std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0}, {stage_id: 0}]") ==
        "f.yaml:1:25: stages.1: a second stage with stage_id 0");
  CHECK(file.error("stages: [{stage_id: 1}]").find("stage_id 1 of 1 stage; they count from 0") !=
        std::string::npos);
  CHECK(file.error("stages: [{cfg_mode: batched}]") ==
        "f.yaml:1:10: stages.0: key 'stage_id' is missing");
  CHECK(file.error("stages: [{stage_id: one}]") ==
        "f.yaml:1:21: stages.0.stage_id: 'one' is not a whole number from 0");
  CHECK(file.error("stages: [painting]") ==
        "f.yaml:1:10: stages.0: expected a map of keys, found 'painting'");
  CHECK(file.error("pipeline:\nstages: []\n") ==
        "f.yaml:1:1: pipeline: expected a text, found nothing");
  CHECK(file.error("pipeline: bagel\nstages:\n") ==
        "f.yaml:2:1: stages: expected a list of stages, found nothing");
  CHECK(file.error("pipeline: bagel\nstages: ~\n") ==
        "f.yaml:2:9: stages: expected a list of stages, found nothing");
  CHECK(file.error("") == "f.yaml:1:1: expected a map of keys, found nothing");
  CHECK(file.error("- stages\n") == "f.yaml:1:1: expected a map of keys, found a list");
}

TEST_CASE("a stage in front of the family's rewrites prompts") {
  const File file;
  constexpr const char* text =
      "stages:\n"
      "  - stage_id: 0\n"
      "    model_stage: enhancer\n"
      "    model: ../Qwen3-8B\n"
      "    draft_model: /drafter\n"
      "    default_sampling_params:\n"
      "      max_tokens: 99\n"
      "      extra_args: {enhance_prompt: true, picture_instructions: Be brief.}\n"
      "  - {stage_id: 1, default_sampling_params: {max_tokens: 7}}\n"
      "  - {stage_id: 2, input_connectors: {from_stage_1: shared_memory_connector}, cfg_mode: "
      "auto}\n";
  CHECK(file.value(text, "enhance_prompt") == "true");
  CHECK(std::filesystem::path(file.value(text, "enhancer")) ==
        (file.folder.path() / ".." / "Qwen3-8B").lexically_normal());
  CHECK(file.value(text, "enhancer_drafter") == "/drafter");
  CHECK(file.value(text, "enhance_max_tokens") == "99");
  CHECK(file.value(text, "enhance_picture_instructions") == "Be brief.");
  CHECK(file.value(text, "max_tokens") == "7");
  CHECK(file.value(text, "model") == "none");
  CHECK(file.value(text, "cfg_mode") == "auto");
  // Behind it a single stage does all, too.
  constexpr const char* two =
      "stages: [{stage_id: 0, model_stage: enhancer}, {stage_id: 1, cfg_mode: auto, "
      "default_sampling_params: {max_tokens: 7}}]";
  CHECK(file.value(two, "cfg_mode") == "auto");
  CHECK(file.value(two, "max_tokens") == "7");
  CHECK(file.value(two, "enhance_max_tokens") == "none");
}

TEST_CASE("the stage that rewrites prompts is stage 0 and has its own keys") {
  const File file;
  CHECK(file.error("stages: [{stage_id: 0, model_stage: enhancer}]") ==
        "f.yaml:1:9: stages: 0 stages behind the enhancer; expected one that does all, or two: "
        "one reads, one paints");
  CHECK(file.error("stages: [{stage_id: 0}, {stage_id: 1, model_stage: enhancer}]") ==
        "f.yaml:1:52: stages.1.model_stage: stage 1 is the enhancer; expected stage 0, in front of "
        "all others");
  CHECK(file.error("stages: [{stage_id: 0, model_stage: thinker}]")
            .find("stages.0.model_stage: found 'thinker', expected enhancer") != std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, model_stage: enhancer, cfg_mode: auto}, {stage_id: 1}]")
            .find("this stage rewrites prompts; the key belongs to the one that paints") !=
        std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, model_stage: enhancer, dtype: float32}, {stage_id: 1}]")
            .find("it holds for all stages") != std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, model: a}]").find("it holds for all stages") !=
        std::string::npos);
  CHECK(file.error("stages: [{stage_id: 0, model_stage: enhancer, default_sampling_params: "
                   "{max_tokens: [1]}}, {stage_id: 1}]")
            .find("stages.0.default_sampling_params.max_tokens: expected a number") !=
        std::string::npos);
  const auto of_texts = message_of([&] {
    read_stage_tree(load_stage_config(file.folder.write("q.yaml",
                                                        "stages: [{stage_id: 0, model_stage: "
                                                        "enhancer}, {stage_id: 1}]"),
                                      {}),
                    qwen3_config());
  });
  CHECK(of_texts.find("the family qwen3_dflash paints nothing; expected no enhancer") !=
        std::string::npos);
}

TEST_CASE("the stage that reads may have a device of its own") {
  const File file;
  const std::string apart =
      "stages: [{stage_id: 0, devices: '0'}, {stage_id: 1, devices: '1', input_connectors: "
      "{from_stage_0: c10d_connector}}]\n";
  CHECK(file.value(apart, "device") == "cuda:1");
  CHECK(file.value(apart, "read_device") == "cuda:0");
  CHECK(file.value(apart, "connector") == "c10d");
  const std::string same =
      "stages: [{stage_id: 0, devices: cpu}, {stage_id: 1, devices: cpu, input_connectors: "
      "{from_stage_0: c10d_connector}}]\n";
  CHECK(file.value(same, "device") == "cpu");
  CHECK(file.value(same, "read_device") == "none");
  CHECK(file.value(same, "connector") == "none");
  CHECK(file.value("stages: [{stage_id: 0, devices: '1'}]", "device") == "cuda:1");
  CHECK(file.error("stages: [{stage_id: 0, devices: '0,1'}]").find("a stage uses one device") !=
        std::string::npos);
  CHECK(file.error("device: cpu\nstages: [{stage_id: 0, devices: '0'}]")
            .find("the file also has device") != std::string::npos);
}

TEST_CASE("connectors have known names and types") {
  const File file;
  const auto stages = [](std::string_view input) {
    return fmt::format("stages: [{{stage_id: 0}}, {{stage_id: 1, input_connectors: {}}}]\n", input);
  };
  CHECK(file.error("connectors: {mine: {name: SharedMemoryConnector}}\n" +
                   stages("{from_stage_0: mine}")) == "no error");
  CHECK(file.error(stages("{from_stage_0: mine}")).find("unknown connector 'mine'") !=
        std::string::npos);
  CHECK(file.error(stages("{from_stage_1: shared_memory_connector}")).find("unknown key") !=
        std::string::npos);
  CHECK(file.error("connectors: {rdma: {name: MooncakeTransferEngineConnector}}\n" + stages("{}"))
            .find("connectors.rdma.name: 'MooncakeTransferEngineConnector' is not supported") !=
        std::string::npos);
}

TEST_CASE("a file inherits from its base") {
  const File file;
  file.folder.write("sub/base.yaml",
                    "model: weights\ndtype: float32\nstages:\n"
                    "  - stage_id: 0\n"
                    "    diffusion_attention_config: {default: math, per_role: {self: sdpa}}\n"
                    "  - stage_id: 1\n"
                    "    default_sampling_params:\n"
                    "      seed: 1\n      width: 64\n"
                    "      extra_args: {cfg_text_scale: 2, cfg_img_scale: 3}\n");
  constexpr const char* text =
      "base_config: sub/base.yaml\ndtype: bfloat16\nstages:\n"
      "  - stage_id: 1\n"
      "    default_sampling_params: {seed: 5, extra_args: {cfg_img_scale: 1}}\n"
      "  - stage_id: 0\n"
      "    diffusion_attention_config: {default: flash}\n";
  CHECK(file.value(text, "dtype") == "bfloat16");
  CHECK(file.value(text, "model") == (file.folder.path() / "sub" / "weights").string());
  CHECK(file.value(text, "seed") == "5");            // the file
  CHECK(file.value(text, "width") == "64");          // the base, in a map that merges deeply
  CHECK(file.value(text, "cfg_text_scale") == "2");  // likewise, one map further down
  CHECK(file.value(text, "cfg_img_scale") == "1");
  CHECK(file.value(text, "read_attention") == "flash");
  CHECK(file.value(text, "read_attention_self") == "none");  // other maps are replaced
}

TEST_CASE("an error in a base names the base") {
  const File file;
  file.folder.write("base.yaml", "stages:\n  - stage_id: 0\n    cfg_mod: batched\n");
  CHECK(file.error("base_config: base.yaml\n").starts_with("base.yaml:3:5: stages.0: unknown key"));
  file.folder.write("two.yaml", "stages:\n  - stage_id: 0\n  - stage_id: 1\n");
  CHECK(file.error("base_config: two.yaml\nstages:\n  - stage_id: 7\n")
            .starts_with("f.yaml:3:5: stages: 3 stages; expected one"));  // which adds to it
  CHECK(
      file.error("base_config: none.yaml\n").starts_with("f.yaml:1:14: base_config: no such file"));
  CHECK(file.error("base_config: [base.yaml]\n").find("expected the path") != std::string::npos);
}

TEST_CASE("a loop of bases is an error") {
  const File file;
  CHECK(file.error("base_config: f.yaml\n") ==
        "f.yaml:1:14: base_config: 'f.yaml' inherits from itself");
  file.folder.write("other.yaml", "base_config: ./f.yaml\n");
  CHECK(file.error("base_config: other.yaml\n") ==
        "other.yaml:1:14: base_config: './f.yaml' inherits from itself");
}

TEST_CASE("--set edits the tree and is checked like it") {
  File file;
  const auto set = [&](const char* text) {
    file.overrides = {text};
    return file.error("stages: [{stage_id: 0}, {stage_id: 1, cfg_mode: batched}]");
  };
  CHECK(set("stages.1.default_sampling_params.seed=7") == "no error");
  CHECK(set("stages.1.default_sampling_params.extra_args.cfg_interval=[0.1, 0.9]") == "no error");
  CHECK(set("stages.1.default_sampling_params.sed=7")
            .starts_with("--set: stages.1.default_sampling_params: unknown key 'sed' (did you mean "
                         "'seed'?"));
  CHECK(set("stages.1.default_sampling_params.seed='7'") ==
        "--set: stages.1.default_sampling_params.seed: expected a number or random, found the text "
        "'7'");
  CHECK(set("stages.2.cfg_mode=batched") == "--set: stages.2.cfg_mode: no stage '2' (known: 0, 1)");
  CHECK(set("stages.1.cfg_mode.x=1") ==
        "--set: stages.1.cfg_mode.x: 'x' is inside 'batched', expected a map");
  CHECK(set("stages.1.enforce_eager.x=1") ==
        "--set: stages.1.enforce_eager: expected true or false, found a map");
  CHECK(set("device.x=1") == "--set: device: expected a text, found a map");
  CHECK(set("kernels.a.b=1") == "--set: kernels: expected a text, found a map");
  CHECK(set("stages.1.vae_use_tiling=true").find("'true' is not supported") != std::string::npos);
  CHECK(set("seed").find("is not KEY=VALUE") != std::string::npos);
  CHECK(set("=7").find("is not KEY=VALUE") != std::string::npos);
  CHECK(set("a..b=7").find("an empty name in the path") != std::string::npos);
  CHECK(set("stages.=7").find("an empty name in the path") != std::string::npos);
  CHECK(set("model=[").find("broken YAML") != std::string::npos);
  CHECK(set("base_config=x.yaml") ==
        "--set: base_config: cannot be set here; write a file that inherits");
  CHECK(set("stages=7") == "--set: stages: expected a list of stages, found '7'");
  CHECK(set("stages.1.stage_id=0").find("a second stage") != std::string::npos);
  CHECK(set("stages.1=") == "--set: stages.1: expected a map of keys, found nothing");
  file.overrides = {"model=a", "dtype=float32", "model=b"};
  CHECK(file.error("stages: [{stage_id: 0}]") ==
        "--set: model: given twice ('a' and 'b'); expected once");
}

}  // namespace
}  // namespace diptych
