// A second family beside BAGEL, with fields, tasks, limits and stages of its own: nothing of the
// configuration knows either of them.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "lib/config/family_fields.h"
#include "lib/config/resolve.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/folder.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::message_of;

struct ReelSettings {
  std::int64_t frames = 5;
  double blur = 0.5;
};
std::int64_t& frames_of(Options& options) {
  return options.run.own.get<ReelSettings>().frames;
}
double& blur_of(Options& options) {
  return options.run.own.get<ReelSettings>().blur;
}

const Field kReelFields[] = {
    {"frames", Scope::picture, "--takes", "N", "pictures of a reel", WholeSlot{frames_of, 1, 1000},
     YamlPlace::painting, "default_sampling_params.num_frames"},
    {"blur", Scope::painting, "--blur", "X", "of what moves", RealSlot{blur_of, 0, true},
     "encoding", "blur"},
};
constexpr FieldDefault kCaptionDefaults[] = {{"blur", "0.25"}};

const FamilyConfig& reel_config() {
  static const FamilyConfig config = {
      .name = "reel",
      .released_model = "Reel-2B",
      .owns = [](const std::filesystem::path& folder) { return folder.filename() == "reel-1b"; },
      .tasks = {{.name = "film", .help = "film a text"},
                {.name = "caption",
                 .help = "caption pictures",
                 .reads = {.pictures = kOneOrMore},
                 .makes = MediaKind::text,
                 .defaults = kCaptionDefaults,
                 .sampling_key = "caption_sampling_params"}},
      .defaults = {{"steps", "8"}, {"frames", "9"}},
      .limits = {{.field = "width", .low = 32, .multiple = 32},
                 {.field = "frames", .low = 5, .multiple = 1, .why = "makes no reel"}},
      .stages = {{"encoding", "encodes"}, {YamlPlace::painting, "paints"}},
      .fields = with_common_fields(kReelFields),
      .unused = {"cfg_img_scale", "read_attention", "read_attention_self"},
      .refused = {{YamlMap::sampling, "strength", "", "a reel starts from noise"}},
  };
  return config;
}

struct Run {
  std::string file;
  std::vector<FlagInput> inputs = {{MediaKind::text, "a fox"}};
  std::map<std::string, std::vector<std::string>> flags;
  std::map<std::string, std::string> variables;
  test::Folder folder;

  Resolved resolve() {
    if (!file.empty()) flags["-c,--config"] = {folder.write("f.yaml", file).string()};
    return diptych::resolve(
        {inputs, flags, {}, {variables}, {}, {&bagel_config(), &reel_config()}});
  }
  std::string error() {
    std::string message = message_of([&] { resolve(); });
    const std::string prefix = folder.path().string() + "/";
    for (std::size_t at = 0; (at = message.find(prefix)) != std::string::npos;)
      message.erase(at, prefix.size());
    return message;
  }
};

std::string value(const Resolved& resolved, std::string_view name) {
  const auto fields = fields_of(resolved.options);
  return value_text(fields[field_index(name, fields)], resolved.options);
}

constexpr const char* kFile =
    "pipeline: reel\n"
    "stages:\n"
    "  - {stage_id: 0, blur: 0.75}\n"
    "  - stage_id: 1\n"
    "    default_sampling_params: {num_frames: 33}\n"
    "    caption_sampling_params: {seed: 7}\n";

TEST_CASE("the family is that of the stage config, of the model's folder, or of a flag") {
  Run run;
  run.flags["-m,--model"] = {"somewhere"};
  CHECK(run.error() == "--model: somewhere: not found; expected a folder");
  run.flags["-m,--model"] = {test::kTinyCheckpoint};
  Resolved resolved = run.resolve();
  CHECK(resolved.options.run.family == &bagel_config());
  CHECK(config_table(resolved).find("pipeline: bagel                           # default\n") !=
        std::string::npos);
  CHECK(resolved.options.run.task == "t2i");
  CHECK(value(resolved, "steps") == "50");
  run.flags["-m,--model"] = {"./models/reel-1b"};
  resolved = run.resolve();
  CHECK(resolved.options.run.family == &reel_config());
  CHECK(value(resolved, "pipeline") == "reel");
  CHECK(resolved.origins[field_index("pipeline")] == "the folder of --model");
  run.file = "pipeline: bagel\nstages: [{stage_id: 0}]\n";
  CHECK(run.error() ==
        "--model: ./models/reel-1b: holds a checkpoint of the family reel, but f.yaml:1:11 is for "
        "the family bagel");
  run.file.clear();
  run.flags.erase("-c,--config");
  run.flags.erase("-m,--model");
  run.flags["--takes"] = {"13"};
  resolved = run.resolve();
  CHECK(resolved.options.run.family == &reel_config());
  CHECK(resolved.origins[field_index("pipeline")] == "--takes");
}

