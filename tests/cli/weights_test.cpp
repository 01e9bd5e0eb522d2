// LoRA files and single files of weights on the command line, where the full recordings of Wan are:
// values with their origins, the record, and `inspect --replay`.
#include <algorithm>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/sha256.h"
#include "lib/tensor/safetensors.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using test::has;
using test::Outcome;
using test::run;
using test::with;
using test::Words;

// Empty where they are not.
fs::path full_goldens() {
  const fs::path folder = test::goldens_of("wan").back();
  return fs::exists(folder / "checkpoint/model_index.json") ? folder : fs::path();
}

Outcome generate(const fs::path& goldens, const std::string& output, const Words& more) {
  return run(with({"generate", "-m", (goldens / "checkpoint").string(), "-p", "a cat", "--size",
                   "48x32", "--steps", "2", "--device", "cpu", "-o", output},
                  more));
}

}  // namespace

TEST_CASE("a LoRA file is recorded, and found again by its content" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const fs::path cases = goldens / "cases";
  const Folder folder;
  const fs::path lora = folder.path() / "style.safetensors";
  fs::copy(cases / "t2v_lora_diffusers/lora.safetensors", lora);
  fs::copy(cases / "single_file_fp8_scaled/model_fp8_scaled.safetensors",
           folder.path() / "scaled.safetensors");
  const Outcome made = generate(goldens, folder.file("a.png"),
                                {"--lora", lora.string() + ":0.5", "--cfg-scale", "1",
                                 "--transformer", folder.file("scaled.safetensors")});
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  CHECK(has(made.err, "19 matrices of rank 4, times 0.5"));

  const nlohmann::json record = test::record_of(folder.path() / "a.png");
  CHECK(record["requested"]["lora"] == nlohmann::json::array({"style.safetensors:0.5"}));
  CHECK(record["requested"]["transformer"] == "scaled.safetensors");
  REQUIRE(record["added_weights"].size() == 1);
  CHECK(record["added_weights"][0] == nlohmann::json({{"file", "style.safetensors"},
                                                      {"sha256", file_sha256(lora).value()},
                                                      {"part", ""},
                                                      {"scale", 0.5}}));

  const auto replay = [&](const Words& more) {
    return run(with({"inspect", folder.file("a.png"), "--replay", "-q", "-m",
                     (goldens / "checkpoint").string()},
                    more));
  };
  const Outcome again = replay({});
  CAPTURE(again.err);
  CHECK(again.code == 0);
  CHECK(has(again.out, ": identical, "));

  const fs::path other = folder.path() / "other.safetensors";
  fs::rename(lora, other);
  const Outcome gone = replay({});
  CHECK(gone.code == 2);
  CHECK(has(gone.err, "give it with --weights"));
  CHECK(replay({"--weights", other.string()}).code == 0);
  fs::copy(cases / "t2v_lora_two/lora_peft.safetensors", lora);
  CHECK(has(replay({}).err, "has other content"));
}

TEST_CASE("a LoRA file whose keys name both experts is found again" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const Folder folder;
  const std::string lora = folder.file("pair.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const char* prefix : {"transformer.", "transformer_2."}) {
    const std::string module = std::string(prefix) + "blocks.0.attn1.to_q.lora_";
    tensors.emplace_back(module + "A.weight", at::full({4, 24}, 0.1));
    tensors.emplace_back(module + "B.weight", at::full({24, 4}, 0.1));
  }
  write_safetensors(lora, tensors);
  const std::string model = (goldens / "checkpoint_a14b").string();
  const Outcome made = run({"generate", "-m", model, "-p", "a cat", "--size", "48x32", "--steps",
                            "2", "--device", "cpu", "--lora", lora, "-o", folder.file("a.png")});
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  const Outcome again =
      run({"inspect", folder.file("a.png"), "--replay", "-q", "-m", model, "--weights", lora});
  CAPTURE(again.err);
  CHECK(again.code == 0);
  CHECK(has(again.out, ": identical, "));
}

TEST_CASE("values of LoRA files come from flags, variables and stage configs" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const Folder folder;
  folder.write("s.yaml",
               fmt::format("pipeline: wan\nmodel: {}\nlora:\n  - low=x/a.safetensors:0.5\n"
                           "  - b.safetensors\nstages:\n  - stage_id: 0\n",
                           (goldens / "checkpoint").string()));
  const Outcome file = run({"generate", "-c", folder.file("s.yaml"), "-p", "x", "--print-config"});
  CAPTURE(file.err);
  CHECK(has(file.out, fmt::format("lora: [\"low={}:0.5\",\"{}\"]", folder.file("x/a.safetensors"),
                                  folder.file("b.safetensors"))));
  test::Command variable;
  variable.arguments = {"generate", "-m", (goldens / "checkpoint").string(),
                        "-p",       "x",  "--print-config"};
  variable.environment["DIPTYCH_LORA"] = "high=c.safetensors;d.safetensors:2";
  CHECK(has(run(variable).out, "lora: [\"high=c.safetensors\",\"d.safetensors:2\"]"));
}

TEST_CASE("files of weights that cannot be used end with 2 and one line" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const Folder folder;
  const auto refusal = [&](const Words& more) {
    const Outcome outcome = generate(goldens, folder.file("a.png"), with({"-q"}, more));
    CHECK(outcome.code == 2);
    CHECK(std::ranges::count(outcome.err, '\n') == 1);
    return outcome.err;
  };
  CHECK(has(refusal({"--lora", "gone.safetensors"}), "--lora: gone.safetensors: "));
  CHECK(has(refusal({"--lora", "gone.safetensors:x"}), "--lora: "));
  const std::string single = (goldens / "cases/single_file_original/model.safetensors").string();
  CHECK(has(refusal({"--lora", single}), "fits nothing of the model"));
  CHECK(has(refusal({"--lora",
                     "high=" + (goldens / "cases/t2v_lora_two/lora_peft.safetensors").string()}),
            "has one transformer"));
  folder.write("cut.safetensors", "\x08");
  CHECK(has(refusal({"--transformer", folder.file("cut.safetensors")}), "--transformer: "));
  // What is read is not written over.
  const fs::path own = folder.path() / "own.safetensors.png";
  fs::copy(single, own);
  const Outcome over = generate(goldens, own.string(), {"-q", "--transformer", own.string()});
  CHECK(over.code == 2);
  CHECK(has(over.err, "is a file of weights"));
}

}  // namespace diptych
