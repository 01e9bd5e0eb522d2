// Wan and Cosmos as a careless user runs them, on the small checkpoints of the full recordings.
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/clip_formats.h"
#include "lib/base/text_file.h"
#include "lib/media/video/clip_read.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_model.h"
#include "tests/verify/goldens.h"

namespace {

namespace fs = std::filesystem;
using namespace diptych;
using diptych::test::has;
using diptych::test::kPicture;
using diptych::test::Outcome;
using diptych::test::refusal;
using diptych::test::run;
using diptych::test::with;
using diptych::test::Words;

// A whole checkpoint of the full recordings; empty where they are not.
fs::path checkpoint(const std::string& family, const std::string& name) {
  const fs::path folder = test::goldens_of(family).back() / name;
  return fs::exists(folder / "model_index.json") ? folder : fs::path();
}

// "wan/checkpoint" may be missing: the full recordings are not everywhere.
bool lacks_recordings() {
  if (!checkpoint("wan", "checkpoint").empty() && !checkpoint("cosmos", "checkpoint_t2i").empty())
    return false;
  test::skip("the full recordings are not here");
  return true;
}

std::string wan(const std::string& name = "checkpoint") {
  return checkpoint("wan", name).string();
}
std::string cosmos(const std::string& name) {
  return checkpoint("cosmos", name).string();
}

const Words kSmall = {"--size", "64x64", "--video-frames", "9", "--steps", "4"};

Words small(const std::string& model, const Words& more) {
  return with(with({"generate", "-m", model, "-p", "x", "--device", "cpu", "-q"}, kSmall), more);
}

std::string refused(const Words& words) {
  return refusal(run(words));
}

// The texts of a video that was just made.
PictureTexts made(const test::Folder& folder, const std::string& model, const Words& more) {
  const std::string file = folder.file("a.frames");
  const Outcome outcome = run(small(model, with(more, {"-o", file})));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return read_clip_texts(file);
}

std::string text_of(const PictureTexts& texts, std::string_view keyword) {
  for (const auto& [key, text] : texts) {
    if (key == keyword) return text;
  }
  return "";
}

// A copy of a checkpoint that tests may change: its files are links to the original ones.
class Copy {
 public:
  explicit Copy(const fs::path& model) {
    fs::create_directory(path());
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(model)) {
      const fs::path place = path() / entry.path().lexically_relative(model);
      if (entry.is_directory()) {
        fs::create_directory(place);
      } else {
        fs::create_symlink(entry.path(), place);
      }
    }
  }
  fs::path path() const { return folder_.path() / "model"; }
  std::string name() const { return path().string(); }
  std::string file(const std::string& name) const { return (path() / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    fs::remove(path() / name);
    std::ofstream(path() / name) << text;
  }
  void set(const std::string& name, const std::string& key, const nlohmann::json& value) const {
    nlohmann::json json = nlohmann::json::parse(read_text_file(path() / name));
    json[key] = value;
    write(name, json.dump());
  }

 private:
  test::Folder folder_;
};

// What a configuration whose key is another one makes generate say; inspect says it, too.
std::string broken(const fs::path& model, const std::string& file, const std::string& key,
                   const nlohmann::json& value) {
  const Copy copy(model);
  copy.set(file, key, value);
  const std::string said =
      refused({"generate", "-m", copy.name(), "-p", "x", "--device", "cpu", "-q", "--size", "64x64",
               "--task", "t2i", "-o", copy.file("x.png")});
  const Outcome inspected = run({"inspect", copy.name()});
  CHECK(inspected.code != 0);
  CHECK_FALSE(has(inspected.out, "complete"));
  return said;
}

TEST_SUITE_BEGIN("needs goldens");

TEST_CASE("a video comes out again: in bfloat16, with TeaCache of the model's own coefficients") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  const std::string file = folder.file("a.frames");
  for (const Words& more : {Words{"--dtype", "bf16"}, Words{"--cache-mode", "teacache"},
                            Words{"--cache-mode", "teacache", "--teacache-ret-steps",
                                  "--teacache-coefficients", "0,0,0,1,0"}}) {
    made(folder, wan(), more);
    const Outcome again = run({"inspect", file, "--replay", "-q", "-m", wan(), "--device", "cpu"});
    CAPTURE(again.err);
    CHECK(again.code == 0);
    CHECK(has(again.out, "identical"));
    CHECK_FALSE(has(again.out, "VAE dtype"));
    fs::remove_all(file);
  }
}

