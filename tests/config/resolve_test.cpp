#include "lib/config/resolve.h"

#include <map>

#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;
using Variables = std::map<std::string, std::string>;

constexpr const char* kFile =
    "stages:\n"
    "  - stage_id: 0\n"
    "    default_sampling_params: {seed: 1, num_inference_steps: 10}\n";

FlagInput text(std::string_view value) {
  return {MediaKind::text, std::string(value)};
}
FlagInput picture(std::string_view path) {
  return {MediaKind::picture, std::string(path)};
}

// What a run with a file, variables, overrides and flags resolves.
struct Run {
  std::string file = kFile;
  Variables variables;
  std::vector<FlagInput> inputs;
  std::map<std::string, std::vector<std::string>> flags;
  std::vector<std::string> overrides;
  test::Folder folder;

  Resolved resolve() {
    flags["-c,--config"] = {folder.write("f.yaml", file).string()};
    return resolve_as_is();
  }
  Resolved resolve_as_is() const {
    return diptych::resolve({inputs, flags, overrides, {variables}, {}, {&bagel_config()}});
  }
  std::string error() {
    return message_of([&] { resolve(); });
  }
};

std::string origin(const Resolved& resolved, std::string_view field) {
  return resolved.origins[field_index(field)];
}

TEST_CASE("a flag wins over a variable, that over the file, that over the default") {
  Run run;
  CHECK(run.resolve().options.run.sampling.seed == 1);
  CHECK(origin(run.resolve(), "seed") == (run.folder.path() / "f.yaml:3:37").string());
  CHECK(origin(run.resolve(), "width") == "default");
  run.variables["DIPTYCH_SEED"] = "2";
  CHECK(run.resolve().options.run.sampling.seed == 2);
  CHECK(origin(run.resolve(), "seed") == "DIPTYCH_SEED");
  run.overrides = {"stages.0.default_sampling_params.seed=3"};
  CHECK(run.resolve().options.run.sampling.seed == 3);
  CHECK(origin(run.resolve(), "seed") == "--set stages.0.default_sampling_params.seed");
  run.flags["-s,--seed"] = {"4"};
  CHECK(run.resolve().options.run.sampling.seed == 4);
  CHECK(origin(run.resolve(), "seed") == "--seed");
  CHECK(run.resolve().options.run.sampling.steps == 10);
}

TEST_CASE("what a stage config says of edits holds for edits, over what else it says") {
  Run run;
  run.file =
      "stages:\n"
      "  - stage_id: 0\n"
      "    default_sampling_params: {seed: 1, extra_args: {cfg_text_scale: 5, cfg_img_scale: 3}}\n"
      "    edit_sampling_params: {seed: 2, extra_args: {cfg_text_scale: 6, think: true}}\n";
  run.inputs = {text("a cup")};
  Options painted = run.resolve().options;
  CHECK(painted.run.sampling.seed == 1);
  CHECK(painted.run.sampling.cfg_text_scale == 5);
  CHECK_FALSE(painted.run.think);

  run.inputs = {picture("cup.png"), text("make it red")};
  const auto edited = [&] { return run.resolve().options.run; };
  CHECK(edited().sampling.seed == 2);
  CHECK(edited().sampling.cfg_text_scale == 6);
  CHECK(edited().sampling.cfg_img_scale == 3);  // the file's, not the default of editing
  CHECK(edited().sampling.cfg_interval_low == 0);
  CHECK(edited().think);
  CHECK(origin(run.resolve(), "seed") == (run.folder.path() / "f.yaml:4:34").string());
  run.overrides.emplace_back("stages.0.default_sampling_params.seed=9");
  CHECK(edited().sampling.seed == 9);  // it counts as a flag
  run.overrides.emplace_back("stages.0.edit_sampling_params.seed=8");
  CHECK(edited().sampling.seed == 8);
  run.overrides.clear();
  run.variables.insert_or_assign("DIPTYCH_SEED", "3");
  CHECK(edited().sampling.seed == 3);
  run.overrides.emplace_back("stages.0.edit_sampling_params.seed=4");
  CHECK(edited().sampling.seed == 4);
  CHECK(origin(run.resolve(), "seed") == "--set stages.0.edit_sampling_params.seed");
  run.flags.insert_or_assign("-s,--seed", std::vector<std::string>{"5"});
  CHECK(edited().sampling.seed == 5);
  run.flags.insert_or_assign("--think", std::vector<std::string>{"false"});
  CHECK_FALSE(edited().think);
}

