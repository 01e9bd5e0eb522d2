// Step caches as a user comes to them: calibrate, paint, read what it cost.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::Folder;
using test::kTinyCheckpoint;
using test::Outcome;
using test::record_of;
using test::refusal_in_one_line;
using test::run;
using test::with;
using test::Words;
using Json = nlohmann::json;

Outcome calibrate(const Words& more) {
  return run(
      with({"calibrate", "-m", kTinyCheckpoint, "--size", "96x96", "--device", "cpu"}, more));
}

Outcome paint(const std::string& output, const Words& more) {
  return run(with({"generate", "-m", kTinyCheckpoint, "-p", "a red fox", "--size", "96x96",
                   "--steps", "20", "--device", "cpu", "-o", output},
                  more));
}

Json json_of(const std::string& file) {
  return Json::parse(std::ifstream(file));
}

// A calibration file of the tiny checkpoint.
std::string calibrated(const Folder& folder) {
  const std::string file = folder.file("calibration.json");
  const Outcome outcome = calibrate({"--steps", "20", "-o", file, "-q"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.empty());
  return file;
}

TEST_CASE("calibrate says what it measured, and writes it") {
  const Folder folder;
  folder.write("prompts.txt", "# subjects\na boat\n\na harbour at noon\n");
  const std::string file = folder.file("c.json");
  const Outcome outcome = calibrate({"--steps", "30", "-p", "tea", "--prompts",
                                     folder.file("prompts.txt"), "--pictures", "4", "-o", file});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(folder.names() == Words{"c.json", "prompts.txt"});
  CHECK(outcome.out.starts_with("4 pictures, 116 steps, "));
  CHECK(outcome.out.find("\ncoefficients, degree 4 to 0: ") != std::string::npos);
  CHECK(outcome.out.find("\nexplained variance: 0.9") != std::string::npos);
  CHECK(outcome.out.ends_with("\n" + file + "\n"));
  const Json json = json_of(file);
  CHECK(json["schema"] == "diptych.step_calibration");
  CHECK(json["weights_hash"].get<std::string>().size() == 33);
  // More is let pass, less is computed.
  std::vector<int> computed;
  for (const char* threshold : {"\n0.05 ", "\n0.1 ", "\n0.2 ", "\n0.3 ", "\n0.5 "}) {
    const std::size_t line = outcome.out.find(threshold);
    REQUIRE(line != std::string::npos);
    computed.push_back(std::stoi(outcome.out.substr(line + 20)));
    CHECK(outcome.out.find(" of 116, ", line) < outcome.out.find('\n', line + 1));
  }
  CHECK(std::ranges::is_sorted(computed, std::greater()));
  CHECK(computed.front() < 116);
  CHECK(computed.back() >= 2 * 4);
  // The same command, the same file.
  const std::string again = folder.file("again.json");
  REQUIRE(calibrate({"--steps", "30", "-p", "tea", "--prompts", folder.file("prompts.txt"),
                     "--pictures", "4", "-o", again})
              .code == 0);
  CHECK(json_of(again) == json);
}

TEST_CASE("calibrate --check-config paints nothing") {
  const Folder folder;
  const Outcome fine = calibrate({"--check-config", "-o", folder.file("c.json")});
  CHECK(fine.code == 0);
  CHECK(fine.out == "configuration: valid\n");
  CHECK(folder.names().empty());
  const Outcome fewer = calibrate(
      {"--check-config", "-o", folder.file("c.json"), "-p", "a", "-p", "b", "--pictures", "1"});
  CHECK(fewer.code == 0);
  CHECK(fewer.err == "[WARN ] --pictures 1: only the first of 2 prompts is used\n");
  const Outcome wrong =
      calibrate({"--check-config", "--size", "4096x32", "-o", folder.file("c.json")});
  CHECK(wrong.code == 2);
}

TEST_CASE("calibrate edits pictures that it is given") {
  const Folder folder;
  const std::string file = folder.file("c.json");
  const Outcome outcome = calibrate({"--steps", "12", "-i", test::kPicture, "-p", "make it red",
                                     "-p", "make it blue", "-o", file});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  // Guidance acts in every step: three branches each, the first step of each gives no change.
  CHECK(outcome.out.starts_with("2 pictures, 22 steps, 60 samples\n"));
}

TEST_CASE("what calibrate writes beside a checkpoint, TeaCache finds there") {
  const Folder folder;
  const std::string model = folder.file("model");
  std::filesystem::copy(kTinyCheckpoint, model);
  const Words small = {"-m", model, "--size", "48x48", "--steps", "16", "--device", "cpu"};
  const Outcome measured = run(with({"calibrate"}, small));
  CAPTURE(measured.err);
  REQUIRE(measured.code == 0);
  CHECK(measured.out.ends_with("\n" + model + "/diptych_teacache.json\n"));
  const std::string picture = folder.file("a.png");
  const Outcome painted =
      run(with({"generate", "-p", "tea", "-o", picture, "--cache-mode", "teacache"}, small));
  CAPTURE(painted.err);
  REQUIRE(painted.code == 0);
  CHECK(record_of(picture)["forwards"] < 28);  // 15 steps, 13 of them with guidance
}

TEST_CASE("TeaCache saves forwards, and the report says at what cost") {
  const Folder folder;
  const std::string calibration = calibrated(folder), file = folder.file("a.png");
  const Words cached = {"--cache-mode",      "teacache", "--cache-calibration", calibration,
                        "--cache-threshold", "0.1",      "--cache-report"};
  const Outcome outcome = paint(file, cached);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.find("[INFO ] step cache: latent cosine 0.99") != std::string::npos);
  const Json record = record_of(file), report = record["cache_report"];
  CHECK(record["forwards"] == report["forwards"]);
  CHECK(report["uncached_forwards"] == 35);
  CHECK(report["forwards"] < 20);
  CHECK(report["latent_cosine"] > 0.998);
  CHECK(report["latent_cosine"] < 1);
  CHECK(report["latent_relative_l2"] < 0.05);
  CHECK(report["ssim"] > 0.99);
  CHECK(report["psnr"] > 35);
  CHECK(report.size() == 6);  // no seconds
  // The same run, the same bytes; and the picture is the one without a report.
  REQUIRE(paint(folder.file("b.png"), cached).code == 0);
  const Image first = read_png(file), again = read_png(folder.file("b.png"));
  CHECK(first.rgb.equal(again.rgb));
  CHECK(first.text == again.text);
  REQUIRE(paint(folder.file("c.png"), Words(cached.begin(), cached.end() - 1)).code == 0);
  CHECK(read_png(folder.file("c.png")).rgb.equal(first.rgb));
  CHECK_FALSE(record_of(folder.file("c.png")).contains("cache_report"));
}