TEST_CASE("TeaCache goes by a calibration where nothing is published, or where one is given") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  struct Model {
    std::string folder, task, output;
    Words more = {};
  };
  const std::vector<Model> models = {
      {wan(), "t2i", folder.file("a.png")},
      {wan("checkpoint_a14b"), "t2v", folder.file("b.frames"), {"--video-frames", "5"}},
      {cosmos("checkpoint_t2i"), "t2i", folder.file("c.png")}};
  for (const Model& model : models) {
    CAPTURE(model.folder);
    const std::string file = folder.file("c.json");
    const Words words = with({"-m", model.folder, "--task", model.task, "--size", "32x32",
                              "--device", "cpu", "--steps", "20"},
                             model.more);
    const Outcome calibrated =
        run(with(with({"calibrate"}, words), {"--pictures", "2", "-o", file}));
    CAPTURE(calibrated.err);
    REQUIRE(calibrated.code == 0);
    const Words paint =
        with(with({"generate", "-p", "x", "--cache-mode", "teacache", "--cache-calibration", file},
                  words),
             {"-o", model.output});
    const Outcome made = run(with(paint, {"--cache-threshold", "0.3", "--cache-report"}));
    CAPTURE(made.err);
    REQUIRE(made.code == 0);
    CHECK(has(made.err, "TeaCache computed "));
    CHECK_FALSE(has(made.err, "TeaCache computed 20 of 20"));
    CHECK_FALSE(has(made.err, "TeaCache computed 19 of 19"));
    const Outcome again =
        run({"inspect", model.output, "--replay", "-q", "-m", model.folder, "--device", "cpu"});
    CAPTURE(again.err);
    CHECK(has(again.out, "identical"));
    CHECK(has(refused(with(paint, {"--quantization", "int8"})), ": weights_hash: measured on "));
  }
}

TEST_CASE("TaylorSeer leaves out steps of every model, and a report says what that changes") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  struct Model {
    std::string folder;
    std::string output, note;  // note: of 12 steps
    std::int64_t forwards, of;
    Words more = {};
  };
  const std::vector<Model> models = {
      {wan(), folder.file("a.frames"), "7 of 12", 14, 24},
      {wan("checkpoint_a14b"), folder.file("b.frames"), "10 of 12", 20, 24},  // from two series
      {cosmos("checkpoint_t2i"), folder.file("c.png"), "7 of 11", 14, 22},
      // whose noise is drawn behind that of what is given
      {cosmos("checkpoint_v2w"), folder.file("d.frames"), "7 of 11", 14, 22, {"-i", kPicture}}};
  for (const Model& model : models) {
    CAPTURE(model.folder);
    const Words words = {"generate",   "-m",    model.folder, "-p",  "x",
                         "--size",     "32x32", "--device",   "cpu", "--cache-mode",
                         "taylorseer", "-o",    model.output};
    const Words frames = model.output.ends_with(".png") ? Words{} : Words{"--video-frames", "5"};
    const Outcome made =
        run(with(with(with(words, frames), model.more), {"--steps", "12", "--cache-report"}));
    CAPTURE(made.err);
    REQUIRE(made.code == 0);
    CHECK(has(made.err, "TaylorSeer computed " + model.note + " steps"));
    CHECK(has(made.err, std::to_string(model.forwards) + " of " + std::to_string(model.of) +
                            " branch forwards"));
    const Outcome again =
        run(with({"inspect", model.output, "--replay", "-q", "-m", model.folder, "--device", "cpu"},
                 model.more));
    CHECK(again.code == 0);
    CHECK(has(again.out, "identical"));
  }
}

