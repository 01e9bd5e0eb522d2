// From prompt to picture, as a user runs it.
#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/png.h"
#include "lib/runtime/stored_dtype.h"
#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::kTinyConfig;
using test::Outcome;
using test::run;
using test::Words;

std::string text_of(const Image& image, const std::string& key) {
  for (const auto& [keyword, text] : image.text) {
    if (keyword == key) return text;
  }
  return {};
}

TEST_CASE("a prompt becomes a picture that says how it was made") {
  const test::Folder folder;
  const std::string file = folder.file("fox.png");
  const Outcome outcome =
      run(Words{"generate", "-c", kTinyConfig, "-p", "a red fox", "-o", file, "--steps", "4",
                "--device", "cpu", "--seed", "7", "--cfg-scale", "3.5", "-v"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out == file + "\n");
  CHECK(outcome.err.find("it/s") != std::string::npos);
  CHECK(folder.names() == Words{"fox.png"});

  const Image image = read_png(file);
  CHECK(image.rgb.size(0) == 96);
  CHECK(image.rgb.size(1) == 96);
  CHECK(image.rgb.to(at::kFloat).std().item<float>() > 1);
  CHECK(text_of(image, "parameters")
            .starts_with("a red fox\nSteps: 4, Sampler: Euler, CFG scale: "
                         "3.5, "));
  CHECK(text_of(image, "parameters").find("Seed: 7, Size: 96x96") != std::string::npos);
  const auto json = nlohmann::json::parse(text_of(image, "diptych"));
  CHECK(json["schema"] == "diptych.generate");
  CHECK(json["inputs"][0]["text"] == "a red fox");
  CHECK(json["requested"]["cfg_text_scale"] == 3.5);
  CHECK(json["seed"] == 7);
  CHECK(json["steps"] == 4);
  CHECK(json["updates"] == 3);
  CHECK(json["latent_hash"].get<std::string>().size() == 16);
  CHECK(outcome.err.find(json["latent_hash"].get<std::string>()) != std::string::npos);
  CHECK(json["dtype"] == "float32");
  CHECK_FALSE(json["weights_hash"].get<std::string>().empty());
  CHECK_FALSE(json["attention"].get<std::string>().empty());
}

TEST_CASE("the same run gives the same bytes, another seed other pixels") {
  const test::Folder folder;
  const auto paint = [&](const std::string& name, const std::string& seed) {
    const Outcome outcome =
        run(Words{"generate", "-c", kTinyConfig, "-p", "x", "-o", folder.file(name), "--steps", "3",
                  "--size", "64x48", "--device", "cpu", "-s", seed, "-q"});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(outcome.err.empty());
    return read_png(folder.file(name));
  };
  const Image first = paint("a.png", "1");
  const Image again = paint("b.png", "1");
  const Image other = paint("c.png", "2");
  CHECK(at::equal(first.rgb, again.rgb));
  CHECK(first.text == again.text);
  CHECK_FALSE(at::equal(first.rgb, other.rgb));
  CHECK(first.rgb.size(0) == 48);
  CHECK(first.rgb.size(1) == 64);
}

TEST_CASE("several pictures are numbered") {
  const Words small = {"--steps", "2", "--size", "32x32", "--device", "cpu", "-q", "-b", "2"};
  const auto names = [&](const std::string& output, bool make_folder) {
    const test::Folder folder;
    if (make_folder) std::filesystem::create_directory(folder.path() / "out");
    Words arguments = {"generate", "-c", kTinyConfig, "-p", "", "-o", folder.file(output)};
    arguments.insert(arguments.end(), small.begin(), small.end());
    const Outcome outcome = run(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 2);
    Words found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (entry.is_regular_file()) found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  };
  CHECK(names("a.png", false) == Words{"a-000.png", "a-001.png"});
  CHECK(names("a%02d-x.png", false) == Words{"a00-x.png", "a01-x.png"});
  CHECK(names("out", true) == Words{"0000.png", "0001.png"});
}

TEST_CASE("progress for programs says what changed, once") {
  const test::Folder folder;
  const Outcome outcome =
      run(Words{"generate", "-p", "x", "--steps", "4", "--size", "32x32", "--device", "cpu",
                "--progress", "jsonl", "-o", folder.file("a.png")});
  REQUIRE(outcome.code == 0);
  std::vector<std::string> records;  // without their seconds
  std::istringstream lines(outcome.err);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('{')) continue;
    nlohmann::json record = nlohmann::json::parse(line);
    record.erase("seconds");
    if (record["progress"] == "end") CHECK(record["done"] == record["total"]);
    records.push_back(record.dump());
  }
  CHECK(records.size() > 10);
  CHECK(std::ranges::adjacent_find(records) == records.end());
  CHECK(std::ranges::count(records, R"({"done":3,"progress":"end","stage":"denoise","total":3})") ==
        1);
}