TEST_CASE("a cache that leaves nothing out gives the picture without one") {
  const Folder folder;
  const std::string calibration = calibrated(folder);
  REQUIRE(paint(folder.file("none.png"), {}).code == 0);
  const auto record_without_requested = [&](const char* name) {
    Json record = record_of(folder.file(name));
    record.erase("requested");
    record.erase("calibration_hash");
    return record;
  };
  REQUIRE(paint(folder.file("all.png"), {"--cache-mode", "teacache", "--cache-calibration",
                                         calibration, "--cache-threshold", "1e-9"})
              .code == 0);
  CHECK(read_png(folder.file("all.png")).rgb.equal(read_png(folder.file("none.png")).rgb));
  CHECK(record_without_requested("all.png") == record_without_requested("none.png"));
  // The other end: the first step, the last, and what guidance asks for.
  REQUIRE(paint(folder.file("few.png"), {"--cache-mode", "teacache", "--cache-calibration",
                                         calibration, "--cache-threshold", "1e6"})
              .code == 0);
  CHECK(record_of(folder.file("few.png"))["forwards"] == 3);
}

TEST_CASE("the second picture of a request is the one painted alone") {
  const Folder folder;
  const std::string calibration = calibrated(folder);
  for (const Words& cache : {Words{"--cache-mode", "teacache", "--cache-calibration", calibration},
                             Words{"--cache-mode", "taylorseer"}}) {
    CAPTURE(cache[1]);
    REQUIRE(paint(folder.file("a.png"), with(cache, {"-b", "2", "-s", "5"})).code == 0);
    REQUIRE(paint(folder.file("b.png"), with(cache, {"-s", "6"})).code == 0);
    const Json second = record_of(folder.file("a-001.png")),
               alone = record_of(folder.file("b.png"));
    CHECK(second["latent_hash"] == alone["latent_hash"]);
    CHECK(second["forwards"] == alone["forwards"]);
    CHECK(read_png(folder.file("a-001.png")).rgb.equal(read_png(folder.file("b.png")).rgb));
  }
}

