// --quantization from the command line to the picture's record and back.
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/json_file.h"
#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_model.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

using nlohmann::json;
using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::run;
using test::Words;

Outcome generate(const Words& more) {
  Words words = {"generate", "-c",     kTinyConfig, "-p",       "a red fox", "--steps",
                 "3",        "--size", "64x48",     "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

json record_of(const Folder& folder, const std::string& name) {
  return test::record_of(folder.path() / name);
}

}  // namespace

TEST_CASE("a quantised picture says so, and is painted again as it was") {
  const Folder folder;
  const Outcome plain = generate({"-o", folder.file("none.png")});
  REQUIRE(plain.code == 0);
  CHECK_FALSE(has(plain.err, "projections of the decoder layers"));
  CHECK_FALSE(record_of(folder, "none.png").contains("quantization"));
  const Tensor expected = read_png(folder.path() / "none.png").rgb;
  for (const std::string kind : {"fp8", "int8"}) {
    CAPTURE(kind);
    const std::string file = folder.file(kind + ".png");
    const Outcome outcome = generate({"-o", file, "--quantization", kind});
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.err, kind + ": the projections of the decoder layers take 0."));
    const json record = record_of(folder, kind + ".png");
    CHECK(record["quantization"] == kind);
    CHECK(record["requested"]["quantization"] == kind);
    CHECK(record["dtype"] == "float32");
    CHECK(record["weights_hash"] == record_of(folder, "none.png")["weights_hash"]);
    CHECK_FALSE(read_png(folder.path() / (kind + ".png")).rgb.equal(expected));
    const Outcome again = run(Words{"inspect", file, "--replay", "-q", "-m", kTinyCheckpoint});
    CAPTURE(again.err);
    CHECK(again.code == 0);
    CHECK(has(again.out, ": identical, "));
  }
}

TEST_CASE("the log says what was quantised of a diffusion transformer" *
          doctest::test_suite("needs goldens")) {
  const std::filesystem::path goldens = test::goldens_of("wan").back();
  if (!std::filesystem::exists(goldens / "checkpoint/model_index.json"))
    return test::skip("the full recordings are not here");
  const Folder folder;
  const Outcome outcome =
      run(Words{"generate", "-m", goldens / "checkpoint", "-p", "x", "--size", "32x32", "--steps",
                "2", "--device", "cpu", "--quantization", "fp8", "-o", folder.file("x.png")});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err,
            "fp8: the matrices of the transformer's blocks take 0.0 MiB instead of 0.1"));
}

TEST_CASE("--quantization is of the batch, of bench and of the environment, too") {
  const Folder folder;
  const Outcome unknown = generate({"--quantization", "fp4", "--check-config"});
  CHECK(unknown.code == 2);
  CHECK(has(unknown.err, "fp4"));
  CHECK(has(unknown.err, "fp8"));
  const Outcome checked = generate({"--quantization", "fp8", "--check-config"});
  CAPTURE(checked.err);
  CHECK(checked.code == 0);
  CHECK(has(generate({"--set", "quantization=int8", "--print-config"}).out, "int8"));

  folder.write("prompts.txt", "a fox\na hen\n");
  const Words flags = {"--steps", "3", "--size", "32x32", "--device", "cpu", "-q"};
  Words batch = {"batch",     folder.file("prompts.txt"), "-o",   folder.file("out"), "-c",
                 kTinyConfig, "--quantization",           "int8", "--batch-size",     "2"};
  batch.insert(batch.end(), flags.begin(), flags.end());
  const Outcome many = run(batch);
  CAPTURE(many.err);
  REQUIRE(many.code == 0);
  CHECK(record_of(folder, "out/0001.png")["quantization"] == "int8");

  Words bench = {"bench",  "-c", kTinyConfig, "-p", "x",         "--repeats",        "1",
                 "--json", "-",  "--warmup",  "0",  "--against", "quantization=int8"};
  bench.insert(bench.end(), flags.begin(), flags.end());
  const Outcome measured = run(bench);
  CAPTURE(measured.err);
  REQUIRE(measured.code == 0);
  const json report = json::parse(measured.out);
  CHECK(report["cases"][0]["settings"][0]["ran"]["quantization"] == "none");
  CHECK(report["cases"][0]["settings"][1]["ran"]["quantization"] == "int8");
}

}  // namespace diptych
