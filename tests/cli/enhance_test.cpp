// --enhance-prompt: a tiny Qwen3 writes the prompt of a tiny BAGEL anew. What it writes makes no
// sense, and is what the picture is painted from.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/text_file.h"
#include "lib/media/image_read.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::record_of;
using test::refusal;
using test::run;
using test::with;
using test::Words;

const std::string kQwen = DIPTYCH_SOURCE_DIR "/tests/goldens/dflash/checkpoint_trained";
const std::string kEnhancer = kQwen + "/target";
const std::string kDrafter = kQwen + "/drafter_b16";
constexpr const char* kPrompt = "Count from 103 to 114.";
// What the tiny model answers to that where nothing was said ahead of it.
constexpr const char* kBrief = "Count.";

// The model, told what is in the folder's file.
Words enhanced(const Folder& folder) {
  folder.write("how.txt", kBrief);
  return {"--enhance-prompt",     "--enhancer",           kEnhancer, "--enhance-instructions",
          folder.file("how.txt"), "--enhance-max-tokens", "24"};
}

Words painted(const Folder& folder, const std::string& name, const Words& more) {
  return with(
      {"generate", "-c", kTinyConfig, "--steps", "3", "--device", "cpu", "-o", folder.file(name)},
      more);
}

Outcome paint(const Folder& folder, const std::string& name, const Words& more) {
  const Outcome outcome = run(painted(folder, name, more));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome;
}

std::string painted_prompt(const json& record) {
  for (const json& input : record.at("inputs")) {
    if (input.contains("text")) return input["text"];
  }
  return {};
}

bool same_pixels(const Folder& folder, const std::string& a, const std::string& b) {
  const auto rgb = [&](const std::string& name) {
    return read_picture(folder.path() / name).image.rgb;
  };
  return rgb(a).equal(rgb(b));
}

TEST_CASE("a picture is painted from the prompt that the enhancer wrote, and says so") {
  const Folder folder;
  const Outcome outcome = paint(folder, "a.png", with(enhanced(folder), {"-p", kPrompt}));
  json record = record_of(folder.path() / "a.png");
  const std::string prompt = painted_prompt(record);
  CHECK_FALSE(prompt.empty());
  CHECK(prompt != kPrompt);
  CHECK(prompt.find('\n') == std::string::npos);
  CHECK(has(outcome.err, "[INFO ] prompt: " + prompt + "\n"));
  CHECK(record.at("enhanced") == json{{"prompt_given", kPrompt},
                                      {"enhancer", "target"},
                                      {"instructions", kBrief},
                                      {"max_tokens", 24}});
  // The same as of that prompt alone, but for the note of how it came about.
  const Outcome plain = paint(folder, "b.png", {"-p", prompt});
  CHECK_FALSE(has(plain.err, "prompt: "));
  record.erase("enhanced");
  CHECK(record == record_of(folder.path() / "b.png"));
  CHECK(same_pixels(folder, "a.png", "b.png"));
  CHECK(record.at("requested").contains("negative_prompt"));
  CHECK_FALSE(record.at("requested").contains("enhancer"));
  // Its drafter changes nothing but that it is named.
  paint(folder, "c.png", with(enhanced(folder), {"-p", kPrompt, "--enhancer-drafter", kDrafter}));
  json drafted = record_of(folder.path() / "c.png");
  CHECK(drafted.at("enhanced").at("drafter") == "drafter_b16");
  drafted.erase("enhanced");
  CHECK(drafted == record);
  CHECK(same_pixels(folder, "a.png", "c.png"));
}

TEST_CASE("a replay paints the recorded prompt without the enhancer") {
  const Folder folder;
  paint(folder, "a.png", with(enhanced(folder), {"-p", kPrompt, "-q"}));
  fs::remove(folder.path() / "how.txt");
  const Outcome again = run({"inspect", folder.file("a.png"), "--replay", "-m", kTinyCheckpoint});
  CAPTURE(again.err);
  CHECK(again.code == 0);
  CHECK(has(again.out, "a.png: identical, "));
  CHECK_FALSE(has(again.err, "prompt: "));
  const Outcome shown = run({"inspect", folder.file("a.png")});
  CHECK(has(shown.out, "\"prompt_given\": \"" + std::string(kPrompt) + "\""));
  CHECK(has(shown.out, "\"text\": \"" + painted_prompt(record_of(folder.path() / "a.png")) + "\""));
}

TEST_CASE("an edit keeps its picture, and the enhancer sees the text alone") {
  const Folder folder;
  const Words words = with(enhanced(folder), {"-p", kPrompt, "-q"});
  paint(folder, "text.png", words);
  paint(folder, "edit.png", with(words, {"-i", test::kPicture}));
  const json edit = record_of(folder.path() / "edit.png");
  CHECK(edit.at("inputs").size() == 2);
  CHECK(painted_prompt(edit) == painted_prompt(record_of(folder.path() / "text.png")));
}