TEST_CASE("an overruled value is checked all the same") {
  Run run;
  run.variables["DIPTYCH_STEPS"] = "1";
  run.flags["--steps"] = {"5"};
  CHECK(run.error() == "DIPTYCH_STEPS: 1 makes 0 updates; expected at least 2");
  run.variables.clear();
  run.file = "stages:\n  - stage_id: 0\n    default_sampling_params: {seed: -2}\n";
  CHECK(run.error() == run.folder.path().string() +
                           "/f.yaml:3:37: stages.0.default_sampling_params.seed: '-2' is not a "
                           "whole number from 0 to 18446744073709551615, nor random");
  run.file = "stages:\n  - stage_id: 0\n    edit_sampling_params: {num_inference_steps: 1}\n";
  CHECK(run.error() == run.folder.path().string() +
                           "/f.yaml:3:49: stages.0.edit_sampling_params.num_inference_steps: 1 "
                           "makes 0 updates; expected at least 2");
}

TEST_CASE("an empty variable counts as none") {
  Run run;
  run.variables["DIPTYCH_SEED"] = "";
  CHECK(run.resolve().options.run.sampling.seed == 1);
}

TEST_CASE("a flag is given once") {
  Run run;
  run.flags["--steps"] = {"5", "6"};
  CHECK(run.error() == "--steps: given 2 times ('5' and '6'); expected once");
  run.flags.erase("--steps");
  run.flags["--trace-filter"] = {"kv.*", "step*"};
  CHECK(run.resolve().options.run.trace_filter == std::vector<std::string>{"kv.*", "step*"});
  run.flags["--trace-filter"] = {""};
  CHECK(run.error() == "--trace-filter: is empty; expected GLOB");
}

TEST_CASE("two names of one flag agree in the environment") {
  Run run;
  run.variables.insert_or_assign("DIPTYCH_CFG_TEXT_SCALE", "3");
  CHECK(run.resolve().options.run.sampling.cfg_text_scale == 3);
  run.variables["DIPTYCH_CFG_SCALE"] = "4";
  CHECK(run.error() ==
        "DIPTYCH_CFG_TEXT_SCALE: '3', but DIPTYCH_CFG_SCALE is '4'; expected one of them");
}

TEST_CASE("a size is a width and a height") {
  Run run;
  run.flags["--size"] = {"96x64"};
  CHECK(run.resolve().options.run.sampling.width == 96);
  CHECK(run.resolve().options.run.sampling.height == 64);
  CHECK(origin(run.resolve(), "height") == "--size");
  run.flags["--size"] = {"96"};
  CHECK(run.resolve().options.run.sampling.width == 96);
  CHECK(run.resolve().options.run.sampling.height == 96);
  run.flags["--size"] = {"96x"};
  CHECK(run.error() == "--size: '96x' is not a size; expected WIDTHxHEIGHT, such as 1024x768");
  for (const char* side : {"x", "96x", "x96"}) {
    run.flags["--size"] = {side};
    CHECK(run.error().find("is not a size") != std::string::npos);
  }
  for (const char* side : {"96xx96", "96x96x96"}) {
    run.flags["--size"] = {side};
    CHECK(run.error().find("is not a whole number") != std::string::npos);
  }
  run.flags["--size"] = {"96x64"};
  run.flags["-W,--width"] = {"96"};
  CHECK(run.error() == "--width: given together with --size; expected one of them");
  run.flags.erase("--size");
  run.variables["DIPTYCH_SIZE"] = "64x64";
  CHECK(run.resolve().options.run.sampling.width == 96);
  CHECK(run.resolve().options.run.sampling.height == 64);
}