TEST_CASE("a flag wins over the stage config, the task's, the family's and the common defaults") {
  Run run;
  run.file = kFile;
  CHECK(value(run.resolve(), "frames") == "33");
  CHECK(value(run.resolve(), "blur") == "0.75");
  CHECK(value(run.resolve(), "cfg_text_scale") == "1");
  run.variables["DIPTYCH_TAKES"] = "21";
  CHECK(value(run.resolve(), "frames") == "21");
  run.flags["--takes"] = {"13"};
  CHECK(value(run.resolve(), "frames") == "13");
  CHECK(run.resolve().options.run.own.get<ReelSettings>().frames == 13);

  Run plain;
  plain.flags["-m,--model"] = {"reel-1b"};
  const Resolved film = plain.resolve();
  CHECK(value(film, "frames") == "9");
  CHECK(value(film, "steps") == "8");
  CHECK(value(film, "blur") == "0.5");
  CHECK(config_table(film).find("frames: 9 ") != std::string::npos);
  CHECK(film.origins[field_index("frames", film.options.run.family->fields)] == "default");
  plain.inputs.push_back({MediaKind::picture, "a.png"});
  CHECK(value(plain.resolve(), "blur") == "0.25");
}

TEST_CASE("tasks are the family's, auto takes the first that fits") {
  Run run;
  run.file = kFile;
  CHECK(run.resolve().options.run.task == "film");
  CHECK(value(run.resolve(), "seed") == "42");
  run.inputs.push_back({MediaKind::picture, "a.png"});
  const Resolved caption = run.resolve();
  CHECK(caption.options.run.task == "caption");
  CHECK(caption.options.run.answers());
  CHECK(value(caption, "seed") == "7");
  run.flags["--task"] = {"film"};
  CHECK(run.error() == "--task film: reads no pictures, found --image; expected none");
  run.flags["--task"] = {"edit"};
  CHECK(run.error() == "--task: unknown value 'edit' (known: auto, film, caption)");
}

TEST_CASE("limits are the family's") {
  Run run;
  run.file = kFile;
  run.flags["--takes"] = {"4"};
  CHECK(run.error() == "--takes: 4 makes no reel; expected at least 5");
  run.flags.erase("--takes");
  run.flags["-W,--width"] = {"48"};
  CHECK(run.error() == "--width: 48 is not a multiple of 32; nearest are 32 and 64");
  run.flags.erase("-W,--width");
  run.flags["--steps"] = {"1"};
  CHECK(run.error() == "no error");
}

TEST_CASE("stages and their keys are the family's") {
  Run run;
  run.file = "pipeline: reel\nstages: [{stage_id: 0}, {stage_id: 1, blur: 1}]\n";
  CHECK(run.error().find("this stage paints; the key belongs to the one that encodes") !=
        std::string::npos);
  run.file = "pipeline: reel\nstages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2}]\n";
  CHECK(run.error() ==
        "f.yaml:2:9: stages: 3 stages; expected one that does all, or two: one encodes, one "
        "paints");
  run.file = "pipeline: reel\nstages: [{stage_id: 0, blur: 1, cfg_mode: sequential}]\n";
  CHECK(value(run.resolve(), "blur") == "1");
  run.file = "pipeline: bagel\nstages: [{stage_id: 0, default_sampling_params: {num_frames: 5}}]\n";
  CHECK(run.error().find("'5' is not supported") != std::string::npos);
}

