// `diptych tune` where it has nothing to measure, and --tuned-config-dir where nothing is tuned.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::Command;
using test::Folder;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::run;
using Words = std::vector<std::string>;

// Of a command that must end with 2.
std::string refusal(const Outcome& outcome) {
  CAPTURE(outcome.out);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  const std::size_t begin = outcome.err.rfind("diptych: ");
  REQUIRE(begin != std::string::npos);
  return outcome.err.substr(begin + 9);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("tune refuses the CPU, and writes nothing") {
  const Folder folder;
  const std::string file = folder.file("t.json");
  CHECK(refusal(run(Words{"tune", "--device", "cpu", "-o", file})) ==
        "--device: cpu: there is nothing to tune on the CPU; expected cuda or cuda:N\n");
  Command by_variable;
  by_variable.arguments = {"tune", "-o", file};
  by_variable.environment["DIPTYCH_DEVICE"] = "cpu";
  CHECK(refusal(run(by_variable)) ==
        "DIPTYCH_DEVICE: cpu: there is nothing to tune on the CPU; expected cuda or cuda:N\n");
  // Here there is no GPU, or not so many.
  CHECK(has(refusal(run(Words{"tune", "--device", "cuda:99", "-o", file})), "--device cuda:99: "));
  CHECK(folder.names().empty());
}

TEST_CASE("tune names what it cannot read") {
  const auto tune = [](Words more) {
    more.insert(more.begin(), {"tune", "--device", "cpu"});
    return refusal(run(more));
  };
  CHECK(has(tune({"--sizes", "64x"}), "--sizes: '64x' is not a size"));
  CHECK(has(tune({"--sizes", "256x256,100x64"}), "--sizes: width: "));
  CHECK(tune({"--sizes", "2048x64"}) ==
        "--sizes: 2048x64: this model's pictures have at most 1024 pixels a side\n");
  CHECK(has(tune({"--repeats", "0"}), "--repeats: "));
  CHECK(has(tune({"-m", "/nowhere"}), "/nowhere"));
  CHECK(has(tune({"-c", "/nowhere.yaml"}), "/nowhere.yaml"));
  CHECK(has(tune({"-c", kTinyConfig}), "nothing to tune on the CPU"));
  CHECK(has(tune({"-m", kTinyCheckpoint}), "nothing to tune on the CPU"));
  const Outcome help = run(Words{"tune", "--help"});
  CHECK(help.code == 0);
  CHECK(has(help.out, "Examples:\n  diptych tune\n"));
}

TEST_CASE("on the CPU nothing is tuned, and no record says so") {
  const Folder folder;
  Command command;
  command.arguments = {"generate", "-c",    kTinyConfig, "-p",  "x",  "--steps",           "2",
                       "--size",   "32x32", "--device",  "cpu", "-o", folder.file("a.png")};
  command.environment["DIPTYCH_TUNED_CONFIG_DIR"] = folder.file("");
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_FALSE(has(outcome.err, "tun"));
  for (const auto& [keyword, text] : read_png(folder.path() / "a.png").text) {
    if (keyword != "diptych") continue;
    const auto record = nlohmann::json::parse(text);
    CHECK_FALSE(record.contains("tuning"));
    CHECK_FALSE(record["requested"].contains("tuned_config_dir"));
  }
  command.arguments.push_back("--print-config");
  CHECK(has(run(command).out, "DIPTYCH_TUNED_CONFIG_DIR"));
}

}  // namespace diptych
