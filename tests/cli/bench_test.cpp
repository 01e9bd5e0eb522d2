// `diptych bench` from the outside: what it measures, compares, keeps and refuses.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "lib/base/sha256.h"
#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::Outcome;
using test::run;
using test::Words;
using Json = nlohmann::json;

Words command(const Words& more) {
  Words words = {"bench", "-m", kTinyCheckpoint, "--device", "cpu", "--dtype", "float32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome bench(const Words& more) {
  const Outcome outcome = run(command(more));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

Json measured(Words more) {
  more.insert(more.end(), {"--json", "-", "-q"});
  return Json::parse(bench(more).out);
}

std::string refusal(const Words& more) {
  return test::refusal(run(command(more)));
}

double sum_of_stages(const Json& one) {
  double sum = 0;
  for (const auto& [stage, seconds] : one["stages"].items()) sum += seconds.get<double>();
  return sum;
}

TEST_CASE("every size is run as often as asked, and each stage is told") {
  const Json json = measured({"--sizes", "48x32,64x48", "--steps", "5", "--repeats", "3",
                              "--warmup", "2", "--warmup-steps", "2"});
  CHECK(json["schema"] == "diptych.bench");
  CHECK(json["libtorch"].get<std::string>().starts_with("2."));
  CHECK(json["models"].size() == 1);
  CHECK(json["models"][0]["weights_hash"].get<std::string>().size() == 33);
  CHECK(json["models"][0]["load_seconds"] > 0);
  CHECK(json["peak_host_bytes"] > 1'000'000);
  REQUIRE(json["cases"].size() == 2);
  CHECK(json["cases"][0]["name"] == "48x32");
  CHECK(json["cases"][1]["name"] == "64x48");
  for (const Json& each : json["cases"]) {
    REQUIRE(each["settings"].size() == 1);
    const Json& setting = each["settings"][0];
    CHECK(setting["label"] == "base");
    CHECK(setting["requested"]["steps"] == 5);
    CHECK(setting["inputs"][0]["text"] == "A small red fox sits under an old oak tree.");
    CHECK(setting["ran"]["updates"] == 4);
    CHECK(setting["ran"]["forwards"] == 8);
    CHECK(setting["ran"]["cfg_mode"] == "batched");
    CHECK(setting["ran"]["step_graphs"] == false);
    CHECK(setting["ran"]["kept_step_graphs"] == false);
    CHECK(setting["ran"]["dtype"] == "float32");
    CHECK(setting["repeatable"] == true);
    CHECK(setting["warmup_runs"].size() == 2);
    REQUIRE(setting["runs"].size() == 3);
    std::vector<double> seconds, steps;
    double told = 0;  // of a run's seconds, where least came between its stages
    for (const Json& one : setting["runs"]) {
      for (const char* stage : {"prefill", "denoise", "vae", "encode"})
        CHECK(one["stages"][stage] > 0);
      CHECK(sum_of_stages(one) <= one["seconds"].get<double>());
      told = std::max(told, sum_of_stages(one) / one["seconds"].get<double>());
      seconds.push_back(one["seconds"]);
      steps.push_back(one["stages"]["denoise"].get<double>() / 4);
    }
    CHECK(told > 0.5);
    std::ranges::sort(seconds), std::ranges::sort(steps);
    CHECK(setting["seconds_per_image"]["min"].get<double>() == doctest::Approx(seconds[0]));
    CHECK(setting["seconds_per_image"]["median"].get<double>() == doctest::Approx(seconds[1]));
    CHECK(setting["seconds_per_step"]["median"].get<double>() == doctest::Approx(steps[1]));
    CHECK(setting["seconds_per_step"]["iqr"].get<double>() ==
          doctest::Approx((steps[2] - steps[0]) / 2));
  }
}

TEST_CASE("two settings run in turn, and their pictures are held against each other") {
  const Folder folder;
  const std::string file = folder.file("bench.json"), kept = folder.file("kept");
  const Outcome outcome =
      bench({"--size", "48x32", "--steps", "5", "--repeats", "2", "-b", "2", "--against",
             "cfg_mode=sequential", "--json", file, "--save-dir", kept});
  CHECK(has(outcome.out, "48x32, base: float32, kernels automatic, attention "));
  CHECK(has(outcome.out, "48x32, cfg_mode=sequential / base, of 2 pairs:\n  an image "));
  CHECK(has(outcome.out, "\n  picture 1: SSIM "));
  CHECK(has(outcome.out, "; latent: "));
  CHECK(outcome.out.ends_with("\n" + file + "\n"));
  const Json json = Json::parse(std::ifstream(file));
  CHECK(json["models"].size() == 1);
  const Json &each = json["cases"][0], &a = each["settings"][0], &b = each["settings"][1];
  CHECK(a["ran"]["cfg_mode"] == "batched");
  CHECK(b["ran"]["cfg_mode"] == "sequential");
  CHECK(b["label"] == "cfg_mode=sequential");
  CHECK(b["requested"]["cfg_mode"] == "sequential");
  std::vector<double> ratios;
  for (std::size_t i = 0; i < 2; ++i)
    ratios.push_back(b["runs"][i]["seconds"].get<double>() / a["runs"][i]["seconds"].get<double>());
  const Json& comparison = each["comparison"];
  CHECK(comparison["seconds_per_image"]["median"].get<double>() ==
        doctest::Approx((ratios[0] + ratios[1]) / 2));
  REQUIRE(comparison["pictures"].size() == 2);
  CHECK(comparison["pictures"][0]["ssim"] > 0.9999);
  CHECK(comparison["pictures"][0]["max_abs"] <= 1);
  CHECK(comparison["pictures"][0]["latent_cosine"] > 0.999999);
  CHECK(comparison["pictures"][0]["latent_max_abs"] < 1e-4);
  // What was kept is what was measured, and what generate paints.
  const Json& second = b["pictures"][1];
  CHECK(second["seed"] == 43);
  CHECK(second["file"] == "48x32-b-001.png");
  const std::string picture = kept + "/48x32-b-001.png";
  CHECK(second["sha256"] == file_sha256(picture));
  CHECK(run(Words{"inspect", picture, "--replay", "-m", kTinyCheckpoint, "-q"}).code == 0);
  for (const char* name : {"48x32-a-000.png", "48x32-a-001.png", "48x32-b-000.png"})
    CHECK(read_png(kept + "/" + name).rgb.size(1) == 48);
}

TEST_CASE("another dtype needs a model of its own; another seed paints another picture") {
  const Json json = measured({"--size", "48x32", "--steps", "4", "--repeats", "1", "--against",
                              "dtype=bfloat16", "--against", "seed=7"});
  REQUIRE(json["models"].size() == 2);
  CHECK(json["models"][1]["label"] == "dtype=bfloat16 seed=7");
  CHECK(json["cases"][0]["settings"][0]["ran"]["dtype"] == "float32");
  CHECK(json["cases"][0]["settings"][1]["ran"]["dtype"] == "bfloat16");
  CHECK(json["cases"][0]["comparison"]["pictures"][0]["max_abs"] > 10);
}

TEST_CASE("answers and plans are counted in tokens") {
  const Folder folder;
  const Json answer =
      measured({"--task", "chat", "-p", "what is this?", "--max-tokens", "12", "--repeats", "2",
                "--against", "max_tokens=4", "--save-dir", folder.file("kept")});
  const Json& each = answer["cases"][0];
  CHECK(each["name"] == "chat");
  const Json &base = each["settings"][0], &shorter = each["settings"][1];
  const Json& one = base["runs"][0];
  CHECK(one["tokens"] == 12);
  CHECK(shorter["runs"][0]["tokens"] == 4);
  CHECK(one["stages"]["text"].get<double>() == one["token_seconds"].get<double>());
  CHECK(one["stages"]["prefill"] > 0);
  CHECK(base["tokens_per_second"]["median"] > 0);
  CHECK_FALSE(base.contains("seconds_per_step"));
  CHECK(each["comparison"]["same_answer"] == false);
  CHECK(shorter["file"] == "chat-b.txt");
  std::ifstream kept(folder.file("kept/chat-b.txt"));
  CHECK(std::string(std::istreambuf_iterator(kept), {}) ==
        shorter["answer"].get<std::string>() + "\n");
  CHECK(each["comparison"]["seconds_per_token"]["median"] > 0);
  const Json plan = measured(
      {"--size", "32x32", "--steps", "3", "--repeats", "1", "--think", "--max-think-tokens", "6"});
  CHECK(plan["cases"][0]["settings"][0]["runs"][0]["tokens"] == 6);
  CHECK(plan["cases"][0]["settings"][0]["seconds_per_step"]["min"] > 0);
}

TEST_CASE("an edited picture keeps the size it was read with") {
  const Json json =
      measured({"-i", test::kPicture, "-p", "make it blue", "--steps", "3", "--repeats", "1"});
  const Json& setting = json["cases"][0]["settings"][0];
  CHECK(json["cases"][0]["name"] == "edit");
  CHECK(setting["ran"]["forwards"] == 6);
  CHECK(setting["inputs"][0]["file_sha256"] == file_sha256(test::kPicture));
}

TEST_CASE("--cfg-mode auto says what it chose, once, and runs it") {
  const Outcome outcome = bench({"--size", "48x32", "--steps", "4", "--repeats", "3", "--cfg-mode",
                                 "auto", "--warmup", "0", "--json", "-"});
  const std::size_t said = outcome.err.find("--cfg-mode auto: ");
  REQUIRE(said != std::string::npos);
  CHECK(outcome.err.find("--cfg-mode auto: ", said + 1) == std::string::npos);
  const Json json = Json::parse(outcome.out), setting = json["cases"][0]["settings"][0];
  const std::string chosen = setting["ran"]["cfg_mode"];
  CHECK(outcome.err.substr(said + 17).starts_with(chosen + " for 48x32, 2 contexts of up to "));
  CHECK(setting["requested"]["cfg_mode"] == "auto");
  CHECK(setting["runs"][0]["stages"]["measure"] > 0);
  CHECK_FALSE(setting["runs"][1]["stages"].contains("measure"));
}

TEST_CASE("a picture that cannot be kept is a failure") {
  const Folder folder;
  test::Command failing;
  failing.arguments = command(
      {"--size", "48x32", "--steps", "2", "--repeats", "1", "--save-dir", folder.file("kept")});
  failing.before_exec = [] {
    const rlimit limit{512, 512};  // bytes of a file; the picture is larger
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome = run(failing);
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, folder.file("kept") + "/48x32.png"));
  CHECK(folder.names().empty());
}

TEST_CASE("what bench reads is not what it writes") {
  const Folder folder;
  const std::string picture = folder.file("edit.png");
  std::filesystem::copy(test::kPicture, picture);
  const auto sha256 = file_sha256(picture);
  const Words edit = {"-i",      picture, "-p",         "make it blue",
                      "--steps", "3",     "--save-dir", folder.file("")};
  CHECK(has(refusal(edit), "--save-dir: " + folder.file("") + "edit.png: is an input picture"));
  CHECK(file_sha256(picture) == sha256);
  const std::string config = std::string(kTinyCheckpoint) + "/config.json";
  CHECK(has(refusal({"--json", config, "--check-config"}),
            "--json: " + config + ": is a file of the model"));
}

TEST_CASE("a cache report that a stage config asks for is not measured") {
  const Folder folder;
  folder.write("f.yaml",
               "stages: [{stage_id: 0, cache_mode: taylorseer, cache_report: true,"
               " default_sampling_params: {width: 48, height: 32, num_inference_steps: 5}}]\n");
  const Outcome outcome = bench({"-c", folder.file("f.yaml"), "--repeats", "1", "--json", "-"});
  CHECK(has(outcome.err, "cache_report has no effect on this verb"));
  const Json setting = Json::parse(outcome.out)["cases"][0]["settings"][0];
  CHECK(setting["requested"]["cache_mode"] == "taylorseer");
  CHECK_FALSE(setting["runs"][0]["stages"].contains("uncached"));
}

TEST_CASE("flags of bench may come from variables") {
  test::Command from_variables;
  from_variables.arguments = command({"--size", "48x32", "--steps", "3", "-q"});
  from_variables.environment = {{"DIPTYCH_REPEATS", "2"},     {"DIPTYCH_WARMUP", "0"},
                                {"DIPTYCH_BENCH_JSON", "-"},  {"DIPTYCH_FLOOR", "false"},
                                {"DIPTYCH_KERNEL_TIMES", ""}, {"DIPTYCH_SAVE_DIR", ""}};
  const Outcome outcome = run(from_variables);
  CHECK(outcome.err.empty());
  const Json json = Json::parse(outcome.out);
  CHECK(json["cases"][0]["settings"][0]["runs"].size() == 2);
  CHECK(json["cases"][0]["settings"][0]["warmup_runs"].empty());
}

TEST_CASE("what bench refuses") {
  const Folder folder;
  folder.write("file", "");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--steps", "1"}, "--steps: 1 makes 0 updates"},
      {{"--warmup-steps", "1"}, "--warmup-steps: 1 is out of range; expected 2 to "},
      {{"--warmup", "0", "--warmup-steps", "3"}, "--warmup-steps: given together with --warmup 0"},
      {{"--repeats", "0"}, "--repeats: 0 is out of range; expected 1 to "},
      {{"--sizes", "48x32,"}, "--sizes: '' is not a size"},
      {{"--sizes", "48x30"}, "--sizes: height: 30 "},
      {{"--sizes", "48x32,48x32"}, "--sizes: 48x32 given twice"},
      {{"--sizes", "48x32", "-W", "64"}, "--width: given together with --sizes"},
      {{"--sizes", "48x32,4096x32"}, "--sizes: width: found 4096"},
      {{"--sizes", "48x32", "--task", "chat"}, "--sizes: has no meaning for --task chat"},
      {{"--against", "x"}, "--against: 'x' is no KEY=VALUE"},
      {{"--against", "cfgmode=x"}, "--against: unknown key 'cfgmode' (did you mean 'cfg_mode'?"},
      {{"--against", "cfg_mode=both"}, "--against: cfg_mode: unknown value 'both'"},
      {{"--against", "cfg-mode=batched"}, "--against: 'cfg-mode=batched' is what the request has"},
      {{"--against", "task=chat"}, "--against: unknown key 'task'"},
      {{"--against", "seed=1", "--against", "seed=2"}, "--against: seed: given twice"},
      {{"--against", "cache_threshold=0.3"}, "--against: cache_threshold: given without"},
      {{"--against", "size=32x32", "--sizes", "48x32"},
       "--sizes: given together with a size of --against"},
      {{"--size", "48x32", "--against", "width=4096"}, "--against: width: found 4096"},
      {{"--json", folder.file("b.txt")}, "--json: " + folder.file("b.txt") + ": unknown extension"},
      {{"--json", "/nonexistent/b.json"}, "--json: /nonexistent/b.json: "},
      {{"--json", ""}, "--json: is empty; expected a path\n"},
      {{"--save-dir", ""}, "--save-dir: is empty; expected a path\n"},
      {{"--save-dir", folder.file("file")}, folder.file("file")},
      {{"--check-config", "--save-dir", folder.file("file")}, "--save-dir: " + folder.file("file")},
      {{"--check-config", "--save-dir", folder.file("file/x")},
       "--save-dir: " + folder.file("file/x") + ": cannot be made in " + folder.file("file")},
      {{"--launches"}, "--launches: needs a CUDA device"},
      {{"--kernel-times"}, "--kernel-times: needs a CUDA device, the run is on the CPU\n"},
      {{"--floor"}, "--floor: needs a CUDA device, the run is on the CPU\n"},
      {{"--floor", "--task", "chat"}, "--floor: of a denoise step, and nothing is painted\n"},
      {{"--output", "a.png"}, "bench: unknown flag '--output'"},
  };
  for (const auto& [flags, expected] : cases) {
    CAPTURE(expected);
    CHECK(has(refusal(flags), expected));
  }
  const std::vector<std::tuple<std::string, Words, std::string>> of_variables = {
      {"48x30", {}, "DIPTYCH_SIZES: height: 30 "},
      {"48x32,4096x32", {}, "DIPTYCH_SIZES: width: found 4096"},
      {"48x32", {"--task", "chat"}, "DIPTYCH_SIZES: has no meaning for --task chat"},
      {"48x32", {"-W", "64"}, "--width: given together with DIPTYCH_SIZES; expected one"},
      {"48x32", {"--against", "size=32x32"}, "DIPTYCH_SIZES: given together with a size of --ag"},
      {"48x32", {"--batch-sizes", "1"}, "--batch-sizes: given together with DIPTYCH_SIZES; exp"}};
  for (const auto& [sizes, flags, expected] : of_variables) {
    test::Command of_variable;
    of_variable.arguments = command(flags);
    of_variable.environment = {{"DIPTYCH_SIZES", sizes}};
    CAPTURE(expected);
    CHECK(has(test::refusal(run(of_variable)), expected));
  }
  CHECK(folder.names() == Words{"file"});
  CHECK(bench({"--sizes", "48x32,64x64", "--check-config"}).out == "configuration: valid\n");
  CHECK(has(refusal({"--sizes", "48x32,4096x32", "--check-config"}), "--sizes: width: found 4096"));
  CHECK(has(run(Words{"bench", "--help"}).out, "Examples:\n  diptych bench -c "));
}

}  // namespace
}  // namespace diptych