TEST_CASE("a cache that predicts nothing is pointed out") {
  const Folder folder;
  const auto said = [&](const char* steps) {
    const Outcome outcome =
        run(Words{"generate", "-m", kTinyCheckpoint, "-p", "x", "--size", "32x32", "--device",
                  "cpu", "--steps", steps, "-o", folder.file("a.png"), "--cache-mode", "taylorseer",
                  "--cache-report"});
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  const std::string few = said("6");
  CHECK(few.find("[WARN ] --cache-mode taylorseer: predicts nothing in 5 updates; it needs more "
                 "--steps\n") != std::string::npos);
  CHECK(few.find(" branch forwards, nothing was predicted\n") != std::string::npos);
  const std::string enough = said("7");
  CHECK(enough.find("[WARN ]") == std::string::npos);
  CHECK(enough.find(" times as fast)\n") != std::string::npos);
}

TEST_CASE("a calibration of a checkpoint is none of random weights, as --check-config knows") {
  const Folder folder;
  const std::string calibration = calibrated(folder);
  Words command = {"generate",     "-m",       kTinyCheckpoint,
                   "-p",           "x",        "--load-format",
                   "dummy",        "-q",       "--device",
                   "cpu",          "--size",   "32x32",
                   "--cache-mode", "teacache", "--cache-calibration",
                   calibration,    "-o",       folder.file("a.png")};
  const std::string ran = refusal_in_one_line(run(command));
  CHECK(ran.find("the loaded weights are dummy-0-dummy-0") != std::string::npos);
  command.emplace_back("--check-config");
  CHECK(refusal_in_one_line(run(command)) == ran);
}

TEST_CASE("what calibrate refuses") {
  const Folder folder;
  folder.write("empty.txt", "# nothing\n");
  const std::string file = folder.file("c.json");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"-o", folder.file("c.txt")},
       "--output: " + folder.file("c.txt") + ": unknown extension '.txt'"},
      {{"-o", "/nonexistent/c.json"}, "/nonexistent"},
      {{"--prompts", folder.file("none.txt")}, folder.file("none.txt")},
      {{"--prompts", folder.file("list.jsonl")}, "--prompts: " + folder.file("list.jsonl")},
      {{"--prompts", folder.file("empty.txt")}, folder.file("empty.txt")},
      {{"-i", folder.file("none.png")}, "--image: " + folder.file("none.png") + ": no such file"},
      {{"--pictures", "0"}, "--pictures"},
      {{"--seed", "18446744073709551615"}, "--seed: 18446744073709551615 + 5 does not fit"},
      {{"--temperature", "1"}, "--temperature: given without --think"},
      {{"--cache-mode", "teacache"}, "calibrate: unknown flag '--cache-mode'"},
      {{"--task", "chat"}, "--size: has no meaning for --task chat, which paints nothing"},
      // 3 + 3 changes of two contexts
      {{"--steps", "5", "--pictures", "1", "--cfg-interval", "0,1"},
       "diptych: --steps: 5 for 1 picture give at most 6 samples, expected at least 20; more steps "
       "or prompts\n"},
      {{"--steps", "5", "--pictures", "1", "--check-config"}, "--steps: 5 for 1 picture give at "},
      // 6 updates of three branches: 5 changes each
      {{"--steps", "7", "--pictures", "1", "-i", test::kPicture}, "give at most 15 samples"},
  };
  for (const auto& [flags, expected] : cases) {
    CAPTURE(expected);
    const bool has_output = flags.front() == "-o";
    CHECK(refusal_in_one_line(calibrate(has_output ? flags : with(flags, {"-o", file})))
              .find(expected) != std::string::npos);
  }
  CHECK(folder.names() == Words{"empty.txt"});
  const Outcome dummy = run(Words{"calibrate", "--load-format", "dummy", "--device", "cpu",
                                  "--size", "64x64", "-o", folder.file("dummy.json")});
  CHECK(dummy.code == 0);
  CHECK(dummy.err.find("no -c or -m given: random weights of the demo's sizes; -c "
                       "stage_configs/bagel.yaml takes those of the released model") !=
        std::string::npos);
  CHECK(refusal_in_one_line(run(Words{"calibrate", "-m", folder.file("none"), "-o", file, "-q"}))
            .find(folder.file("none")) != std::string::npos);
  const Outcome help = run(Words{"calibrate", "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("Examples:\n  diptych calibrate -m BAGEL-7B-MoT\n") != std::string::npos);
}

TEST_CASE("what generate refuses of step caches") {
  const Folder folder;
  const std::string calibration = calibrated(folder), picture = folder.file("a.png");
  const auto with = [&](const std::string& file) {
    return refusal_in_one_line(
        paint(picture, {"-q", "--cache-mode", "teacache", "--cache-calibration", file}));
  };
  CHECK(refusal_in_one_line(paint(picture, {"--cache-report"})) ==
        "diptych: --cache-report: given without --cache-mode taylorseer or teacache\n");
  CHECK(refusal_in_one_line(paint(picture, {"--cache-threshold", "0.1"}))
            .find("--cache-threshold: given without --cache-mode teacache") != std::string::npos);
  CHECK(with(folder.file("none.json")).find(folder.file("none.json") + ": is not there") !=
        std::string::npos);
  CHECK(refusal_in_one_line(paint(picture, {"-q", "--cache-mode", "teacache", "--cache-calibration",
                                            calibration, "--quantization", "int8"}))
            .find(", int8") != std::string::npos);
  Json json = json_of(calibration);
  json["weights_hash"] = "0123456789abcdef-0123456789abcdef";
  folder.write("other.json", json.dump());
  CHECK(with(folder.file("other.json"))
            .find(": weights_hash: measured on 0123456789abcdef-0123456789abcdef, the loaded "
                  "weights are ") != std::string::npos);
  json["coefficients"] = {1, 2};
  folder.write("short.json", json.dump());
  CHECK(with(folder.file("short.json")).find(": coefficients: found [1,2], expected 5 numbers\n") !=
        std::string::npos);
  folder.write("half.json", json.dump().substr(0, 100));
  CHECK(with(folder.file("half.json")).find(folder.file("half.json") + ":1:101: ends within") !=
        std::string::npos);
  CHECK_FALSE(std::filesystem::exists(picture));
  CHECK(refusal_in_one_line(run(Words{"generate", "-c", test::kTinyConfig, "--task", "chat", "-p",
                                      "x", "--cache-report"}))
            .find("--cache-report: has no meaning for --task chat") != std::string::npos);
}

}  // namespace
}  // namespace diptych