TEST_CASE("a message about a value names the place that the value came from") {
  Run run;
  run.flags["--size"] = {"96x64"};
  run.variables = {{"DIPTYCH_SEED", "7"}};
  const Resolved resolved = run.resolve();
  const auto message = [&](const Setting& setting) {
    return error_text(InputError(setting, "too many"), resolved);
  };
  CHECK(message(Setting::of("width")) == "--size: width: too many");
  CHECK(message(Setting::of("seed")) == "DIPTYCH_SEED: too many");
  CHECK(message(Setting::of("steps", "10")) == origin(resolved, "steps") + ": steps 10: too many");
  CHECK(origin(resolved, "steps").find("f.yaml:3:") != std::string::npos);
  CHECK(message(Setting::absent("width")) == "--width: too many");
  CHECK(message(Setting::of("batch_count")) == "--batch-count: too many");
  CHECK(message(Setting::of("size")) == "--size: too many");  // no field
  CHECK(message(Setting::of("prompt")) == "--prompt: too many");
  CHECK(error_text(InputError("steps: too many"), resolved) == "steps: too many");
}

TEST_CASE("one error is rendered at a flag, a variable, a YAML key and --set") {
  const InputError error(Setting::of("steps"), SettingText{"needs ", Setting::of("seed", "1")});
  CHECK(std::string_view(error.what()) == "--steps: needs --seed 1");
  Run run;
  CHECK(error_text(error, run.resolve()) ==
        (run.folder.path() / "f.yaml:3:61").string() + ": steps: needs --seed 1");
  run.variables["DIPTYCH_STEPS"] = "9";
  CHECK(error_text(error, run.resolve()) == "DIPTYCH_STEPS: needs --seed 1");
  run.overrides = {"stages.0.default_sampling_params.num_inference_steps=8"};
  CHECK(error_text(error, run.resolve()) ==
        "--set stages.0.default_sampling_params.num_inference_steps: needs --seed 1");
  run.flags["--steps"] = {"7"};
  CHECK(error_text(error, run.resolve()) == "--steps: needs --seed 1");
}

TEST_CASE("attention comes from a flag, our variable, the Python servers' variable, the file") {
  Run run;
  run.file =
      "stages:\n  - stage_id: 0\n    diffusion_attention_config: {default: math, per_role: "
      "{self: sdpa}}\n";
  CHECK(run.resolve().options.run.read_attention.default_backend == "math");
  CHECK(run.resolve().options.run.paint_attention.self == "sdpa");
  const auto place = [&](std::string_view field) {
    const Setting setting = Setting::of(field).called("--attention");
    return setting_view(setting, run.resolve()).place;
  };
  CHECK(place("read_attention") == (run.folder.path() / "f.yaml:3:43").string());
  CHECK(place("paint_attention_self") == (run.folder.path() / "f.yaml:3:66").string());
  run.variables["DIPTYCH_ATTENTION"] = "cudnn";
  CHECK(place("read_attention") == "DIPTYCH_ATTENTION");
  run.flags["--attention"] = {"cudnn"};
  CHECK(place("paint_attention") == "--attention");
  run.flags.clear();
  run.variables.clear();
  const auto paint = [&] { return run.resolve().options.run.paint_attention; };
  const std::pair<const char*, const char*> names[] = {
      {"FLASH_ATTN", "flash"}, {"TORCH_SDPA", "sdpa"}, {"SDPA", "sdpa"}, {"CUDNN_ATTN", "cudnn"},
      {"CUDNN", "cudnn"},      {"MATH", "math"},       {"auto", "auto"}};
  for (const auto& [python, ours] : names) {
    run.variables["DIFFUSION_ATTENTION_BACKEND"] = python;
    CHECK(paint().default_backend == ours);
    CHECK(paint().self.empty());
    CHECK(run.resolve().options.run.read_attention.default_backend == ours);
  }
  CHECK(origin(run.resolve(), "paint_attention") == "DIFFUSION_ATTENTION_BACKEND");
  run.variables["DIPTYCH_ATTENTION"] = "flash";
  CHECK(paint().default_backend == "flash");
  run.flags["--attention"] = {"math"};
  CHECK(paint().default_backend == "math");
  run.flags.clear();
  run.variables = {{"DIFFUSION_ATTENTION_BACKEND", "SAGE_ATTN"}};
  CHECK(run.error() ==
        "DIFFUSION_ATTENTION_BACKEND: unknown attention backend 'SAGE_ATTN' (known: auto, math, "
        "sdpa, flash, cudnn, hopper); also FLASH_ATTN, TORCH_SDPA, CUDNN_ATTN");
}