TEST_CASE("--cfg-mode auto measures once, and a line says why branches run one by one") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  const Words common = {"--size", "32x32", "--steps", "3", "--device", "cpu"};
  const auto told = [&](const std::string& model, const Words& more) {
    const Outcome outcome = run(with(with({"generate", "-m", model, "-p", "x"}, common), more));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string measured = told(wan(), {"--video-frames", "5", "--cfg-mode", "auto", "-b", "2",
                                            "-o", folder.file("a.frames")});
  CHECK(count(measured, "--cfg-mode auto: ") == 1);
  CHECK(has(measured, " for 32x32, 5 frames (a step: batched "));
  CHECK(has(told(cosmos("checkpoint_t2i"), {"--cfg-mode", "auto", "-o", folder.file("a.png")}),
            " for 32x32, 1 frame (a step: batched "));
  const std::string sequential = "guidance runs sequentially: ";
  for (const std::string asked : {"auto", "batched"}) {
    const Words mode = {"--video-frames",
                        "5",
                        "--cfg-mode",
                        asked,
                        "-b",
                        "2",
                        "-o",
                        folder.file(asked + ".frames")};
    const std::string with_picture = told(wan("checkpoint_ti2v"), with(mode, {"-i", kPicture}));
    CHECK(count(with_picture, sequential + "the steps are conditioned by the input picture") == 1);
    fs::remove_all(folder.file(asked + ".frames"));
    const std::string gated = told(wan(), with(mode, {"--cfg-gate", "0.5"}));
    CHECK(count(gated, sequential + "adaptive guidance leaves out a branch of later steps") == 1);
    CHECK_FALSE(has(gated, "--cfg-mode auto: "));
    fs::remove_all(folder.file(asked + ".frames"));
  }
}

TEST_CASE("the web UI's text lists what the family uses") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  const std::string text =
      text_of(made(folder, wan("checkpoint_a14b"), {"--cfg-gate", "0.5", "--negative-prompt", ""}),
              "parameters");
  CAPTURE(text);
  CHECK(has(text, "Steps: 4, Sampler: unipc, CFG scale: 4, Seed: 42, Size: 64x64, Frames: 9, "));
  CHECK(has(text, "Guidance scale 2: 3"));
  CHECK(has(text, "Cfg gate: 0.5"));
  CHECK(has(text, "Boundary ratio: 0.875"));
  for (const char* absent : {"Image CFG", "CFG interval", "renorm", "Step cache"})
    CHECK_FALSE(has(text, absent));
  fs::remove_all(folder.file("a.frames"));
  const std::string cached =
      text_of(made(folder, wan(), {"--cache-mode", "teacache"}), "parameters");
  CAPTURE(cached);
  CHECK(has(cached, "Step cache: teacache, Step cache threshold: "));
  CHECK_FALSE(has(cached, "Guidance scale 2"));
}

TEST_CASE("configs that name fewer layers than the files hold are refused") {
  if (lacks_recordings()) return;
  const char* const spare = "unexpected tensors that the model does not have: ";
  const fs::path t2v = checkpoint("wan", "checkpoint"),
                 t2i = checkpoint("cosmos", "checkpoint_t2i");
  CHECK(has(broken(t2v, "transformer/config.json", "num_layers", 1), spare));
  CHECK(has(broken(t2v, "transformer/config.json", "cross_attn_norm", false), spare));
  CHECK(has(broken(t2v, "text_encoder/config.json", "num_layers", 1), spare));
  CHECK(has(broken(t2i, "text_encoder/config.json", "num_layers", 1), spare));
  CHECK(has(broken(t2i, "transformer/config.json", "num_layers", 1), spare));
  const auto inspected = [](const std::function<void(const fs::path&)>& change) {
    const test::Folder folder;
    const fs::path copy = folder.path() / "c";
    fs::copy(checkpoint("wan", "checkpoint"), copy, fs::copy_options::recursive);
    change(copy);
    const Outcome outcome = run({"inspect", copy.string()});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 1);
    CHECK(has(outcome.out, "wan layout: 1 problem\n"));
    CHECK(has(outcome.out, "transformer/diffusion_pytorch_model.safetensors: "));
    return outcome.out;
  };
  CHECK(has(
      inspected([](const fs::path& copy) { fs::remove(copy / "scheduler/scheduler_config.json"); }),
      "scheduler_config.json: is missing\n"));
  CHECK(has(inspected([](const fs::path& copy) {
              fs::resize_file(copy / "vae/diffusion_pytorch_model.safetensors", 5000);
            }),
            "truncated?\n"));
  CHECK(run({"inspect", wan()}).code == 0);
  CHECK(run({"inspect", wan("checkpoint_i2v")}).code == 0);
  CHECK(run({"inspect", cosmos("checkpoint_v2w")}).code == 0);
}