TEST_CASE("a stage config names the enhancer as stage 0; answers are not rewritten") {
  const Folder folder;
  folder.write("how.txt", kBrief);
  folder.write("both.yaml", "pipeline: bagel\nmodel: " + kTinyCheckpoint +
                                "\nstages:\n"
                                "  - stage_id: 0\n"
                                "    model_stage: enhancer\n"
                                "    model: " +
                                kEnhancer +
                                "\n"
                                "    draft_model: " +
                                kDrafter +
                                "\n"
                                "    default_sampling_params:\n"
                                "      max_tokens: 24\n"
                                "      extra_args: {enhance_prompt: true, instructions: how.txt}\n"
                                "  - stage_id: 1\n"
                                "    default_sampling_params: {max_tokens: 8}\n"
                                "  - stage_id: 2\n"
                                "    default_sampling_params:\n"
                                "      {width: 96, height: 96, num_inference_steps: 3}\n");
  const Words file = {"generate", "-c", folder.file("both.yaml"), "--device", "cpu", "-p", kPrompt};
  const Outcome staged = run(with(file, {"-o", folder.file("a.png")}));
  CAPTURE(staged.err);
  REQUIRE(staged.code == 0);
  paint(folder, "b.png", with(enhanced(folder), {"-p", kPrompt, "-q"}));
  CHECK(same_pixels(folder, "a.png", "b.png"));
  CHECK(has(staged.err, "prompt: " + painted_prompt(record_of(folder.path() / "b.png"))));
  const Outcome answer = run(with(file, {"--task", "chat"}));
  CAPTURE(answer.err);
  CHECK(answer.code == 0);
  CHECK_FALSE(has(answer.err, "prompt: "));
  const Outcome plain = run(with(file, {"--enhance-prompt=false", "-o", folder.file("c.png")}));
  CHECK(plain.code == 0);
  CHECK(painted_prompt(record_of(folder.path() / "c.png")) == kPrompt);
  CHECK(run(with(file, {"--check-config"})).out == folder.file("both.yaml") + ": valid\n");
}

TEST_CASE("a batch writes all prompts first; the manifest has both, and is taken up again") {
  const Folder folder;
  folder.write("list.jsonl",
               json{{"prompt", kPrompt}}.dump() + "\n" +
                   json{{"prompt", "a fox"}, {"enhance_prompt", false}}.dump() + "\n" +
                   json{{"prompt", "Count from 3 to 9."}, {"id", "nine"}}.dump() + "\n");
  const Words words = with({"batch", folder.file("list.jsonl"), "-o", folder.file("out"), "-c",
                            kTinyConfig, "--steps", "3", "--device", "cpu", "--batch-size", "2"},
                           enhanced(folder));
  const Outcome outcome = run(words);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  std::vector<json> lines;
  const std::string manifest = read_text_file(folder.path() / "out" / "manifest.jsonl");
  for (std::size_t at = 0; at < manifest.size(); at = manifest.find('\n', at) + 1)
    lines.push_back(json::parse(manifest.substr(at, manifest.find('\n', at) - at)));
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("prompt_given") == kPrompt);
  CHECK_FALSE(lines[1].contains("prompt_given"));
  CHECK(lines[2].at("prompt_given") == "Count from 3 to 9.");
  const std::string nine = lines[2].at("prompt");
  CHECK(has(outcome.err, "nine: prompt: " + nine));
  CHECK(outcome.err.find("nine: prompt: ") < outcome.err.find("1/3"));
  const json record = record_of(folder.path() / "out" / "0002.png");
  CHECK(painted_prompt(record) == nine);
  CHECK(record.at("enhanced").at("prompt_given") == "Count from 3 to 9.");
  CHECK_FALSE(record_of(folder.path() / "out" / "0001.png").contains("enhanced"));
  // Alone it gets the same prompt.
  paint(folder, "a.png", with(enhanced(folder), {"-p", "Count from 3 to 9.", "-q"}));
  CHECK(painted_prompt(record_of(folder.path() / "a.png")) == nine);

  const Outcome done = run(with(words, {"--resume"}));
  CHECK(done.code == 0);
  CHECK(has(done.err, "0 done, 0 failed, 3 skipped"));
  CHECK_FALSE(has(done.err, "prompt: "));
  // Other instructions ask for another picture.
  folder.write("how.txt", "Be brief.");
  Words other = words;
  other.push_back("--resume");
  for (std::string& word : other) {
    if (word == folder.file("how.txt")) word = folder.file("other.txt");
  }
  folder.write("other.txt", "Sing.");
  const Outcome changed = run(other);
  CAPTURE(changed.err);
  CHECK(has(changed.err, "2 done, 0 failed, 1 skipped"));
  CHECK(has(changed.err, "nine: prompt: "));
}

