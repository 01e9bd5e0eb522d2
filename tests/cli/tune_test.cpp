// `diptych tune` where it has nothing to measure, and --tuned-config-dir where nothing is tuned.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::Command;
using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::refusal;
using test::run;
using test::Words;

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
  CHECK(tune({"--sizes", "256x256,64x64,256x256"}) == "--sizes: 256x256 given twice\n");
  CHECK(has(tune({"--sizes", "64x64,"}), "--sizes: '' is not a size"));
  CHECK(tune({"--repeats", "0"}) == "--repeats: 0 is out of range; expected 1 to 10000\n");
  CHECK(tune({"-m", "/nowhere"}) == "--model: /nowhere: not found; expected a folder\n");
  CHECK(tune({"-m", kTinyConfig}) ==
        "--model: " + kTinyConfig + ": found a file, expected a folder\n");
  CHECK(tune({"-c", "/nowhere.yaml"}) == "--config: /nowhere.yaml: no such file\n");
  for (const char* flag : {"-m", "-c", "-o"})
    CHECK(has(tune({flag, ""}), "is empty; expected a path\n"));
  CHECK(has(tune({"--device", "cpu"}), "--device: "));  // twice
  CHECK(has(tune({"-c", kTinyConfig}), "nothing to tune on the CPU"));
  CHECK(has(tune({"-m", kTinyCheckpoint}), "nothing to tune on the CPU"));
  const Outcome help = run(Words{"tune", "--help"});
  CHECK(help.code == 0);
  CHECK(has(help.out, "Examples:\n  diptych tune\n"));
}

TEST_CASE("on the CPU nothing is tuned, which is said, and no record says otherwise") {
  const Folder folder;
  Command command;
  command.arguments = {"generate", "-c",    kTinyConfig, "-p",  "x",  "--steps",           "2",
                       "--size",   "32x32", "--device",  "cpu", "-o", folder.file("a.png")};
  command.environment["DIPTYCH_TUNED_CONFIG_DIR"] = folder.file("");
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.err, "[WARN ] --tuned-config-dir: has no effect on the CPU\n"));
  const nlohmann::json record = test::record_of(folder.path() / "a.png");
  CHECK_FALSE(record.contains("tuning"));
  REQUIRE(record["requested"].is_object());
  CHECK_FALSE(record["requested"].contains("tuned_config_dir"));
  command.environment["DIPTYCH_TUNED_CONFIG_DIR"] = "";
  CHECK_FALSE(has(run(command).err, "tun"));
  command.environment["DIPTYCH_TUNED_CONFIG_DIR"] = folder.file("none");
  CHECK(refusal(run(command)) ==
        "DIPTYCH_TUNED_CONFIG_DIR: " + folder.file("none") + ": not found; expected a folder\n");
  command.environment["DIPTYCH_TUNED_CONFIG_DIR"] = folder.file("a.png");
  CHECK(refusal(run(command)) == "DIPTYCH_TUNED_CONFIG_DIR: " + folder.file("a.png") +
                                     ": found a file, expected a folder\n");
  command.arguments.push_back("--print-config");
  CHECK(has(run(command).out, "DIPTYCH_TUNED_CONFIG_DIR"));
}

}  // namespace diptych
