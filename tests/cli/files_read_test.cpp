// What a run reads is not what it writes, whatever flag names it.
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using test::kTinyCheckpoint;
using test::Outcome;
using test::run;
using test::Words;

struct Reading {
  Folder folder;
  std::string model = folder.file("model");

  Reading() { fs::copy(kTinyCheckpoint, model, fs::copy_options::recursive); }

  Outcome run_quick(Words words) const {
    for (const char* more : {"-m", "", "--device", "cpu", "--size", "32x32", "--steps", "3", "-q"})
      words.emplace_back(*more == '\0' ? model : more);
    return run(words);
  }
  std::string refused(const Words& words) const {
    const Outcome outcome = run_quick(words);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  }
};

TEST_CASE("generate keeps its model and its noise") {
  const Reading f;
  const std::string weights = f.model + "/ema.safetensors", noise = f.folder.file("n.safetensors");
  const auto size = fs::file_size(weights);
  CHECK(f.refused({"generate", "-p", "x", "-o", f.folder.file("a.png"), "--trace", weights}) ==
        "diptych: --trace: " + weights + ": is a file of the model; expected another name\n");
  CHECK(fs::file_size(weights) == size);
  REQUIRE(f.run_quick({"generate", "-p", "x", "-o", f.folder.file("a.png"), "--trace", noise,
                       "--trace-filter", "*init_noise"})
              .code == 0);
  CHECK(f.refused({"generate", "-p", "x", "-o", f.folder.file("b.png"), "--noise", noise, "--trace",
                   noise}) ==
        "diptych: --trace: " + noise + ": is the noise; expected another name\n");
  REQUIRE(
      f.run_quick({"generate", "-p", "x", "-o", f.folder.file("b.png"), "--noise", noise}).code ==
      0);
  CHECK(run({"inspect", f.folder.file("b.png"), "--replay", "-m", f.model, "-q"}).code == 0);
  CHECK(run({"inspect", f.folder.file("b.png"), "--replay", "-m", f.model, "-q", "-o",
             f.model + "/config.json.png"})
            .code == 0);  // not there before

  f.folder.write("n.safetensors", "");
  const Outcome broken = run({"inspect", f.folder.file("b.png"), "--replay", "-m", f.model, "-q"});
  CHECK(broken.code == 2);
  CHECK(broken.err.find("n.safetensors: holds 0 bytes") != std::string::npos);
}

TEST_CASE("generate keeps the files of its prompts") {
  const Reading f;
  f.folder.write("p.txt", "a fox\n");
  const std::string prompt = f.folder.file("p.txt");
  CHECK(f.refused({"generate", "-p", "@" + prompt, "--think", "--think-output", prompt, "-o",
                   f.folder.file("a.png")}) ==
        "diptych: --think-output: " + prompt +
            ": is the file of a prompt; expected another name\n");
  CHECK(read_text_file(prompt) == "a fox\n");
  CHECK(f.refused({"generate", "-p", "a fox", "-n", "@" + prompt, "--think", "--think-output",
                   prompt, "-o", f.folder.file("a.png")}) ==
        "diptych: --think-output: " + prompt +
            ": is the file of the negative prompt; expected another name\n");
}

TEST_CASE("pictures in the folder of the model are no files of it") {
  const Reading f;
  const std::string picture = f.model + "/a.png";
  for (int time = 0; time < 2; ++time)
    CHECK(f.run_quick({"generate", "-p", "x", "-o", picture}).code == 0);
}

TEST_CASE("calibrate keeps the model") {
  const Reading f;
  const std::string config = f.model + "/llm_config.json";
  CHECK(f.refused({"calibrate", "--pictures", "1", "-o", config}) ==
        "diptych: --output: " + config + ": is a file of the model; expected another name\n");
}

TEST_CASE("batch keeps its model and its list") {
  const Reading f;
  f.folder.write("list.jsonl", R"({"prompt": "x", "trace": "model/ae.safetensors"})");
  const Words batch = {"batch", f.folder.file("list.jsonl"), "-o", f.folder.file("")};
  CHECK(f.refused(batch).find("list.jsonl:1: writes model/ae.safetensors, which is a file of the "
                              "model; give it another output") != std::string::npos);
  f.folder.write("manifest.jsonl", R"({"prompt": "x"})");
  CHECK(f.refused({"batch", f.folder.file("manifest.jsonl"), "-o", f.folder.file("")})
            .find("would be replaced by the manifest") != std::string::npos);
  f.folder.write("0000.txt", "x\n");
  CHECK(run({"batch", f.folder.file("0000.txt"), "-o", f.folder.file(""), "-m", f.model, "--task",
             "chat", "--device", "cpu", "-q"})
            .err.find("0000.txt:1: writes the list itself") != std::string::npos);
}

}  // namespace
}  // namespace diptych