TEST_CASE("configs that contradict what runs are refused") {
  if (lacks_recordings()) return;
  const fs::path t2v = checkpoint("wan", "checkpoint"), a14b = checkpoint("wan", "checkpoint_a14b"),
                 t2i = checkpoint("cosmos", "checkpoint_t2i");
  const char* const scheduler = "scheduler/scheduler_config.json";
  CHECK(has(broken(t2v, scheduler, "prediction_type", "epsilon"),
            "prediction_type: found \"epsilon\", expected \"flow_prediction\""));
  CHECK(has(broken(t2v, scheduler, "_class_name", "DDIMScheduler"), "_class_name: found "));
  CHECK(has(broken(t2v, scheduler, "num_train_timesteps", 100), "expected 1000"));
  CHECK(has(broken(t2v, scheduler, "solver_order", 3), "expected 2"));
  CHECK(has(broken(t2v, "transformer/config.json", "_class_name", "FluxTransformer2DModel"),
            "_class_name: found "));
  CHECK(has(broken(a14b, "model_index.json", "boundary_ratio", 5),
            "boundary_ratio: found 5, expected 0 to 1"));
  CHECK(has(broken(a14b, "transformer_2/config.json", "eps", 0.1), "differs from "));
  CHECK(has(broken(t2i, "model_index.json", "_class_name", "Cosmos2VideoToWorldPipeline"),
            "in_channels: found 16, expected 17"));
}

TEST_CASE("flags that have no effect are refused") {
  if (lacks_recordings()) return;
  const auto said = [](const std::string& model, const Words& more) {
    return refused(small(model, with(more, {"-o", "x.frames"})));
  };
  const std::string no_cache = ": given without --cache-mode teacache\n";
  CHECK(said(wan(), {"--teacache-coefficients", "no"}) == "--teacache-coefficients" + no_cache);
  CHECK(said(wan(), {"--teacache-first-steps", "2"}) == "--teacache-first-steps" + no_cache);
  CHECK(said(wan(), {"--teacache-ret-steps"}) == "--teacache-ret-steps" + no_cache);
  CHECK(
      said(wan(), {"--cache-mode", "teacache", "--teacache-coefficients", "1,2,3,4,nan"}) ==
      "--teacache-coefficients 1,2,3,4,nan: expected 5 finite numbers with commas between them\n");
  const std::string one = ": has no effect on a model with one transformer\n";
  CHECK(said(wan(), {"--guidance-scale-2", "3"}) == "--guidance-scale-2" + one);
  CHECK(said(wan(), {"--boundary-ratio", "0.5"}) == "--boundary-ratio" + one);
  CHECK(has(said(wan("checkpoint_a14b"), {"--guidance-scale-2", "9", "--cfg-scale", "1"}),
            "--guidance-scale-2: has no effect without text guidance"));
  const std::string folder = ": has no effect with a folder, whose configs have the sizes\n";
  CHECK(said(wan(), {"--release", "t2v-14b"}) == "--release" + folder);
  CHECK(refused({"generate", "-m", cosmos("checkpoint_t2i"), "-p", "x", "-o", "x.png",
                 "--cosmos-release", "2b-t2i"}) == "--cosmos-release" + folder);
  CHECK(said(wan("checkpoint_a14b"),
             {"--cache-mode", "teacache", "--teacache-coefficients", "0,0,0,1,0"}) ==
        "--teacache-coefficients: has no effect on a model with two transformers, whose steps a "
        "calibration chooses\n");
  CHECK(said(wan(), {"--cache-mode", "teacache", "--cache-calibration", "c.json",
                     "--teacache-ret-steps"}) ==
        "--teacache-ret-steps: has no effect with --cache-calibration\n");
  CHECK(has(
      refused(with({"calibrate", "-m", wan("checkpoint_a14b"), "--task", "t2v", "--device", "cpu",
                    "-o", "x.json"},
                   {"--size", "32x32", "--video-frames", "5", "--steps", "11", "--pictures", "1"})),
      " for 1 picture give at most 18 samples, expected at least 20"));
  for (const std::string& model : {cosmos("checkpoint_t2i"), wan("checkpoint_a14b")}) {
    CHECK(refused({"generate", "-m", model, "-p", "x", "--task", "t2i", "-o", "x.png", "--device",
                   "cpu", "--size", "32x32", "--cache-mode", "teacache"}) ==
          "--cache-mode teacache: " + model +
              "/diptych_teacache.json is not there; `diptych calibrate` writes it, "
              "or with -o another one for --cache-calibration\n");
    CHECK(refused({"generate", "-m", model, "-p", "x", "--task", "t2i", "-o", "x.png", "--device",
                   "cpu", "--size", "32x32", "--cache-mode", "teacache", "--cache-calibration",
                   "none.json"}) ==
          "--cache-calibration none.json: is not there; `diptych calibrate` writes such a file\n");
  }
}