TEST_CASE("guidance that no step has is pointed out") {
  const test::Folder folder;
  const Words command = {
      "generate", "-m", test::kTinyCheckpoint, "-p",      "x", "--size", "32x32", "--device",
      "cpu",      "-o", folder.file("a.png"),  "--steps", "8", "-n",     "foo",   "--cfg-interval"};
  const auto said = [&](const char* interval) {
    Words words = command;
    words.emplace_back(interval);
    const Outcome outcome = run(words);
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  CHECK(said("0.1,0.12")
            .find("[WARN ] --cfg-interval 0.1,0.12: none of the 7 updates lies in it: "
                  "there is no guidance, and --negative-prompt has no effect\n") !=
        std::string::npos);
  CHECK(said("0.3,0.34").find("[WARN ]") == std::string::npos);  // the last update: t = 1/3
}

TEST_CASE("a prompt comes from stdin") {
  const test::Folder folder;
  test::Command command;
  command.arguments = {
      "generate", "-c", kTinyConfig, "-p",    "-",        "-o", folder.file("a.png"),
      "--steps",  "2",  "--size",    "32x32", "--device", "cpu"};
  command.input = "gr\xC3\xBCn, {}[1,2]\n";
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const Image image = read_png(folder.file("a.png"));
  CHECK(nlohmann::json::parse(text_of(image, "diptych"))["inputs"][0]["text"] ==
        "gr\xC3\xBCn, {}[1,2]");
}

TEST_CASE("texts arrive as they are") {
  for (const std::string text : {"", "{}", "%%", "[a,b]", "\"quoted\"", "-p", "--steps=", "a\nb"}) {
    CAPTURE(text);
    const Outcome outcome =
        run(Words{"generate", "-c", kTinyConfig, "--prompt=" + text, "--print-config"});
    CHECK(outcome.code == 0);
    const nlohmann::json inputs = {{{"text", text}}};
    CHECK(outcome.out.find("\ninputs: " + inputs.dump()) != std::string::npos);
  }
}

TEST_CASE("a format that a variable says is for results whose name says none") {
  const auto code = [](const char* flag, const char* variable) {
    test::Command command;
    command.arguments = {"generate", "-c", kTinyConfig, "-p", "x", "--check-config", "-o", "a.png"};
    if (flag != nullptr) command.arguments.insert(command.arguments.end(), {"--format", flag});
    if (variable != nullptr) command.environment["DIPTYCH_FORMAT"] = variable;
    return run(command).code;
  };
  CHECK(code(nullptr, "webp") == 0);
  CHECK(code("png", "webp") == 0);
  CHECK(code("webp", nullptr) == 2);
}

TEST_CASE("--print-config shows values with their origins, --check-config says one line") {
  test::Command command;
  command.arguments = {"generate", "-c", kTinyConfig, "--print-config", "--steps", "5"};
  command.environment["DIPTYCH_SEED"] = "9";
  const Outcome outcome = run(command);
  CHECK(outcome.code == 0);
  const auto has = [&](const std::string& value, const std::string& origin) {
    const std::size_t at = outcome.out.find("\n" + value + " ");
    if (at == std::string::npos) return false;
    return outcome.out.substr(at + 1, outcome.out.find('\n', at + 1) - at - 1).ends_with(origin);
  };
  CHECK(has("steps: 5", "  # --steps"));
  CHECK(has("seed: 9", "  # DIPTYCH_SEED"));
  CHECK(has("width: 96", "  # " + kTinyConfig + ":14:14"));
  CHECK(has("timestep_shift: 3.0", "  # default"));

  const Outcome check = run(
      Words{"generate", "-c", DIPTYCH_SOURCE_DIR "/stage_configs/bagel.yaml", "--check-config"});
  CHECK(check.code == 0);
  CHECK(check.out == DIPTYCH_SOURCE_DIR
        "/stage_configs/bagel.yaml: valid, but a run needs a prompt and a model\n");
  CHECK(run(Words{"generate", "-c", kTinyConfig, "--check-config"}).out ==
        kTinyConfig + ": valid, but a run needs a prompt\n");
  for (const char* output : {"a.frames", "a.txt"})  // whose names say the task
    CHECK(run(Words{"generate", "--check-config", "--device", "cpu", "-o", output})
              .out.ends_with(".yaml: valid, but a run needs a prompt\n"));
  CHECK(run(Words{"generate", "-c", kTinyConfig, "--check-config", "-p", "x", "-o",
                  test::Folder().file("a.png"), "-q"})
            .out == kTinyConfig + ": valid\n");
  const Outcome enhanced = run(Words{"generate", "-c", kTinyConfig, "--check-config",
                                     "--enhance-prompt", "--enhancer", "/none"});
  CHECK(enhanced.code == 2);
  CHECK(enhanced.err.find("--enhancer: /none: ") != std::string::npos);
  CHECK(run(Words{"generate", "-c", kTinyConfig, "--check-config", "--enhance-prompt"})
            .err.find("--enhancer: not given; ") != std::string::npos);
}

TEST_CASE("threads that wait for each other sleep soon, unless the environment says how") {
  test::Command command;
  command.arguments = {"devices"};
  command.environment = {{"OMP_DISPLAY_ENV", "verbose"}};  // of libgomp: what it goes by, on stderr
  const Outcome ours = run(command);
  CHECK(ours.code == 0);
  CHECK(ours.err.find("GOMP_SPINCOUNT = '1000'") != std::string::npos);
  command.environment["OMP_WAIT_POLICY"] = "active";
  const Outcome theirs = run(command);
  CHECK(theirs.err.find("OMP_WAIT_POLICY = 'ACTIVE'") != std::string::npos);
  CHECK(theirs.err.find("GOMP_SPINCOUNT = '1000'") == std::string::npos);
}

TEST_CASE("bfloat16 that the CPU is slow with is warned of once, where it was asked for") {
  const test::Folder folder;
  const auto warned = [&](const std::string& dtype) {
    const std::string said = run(Words{"generate", "-c", kTinyConfig, "-p", "x", "--device", "cpu",
                                       "--size", "32x32", "--steps", "2", "--dtype", dtype, "-o",
                                       folder.file("a.png"), "--log-level", "warning"})
                                 .err;
    constexpr std::string_view kLine =
        "[WARN ] --dtype bfloat16: slow on this CPU, which has neither AVX512-BF16 nor AMX-BF16; "
        "float32 is faster and takes twice the memory\n";
    return said.find(kLine) != std::string::npos && said.find(kLine) == said.rfind(kLine);
  };
  CHECK(warned("bfloat16") == !cpu_multiplies_bfloat16());
  CHECK_FALSE(warned("auto"));
  CHECK_FALSE(warned("float32"));
}

TEST_CASE("a variable that is nearly one of ours is pointed out") {
  test::Command command;
  command.arguments = {"generate", "-c", kTinyConfig, "--check-config"};
  command.environment["DIPTYCH_STPES"] = "5";
  const Outcome outcome = run(command);
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "[WARN ] DIPTYCH_STPES has no effect; did you mean DIPTYCH_STEPS?\n");
  const auto said = [&](const std::string& name) {
    command.environment = {{name, "5"}};
    return run(command).err;
  };
  for (const auto& [name, instead] :
       std::map<std::string, std::string>{{"DIPTYCH_IMAGE_SIZE", "DIPTYCH_SIZE"},
                                          {"DIPTYCH_PROMPT_FILE", "DIPTYCH_PROMPT=@FILE"},
                                          {"DIPTYCH_REF_IMAGE", "DIPTYCH_IMAGE"},
                                          {"DIPTYCH_BATCH_SIZEZ", "DIPTYCH_BATCH_SIZE"}})
    CHECK(said(name) == "[WARN ] " + name + " has no effect; did you mean " + instead + "?\n");
  // Of other verbs, and of all.
  for (const char* name : {"DIPTYCH_BATCH_SIZES", "DIPTYCH_MIN_SSIM", "DIPTYCH_GOLDENS"})
    CHECK(said(name).empty());
}

}  // namespace
}  // namespace diptych