TEST_CASE("without a file the demo is taken, unless a model is given") {
  Run run;
  CHECK(message_of([&] { run.resolve_as_is(); }).starts_with("-c/--config: not given"));
  const std::string model = DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/checkpoint";
  run.variables["DIPTYCH_MODEL"] = "BAGEL";
  CHECK(message_of([&] { run.resolve_as_is(); }) ==
        "DIPTYCH_MODEL: BAGEL: not found; expected a folder");
  run.variables["DIPTYCH_MODEL"] = model;
  CHECK(run.resolve_as_is().options.run.model == model);
  CHECK_FALSE(run.resolve_as_is().uses_demo);
  run.overrides = {"stages.0.x=1"};
  CHECK(message_of([&] { run.resolve_as_is(); }) ==
        "--set: edits a stage config; give one with -c");
}

TEST_CASE("the table shows every value with its origin") {
  Run run;
  run.inputs = {text("a: b # c")};
  run.variables["DIPTYCH_CFG_INTERVAL"] = "0.2,0.9";
  const std::string table = config_table(run.resolve());
  const auto origin_of = [&](const std::string& value) {
    const std::size_t at = table.find(value + " ");
    if (at == std::string::npos) return std::string("no such line");
    const std::size_t mark = table.find("  # ", at);
    return table.substr(mark + 4, table.find('\n', mark) - mark - 4);
  };
  CHECK(origin_of(R"(
inputs: [{"text":"a: b # c"}])") == "--prompt/--image");
  CHECK(origin_of("\ncfg_interval: [0.2,0.9]") == "DIPTYCH_CFG_INTERVAL");
  CHECK(origin_of("\nsteps: 10") == (run.folder.path() / "f.yaml:3:61").string());
  CHECK(origin_of("\ncfg_mode: batched") == "default");
  CHECK(std::count(table.begin(), table.end(), '\n') ==
        std::ranges::count_if(bagel_config().fields,
                              [](const Field& field) { return bagel_config().uses(field.name); }));
}

TEST_CASE("the table says that an edit has the size of its picture") {
  Run run;
  run.inputs = {picture("a.png"), text("make it red")};
  const std::string table = config_table(run.resolve());
  for (const char* side : {"\nwidth: auto ", "\nheight: auto "}) {
    const std::size_t at = table.find(side);
    REQUIRE(at != std::string::npos);
    CHECK(
        table.substr(at + 1, table.find('\n', at + 1) - at - 1).ends_with("# the last picture's"));
  }
  run.flags["--size"] = {"64x32"};
  CHECK(config_table(run.resolve()).find("\nwidth: 64 ") != std::string::npos);
}

TEST_CASE("how many pictures a file or a variable asks for is not said of answers") {
  Run run;
  run.file = "stages:\n  - stage_id: 0\n    default_sampling_params: {num_outputs_per_prompt: 3}\n";
  run.inputs = {text("how are you?")};
  CHECK(run.resolve().options.run.sampling.batch_count == 3);
  run.flags["--task"] = {"chat"};
  CHECK(run.resolve().options.run.sampling.batch_count == 1);
  run.variables["DIPTYCH_BATCH_COUNT"] = "2";
  CHECK(run.resolve().options.run.sampling.batch_count == 1);
  CHECK(origin(run.resolve(), "batch_count") == "default");
  run.flags["-b,--batch-count"] = {"2"};  // refused by its origin
  CHECK(run.resolve().options.run.sampling.batch_count == 1);
  CHECK(origin(run.resolve(), "batch_count") == "--batch-count");
}

TEST_CASE("a value that nobody gave is called the default") {
  Run run;
  run.inputs = {text("a fox")};
  const InputError error(
      SettingProblem{Setting::of("width"), "1024", {", expected a multiple of 16 up to 256"}});
  CHECK(std::string_view(error.what()) ==
        "--width: found 1024, expected a multiple of 16 up to 256");
  CHECK(error_text(error, run.resolve()) ==
        "--width: found 1024 (the default), expected a multiple of 16 up to 256");
  run.flags["-W,--width"] = {"1024"};
  CHECK(error_text(error, run.resolve()) == error.what());
}

TEST_CASE("inputs keep the order of their flags, and pictures of a variable come first") {
  Run run;
  run.inputs = {text("first"), picture("a.png"), text(""), picture("b.png")};
  const std::vector<InputItem> mixed = {{"first", {}}, {{}, "a.png"}, {"", {}}, {{}, "b.png"}};
  CHECK((run.resolve().options.run.inputs == mixed));
  CHECK(run.resolve().options.run.prompt() == "first");

  run.inputs = {text("make it red")};
  run.variables["DIPTYCH_IMAGE"] = "a.png;b.png";
  run.variables["DIPTYCH_PROMPT"] = "not this";  // a flag wins
  const Resolved both = run.resolve();
  const std::vector<InputItem> expected = {{{}, "a.png"}, {{}, "b.png"}, {"make it red", {}}};
  CHECK((both.options.run.inputs == expected));
  CHECK(origin(both, "inputs") == "--prompt/--image, DIPTYCH_IMAGE");

  CHECK(error_text(InputError(Setting::of("image"), "a.png: no such file"), both) ==
        "DIPTYCH_IMAGE: a.png: no such file");
  CHECK(error_text(InputError(Setting::of("prompt"), "9 tokens"), both) == "--prompt: 9 tokens");
  run.variables["DIPTYCH_IMAGE"] = ";";
  CHECK(run.error() == "DIPTYCH_IMAGE: found ';', expected files of pictures");
  run.variables.erase("DIPTYCH_IMAGE");
  run.inputs = {};
  run.variables["DIPTYCH_PROMPT"] = "ok\xC3";
  CHECK(run.error() == "DIPTYCH_PROMPT: not valid UTF-8: byte 0xC3 at offset 2");

  run.inputs = {text("ok\xC3")};
  CHECK(run.error() == "--prompt: not valid UTF-8: byte 0xC3 at offset 2");
}

TEST_CASE("the task follows the inputs, and editing has defaults of its own") {
  Run run;
  run.inputs = {text("a fox")};
  CHECK(run.resolve().options.run.task == "t2i");
  run.inputs = {picture("a.png"), text("a fox")};
  const Resolved edit = run.resolve();
  CHECK(edit.options.run.task == "edit");
  CHECK(edit.options.run.sampling.cfg_img_scale == 2.0);
  CHECK(edit.options.run.sampling.cfg_interval_low == 0.0);
  CHECK(edit.options.run.sampling.cfg_renorm_type == Renorm::text_channel);
  CHECK(edit.options.run.sampling.size_of_input);
  run.flags["--cfg-img-scale"] = {"1.25"};
  CHECK(run.resolve().options.run.sampling.cfg_img_scale == 1.25);
  run.flags["-W,--width"] = {"512"};
  CHECK(run.error() ==
        "--height: not given; expected both, or none for the size of the last picture");
  run.flags["-H,--height"] = {"256"};
  CHECK_FALSE(run.resolve().options.run.sampling.size_of_input);

  run.flags["--task"] = {"t2i"};
  CHECK(run.error() == "--task t2i: reads no pictures, found --image; expected edit");
  run.flags["--task"] = {"chat"};
  CHECK(run.error() == "--task chat: reads no pictures, found --image; expected understand");
  run.inputs = {text("a fox")};
  CHECK(run.resolve().options.run.answers());
  run.flags["--task"] = {"understand"};
  CHECK(run.error() == "--task understand: needs a picture; expected --image FILE, or --task chat");
  run.flags["--task"] = {"edit"};
  CHECK(run.error() == "--task edit: needs a picture; expected --image FILE");
}

}  // namespace
}  // namespace diptych