TEST_CASE("a flag of another family is refused, its variable is not") {
  Run run;
  run.flags["-m,--model"] = {test::kTinyCheckpoint};
  run.variables["DIPTYCH_TAKES"] = "21";
  CHECK(run.error() == "no error");
  run.flags["--takes"] = {"13"};
  CHECK(run.error() == "--takes: belongs to the family reel, found the family bagel");
}

TEST_CASE("a common field that a family has no use for is refused, its variable is not") {
  Run run;
  run.file = kFile;
  run.variables["DIPTYCH_CFG_IMG_SCALE"] = "2";
  const Resolved resolved = run.resolve();
  CHECK(value(resolved, "cfg_img_scale") == "1");
  CHECK(config_table(resolved).find("\ncfg_img_scale: ") == std::string::npos);
  CHECK(config_table(resolved).find("\ncfg_text_scale: ") != std::string::npos);
  run.flags["--cfg-img-scale"] = {"1"};
  CHECK(run.error() == "--cfg-img-scale: the family reel has no use for it");
  run.flags.erase("--cfg-img-scale");
  run.file =
      "pipeline: reel\n"
      "stages:\n"
      "  - stage_id: 0\n"
      "    default_sampling_params: {extra_args: {cfg_img_scale: 2}}\n";
  CHECK(run.error() ==
        "f.yaml:4:59: stages.0.default_sampling_params.extra_args.cfg_img_scale: the family reel "
        "has no use for it");
  Run of_bagel;
  of_bagel.flags["-m,--model"] = {test::kTinyCheckpoint};
  of_bagel.flags["--cfg-img-scale"] = {"2"};
  CHECK(value(of_bagel.resolve(), "cfg_img_scale") == "2");
}

TEST_CASE("a flag of several fields sets those that a family uses") {
  Run run;
  run.file = kFile;
  run.flags["--attention"] = {"math"};
  const Resolved resolved = run.resolve();
  CHECK(value(resolved, "paint_attention") == "math");
  CHECK(value(resolved, "read_attention") == "auto");
}

TEST_CASE("a flag that no family uses is none") {
  const auto has = [](std::span<const FamilyConfig* const> families, std::string_view flags) {
    return std::ranges::count(flag_fields(families), flags, &Field::flags) == 1;
  };
  const FamilyConfig* reel[] = {&reel_config()};
  const FamilyConfig* both[] = {&reel_config(), &bagel_config()};
  CHECK_FALSE(has(reel, "--cfg-img-scale"));
  CHECK(has(both, "--cfg-img-scale"));
  CHECK(has(reel, "--steps"));
}

TEST_CASE("a family has reasons of its own for keys that it does not take") {
  const auto error = [](const char* pipeline, const char* key) {
    Run run;
    run.file =
        fmt::format("pipeline: {}\nstages: [{{stage_id: 0, default_sampling_params: {{{}: 2}}}}]\n",
                    pipeline, key);
    const std::string message = run.error();
    return message.substr(message.find("this version: "));
  };
  CHECK(error("reel", "strength") == "this version: a reel starts from noise; remove the key");
  CHECK(error("bagel", "strength").starts_with("this version: edits have no start picture"));
  CHECK(error("reel", "guidance_scale") ==
        "this version: this pipeline does not have it; remove the key");
  CHECK(error("bagel", "guidance_scale") ==
        "this version: set extra_args.cfg_text_scale and cfg_img_scale; remove the key");
}

TEST_CASE("fields of a family count as the common ones do") {
  RunConfig a = default_options(reel_config()).run, b = a;
  b.own.get<ReelSettings>().frames = 50;
  CHECK(may_share_forwards(a, b));
  b.own.get<ReelSettings>().blur = 50;
  CHECK_FALSE(may_share_forwards(a, b));
  CHECK_FALSE(may_share_forwards(a, default_options(bagel_config()).run));
  const FamilyConfig* families[] = {&bagel_config(), &reel_config(), &reel_config()};
  const std::vector<Field> flags = flag_fields(families);
  CHECK(std::ranges::count(flags, "--takes", &Field::flags) == 1);
  CHECK(std::ranges::count(flags, "--steps", &Field::flags) == 1);
}

}  // namespace
}  // namespace diptych