TEST_CASE("items of a list are refused likewise") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  folder.write("list.jsonl", R"({"prompt": "x", "guidance_scale_2": 3})"
                             "\n");
  const Outcome outcome = run({"batch", folder.file("list.jsonl"), "-m", wan(), "-o",
                               folder.file("out"), "--device", "cpu", "-q"});
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "guidance_scale_2: has no effect on a model with one transformer"));
}

TEST_CASE("items that share forwards are recorded and come out again") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  // More texts than are kept; some sizes share with none.
  std::string list;
  for (int i = 0; i < 270; ++i)
    list += fmt::format("{{\"prompt\": \"{} cats\", \"seed\": {}, \"size\": \"{}\"}}\n", i, i,
                        i % 9 == 8 ? "48x32" : "32x32");
  folder.write("list.jsonl", list);
  for (const std::string& model : {wan(), cosmos("checkpoint_t2i")}) {
    CAPTURE(model);
    const std::string out = folder.file(fs::path(model).parent_path().filename().string());
    const Outcome outcome =
        run({"batch", folder.file("list.jsonl"), "-m", model, "-o", out, "--task", "t2i", "--steps",
             "2", "--device", "cpu", "--batch-size", "4"});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, "270 items: 270 done, 0 failed, 0 skipped in "));
    CHECK_FALSE(test::record_of(out + "/0269.png").contains("together"));
    for (const char* name : {"/0001.png", "/0268.png"}) {
      CAPTURE(name);
      CHECK(test::record_of(out + name)["together"]["others"].size() == 3);
      const Outcome again = run({"inspect", out + name, "--replay", "--model", model, "-q"});
      CAPTURE(again.err);
      CHECK(has(again.out, ": identical, "));
    }
  }
}

TEST_CASE("a flag that one family alone has names the family") {
  const Outcome printed =
      run({"generate", "--load-format", "dummy", "--release", "t2v-1.3b", "--print-config"});
  CHECK(printed.code == 0);
  CHECK(has(printed.out, "pipeline: wan"));
  CHECK(has(printed.out, "release: t2v-1.3b"));
  const Outcome other =
      run({"generate", "--load-format", "dummy", "--cosmos-release", "2b-v2w", "--print-config"});
  CHECK(has(other.out, "pipeline: cosmos"));
}

TEST_CASE("the help has an example that each family can run, and whose a default is") {
  const std::string help =
      std::regex_replace(run({"generate", "--help"}).out, std::regex("\\s+"), " ");
  for (const char* example :
       {"-m Lance --task t2v -p", "-m Wan2.1-T2V-1.3B-Diffusers --task t2v -p",
        "-m Cosmos-Predict2-2B-Video2World --task i2v -i boat.png -p"})
    CHECK(has(help, example));
  CHECK(has(help, "[bagel: 50; lance: 30; wan: depends on the model; cosmos: 35]"));
  CHECK(has(help, "--sampler unipc|"));
}

TEST_CASE("a folder that is missing or of no known model is said first") {
  const test::Folder folder;
  const std::string missing = folder.file("Wan2.1");
  CHECK(refused({"generate", "-m", missing, "-p", "x", "-o", "boat.mp4", "--video-frames", "9"}) ==
        "--model: " + missing + ": not found; expected a folder\n");
  const std::string none = folder.path().string();
  const auto said = [&] {
    return refused({"generate", "-m", none, "-p", "x", "-o", "boat.mp4", "--video-frames", "9"});
  };
  const std::string known = "--model: " + none + ": holds no checkpoint of ";
  CHECK(said().starts_with(known));
  fs::create_directory(folder.path() / "transformer");
  CHECK(has(said(), ": it has no model_index.json\n"));
  folder.write("model_index.json", "{}");
  CHECK(has(said(), ": its model_index.json has no _class_name\n"));
  folder.write("model_index.json", R"({"_class_name": "FluxPipeline"})");
  CHECK(has(said(), ": its model_index.json is of a FluxPipeline\n"));
  folder.write("model_index.json", "");
  CHECK(has(said(), "model_index.json: is empty, expected JSON\n"));
  folder.write("model_index.json", R"({"_class_name": "WanPi)");
  CHECK(has(said(), "truncated?\n"));
}