TEST_CASE("an item without an enhancer fails alone, a wrong flag fails all") {
  const Folder folder;
  folder.write("list.jsonl",
               json{{"prompt", "a"}}.dump() + "\n" +
                   json{{"prompt", "b"}, {"enhance_prompt", true}, {"enhancer", "nowhere"}}.dump() +
                   "\n");
  const Words words = {"batch",    folder.file("list.jsonl"),
                       "-o",       folder.file("out"),
                       "-c",       kTinyConfig,
                       "--steps",  "3",
                       "--device", "cpu"};
  const Outcome outcome = run(words);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "list.jsonl:2: enhancer: " + folder.file("nowhere") + ": not found"));
  CHECK(has(outcome.err, "1 done, 1 failed"));
  Words all = words;
  all[3] = folder.file("none");
  const std::string said =
      refusal(run(with(all, {"--enhance-prompt", "--enhancer", kTinyCheckpoint, "-q"})));
  CHECK(has(said, "rewrites no prompts"));
  CHECK_FALSE(fs::exists(folder.path() / "none"));
}

TEST_CASE("a benchmark writes the prompt once, ahead of what is measured") {
  const Folder folder;
  const Outcome outcome =
      run(with({"bench", "-c", kTinyConfig, "--steps", "2", "--device", "cpu", "--repeats", "2",
                "--warmup", "0", "-p", kPrompt, "--json", "-", "--against", "cfg_mode=sequential"},
               enhanced(folder)));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::size_t first = outcome.err.find("prompt: ");
  REQUIRE(first != std::string::npos);
  CHECK(has(outcome.out, outcome.err.substr(first + 8, outcome.err.find('\n', first) - first - 8)));
}

TEST_CASE("what cannot be rewritten is refused by its flag") {
  const Folder folder;
  const auto refused = [&](const Words& more) {
    return refusal(run(painted(folder, "a.png", with({"-q"}, more))));
  };
  CHECK(refused({"-p", "a", "--enhance-prompt"}) ==
        "--enhancer: not given; expected the folder of a language model for --enhance-prompt\n");
  CHECK(refused({"-p", "a", "--enhancer", kEnhancer}) ==
        "--enhancer: given without --enhance-prompt\n");
  CHECK(refused({"-p", "a", "--enhance-max-tokens", "9"}) ==
        "--enhance-max-tokens: given without --enhance-prompt\n");
  const Words on = {"--enhance-prompt", "--enhancer", kEnhancer};
  CHECK(refused(with(on, {"-p", " "})) ==
        "--prompt: is empty; expected a text to rewrite with --enhance-prompt\n");
  CHECK(refused(with(on, {"-p", "a", "-p", "b"})) ==
        "--prompt: found 2 texts; expected one with --enhance-prompt\n");
  CHECK(refused({"-p", "a", "--enhance-prompt", "--enhancer", "none"}) ==
        "--enhancer: none: not found; expected a folder\n");
  CHECK(refused({"-p", "a", "--enhance-prompt", "--enhancer", folder.path().string()}) ==
        "--enhancer: " + folder.path().string() + ": holds no checkpoint of qwen3_dflash\n");
  CHECK(refused({"-p", "a", "--enhance-prompt", "--enhancer", kTinyCheckpoint}) ==
        "--enhancer: " + kTinyCheckpoint +
            ": holds a checkpoint of bagel, which rewrites no prompts; expected qwen3_dflash\n");
  CHECK(folder.names().empty());
}

TEST_CASE("what the enhancer's model refuses is told of by the enhancer's flags") {
  const Folder folder;
  const auto refused = [&](const Words& more) {
    return refusal(run(painted(folder, "a.png", with({"-q"}, more))));
  };
  const Words on = {"--enhance-prompt", "--enhancer", kEnhancer};
  CHECK(
      has(refused(with(on, {"-p", "a", "--enhancer-drafter", kEnhancer})), "--enhancer-drafter: "));
  CHECK(has(refused(with(on, {"-p", "a", "--enhance-instructions", "none"})),
            "--enhance-instructions: none: no such file"));
  CHECK(has(refused(with(on, {"-p", "a", "--enhance-max-tokens", "40960"})),
            "--enhance-max-tokens: found 40960, but the prompt has "));
  CHECK(has(refused(with(on, {"-p", "a", "--task", "chat"})),
            "--enhance-prompt: has no meaning for --task chat, which paints nothing"));
  CHECK(has(refusal(run({"generate", "-m", kEnhancer, "-p", "a", "--enhance-prompt"})),
            "--enhance-prompt: the family qwen3_dflash has no use for it"));
  folder.write("how.txt", kBrief);
  CHECK(
      has(refusal(run(painted(folder, "a.png",
                              with(on, {"-p", "a", "--enhance-instructions", folder.file("how.txt"),
                                        "--think", "--think-output", folder.file("how.txt")})))),
          "the instructions of the enhancer; expected another name"));
  CHECK(folder.names() == std::vector<std::string>{"how.txt"});
}

TEST_CASE("a signal ends the writing of a prompt") {
  const Folder folder;
  test::Command command;
  command.arguments =
      painted(folder, "a.png", with(enhanced(folder), {"-p", kPrompt, "--progress", "kv"}));
  for (std::string& word : command.arguments) {
    if (word == "24") word = "20000";
  }
  command.interrupt_after = "stage=answer";
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 130);
  CHECK_FALSE(has(outcome.err, "prompt: "));
  CHECK_FALSE(fs::exists(folder.path() / "a.png"));
}

}  // namespace
}  // namespace diptych