TEST_CASE("what is made from more than a text says so") {
  if (lacks_recordings()) return;
  const auto said = [](const std::string& model, const Words& more) {
    return refused(with({"generate", "-m", model, "-p", "x", "--device", "cpu", "-q"}, more));
  };
  CHECK(said(cosmos("checkpoint_v2w"), {"-o", "x.frames"}) ==
        "--image: not given; cosmos makes videos from --image FILE or --video FILE\n");
  CHECK(said(cosmos("checkpoint_v2w"), {"-i", kPicture, "-i", kPicture, "-o", "x.frames"}) ==
        "--image: no task of cosmos that makes videos reads 2 pictures\n");
  CHECK(said(cosmos("checkpoint_t2i"), {"-i", kPicture, "-o", "x.png"}) ==
        "--image: no task of cosmos that makes pictures reads pictures\n");
  CHECK(said(wan("checkpoint_i2v"), {"-o", "x.frames"}) ==
        "--image: not given; the model in " + wan("checkpoint_i2v") +
            " makes videos that begin with a picture\n");
  const std::string released = DIPTYCH_SOURCE_DIR "/stage_configs/wan2.1_i2v_14b.yaml";
  CHECK(refused({"generate", "-c", released, "--load-format", "dummy", "-p", "x", "-o", "x.frames",
                 "--device", "cpu", "-q"}) ==
        "--image: not given; this model makes videos that begin with a picture\n");
  CHECK(said(wan(), {"-o", "x.frames", "--size", "64x64", "--resolution", "480p"}) ==
        "--resolution: given together with --size, which says the same; expected one "
        "of them\n");
}

TEST_CASE("without a size a video from a picture has the picture's shape") {
  if (lacks_recordings()) return;
  for (const char* checkpoint : {"checkpoint_i2v", "checkpoint_ti2v"}) {
    const Words request = {"generate", "-m",       wan(checkpoint), "-p", "x", "-i", kPicture,
                           "-o",       "x.frames", "--print-config"};
    const Outcome picture = run(request);
    CAPTURE(picture.out);
    CHECK(has(picture.out, "width: auto"));
    CHECK(has(picture.out, "height: auto"));
    CHECK(has(run(with(request, {"--size", "64x32"})).out, "width: 64"));
  }
  CHECK(has(run({"generate", "-m", wan(), "-p", "x", "-o", "x.frames", "--print-config"}).out,
            "width: 832"));
}

TEST_CASE("the name of a LoRA file may be any bytes") {
  if (lacks_recordings()) return;
  CHECK(
      refused({"generate", "-m", wan(), "-p", "x", "-o", "x.frames", "--lora", "\xff.safetensors"})
          .ends_with("--lora: \\xFF.safetensors: cannot be read: No such file or directory\n"));
}

TEST_CASE("--lora-diffs without a LoRA file is refused") {
  if (lacks_recordings()) return;
  CHECK(refused({"generate", "-m", wan(), "-p", "x", "-o", "x.frames", "--lora-diffs", "all"}) ==
        "--lora-diffs: given without --lora\n");
}

TEST_CASE("a prompt that is cut is told by its first words") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  std::string prompt = "a cat";
  for (int i = 0; i < 600; ++i) prompt += " and a cat";
  const Outcome outcome =
      run({"generate", "-m", wan(), "-p", prompt, "--task", "t2i", "--size", "32x32", "--steps",
           "2", "--device", "cpu", "-o", folder.file("a.png")});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err, "[WARN ] --prompt: \"a cat and a cat and a cat"));
  CHECK(has(outcome.err, " tokens, of which the model reads the first 512\n"));
}

TEST_CASE("a stage config of one family and a folder of another") {
  if (lacks_recordings()) return;
  CHECK(has(refused({"generate", "-c", test::kTinyConfig, "-m", wan(), "-p", "x", "-o", "x.png"}),
            "holds a checkpoint of the family wan, but " + test::kTinyConfig));
  const std::string recorded =
      (test::goldens_of("wan").back() / "cases/t2v_unipc_sequential").string();
  CHECK(has(refused({"verify", recorded, "-m", cosmos("checkpoint_t2i")}),
            "(with the checkpoint of cosmos in " + cosmos("checkpoint_t2i") + ")"));
}

TEST_CASE("guidance that runs sequentially is no warning") {
  if (lacks_recordings()) return;
  const test::Folder folder;
  const Outcome outcome = run({"generate", "-m", wan("checkpoint_i2v"), "-i", kPicture, "-p", "x",
                               "--steps", "2", "--video-frames", "5", "--size", "64x64", "--device",
                               "cpu", "-o", folder.file("a.frames")});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_FALSE(has(outcome.err, "[WARN"));
}

TEST_SUITE_END();

}  // namespace
