// Stages that are apart: one model reads, another one paints, in one process or in two.
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/text_file.h"
#include "tests/cli/batch_contents.h"
#include "tests/cli/lance_folder.h"
#include "tests/cli/rank_processes.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace {

namespace fs = std::filesystem;
using diptych::read_text_file;
using diptych::test::check_all;
using diptych::test::Command;
using diptych::test::contents;
using diptych::test::Folder;
using diptych::test::has;
using diptych::test::Outcome;
using diptych::test::run;
using diptych::test::run_ranks;
using diptych::test::signal_at_cue;
using diptych::test::with;
using diptych::test::Words;

const Words kApart = {"--read-device", "cpu"};

// The demo, on one thread, as ranks have it.
Outcome run_alone(const Words& words) {
  Command command;
  command.arguments = words;
  command.environment = {{"OMP_NUM_THREADS", "1"}};
  return run(command);
}

Words demo(const std::string& output, const Words& more) {
  return with({"generate", "-p", "a red circle on a white background", "--device", "cpu", "--steps",
               "4", "-o", output},
              more);
}

// What one model paints, and two in one process, and two in two of them.
void check_same(const Folder& folder, const Words& more, const std::vector<std::string>& names) {
  const auto bytes = [&](const std::string& way) {
    std::string all;
    for (const std::string& name : names) all += read_text_file(folder.file(way + name));
    return all;
  };
  const Outcome together = run_alone(demo(folder.file("together.png"), more));
  CAPTURE(together.err);
  REQUIRE(together.code == 0);
  const Outcome apart = run_alone(demo(folder.file("apart.png"), with(kApart, more)));
  CAPTURE(apart.err);
  REQUIRE(apart.code == 0);
  CHECK(bytes("apart") == bytes("together"));
  for (const std::string connector : {"shared_memory", "c10d"}) {
    CAPTURE(connector);
    const Words words =
        with(demo(folder.file(connector + ".png"), with(kApart, more)), {"--connector", connector});
    const std::vector<Outcome> ranks = run_ranks(2, words);
    check_all(ranks, 0);
    CHECK(has(ranks[0].err, "one reads, the other one paints (" + connector + ")"));
    CHECK((ranks[1].out + ranks[1].err).empty());
    CHECK(bytes(connector) == bytes("together"));
  }
}

constexpr const char* kList = R"({"prompt": "a red fox"}
{"prompt": "two birds", "seed": 9, "size": "48x32", "output": "sub/birds.png", "id": "birds"}
{"prompt": "three", "batch_count": 2, "think": true, "max_think_tokens": 5, "think_output": "plan.txt"}
{"prompt": "four", "seed": 4, "cfg_scale": 1}
{"prompt": "five", "seed": 5}
{"prompt": "six", "size": "32x48"}
)";

Words batch(const Folder& folder, const std::string& output, const Words& more = {}) {
  return with({"batch", folder.file("l.jsonl"), "-c", diptych::test::kTinyConfig, "-o",
               folder.file(output), "--steps", "4", "--size", "32x32", "--device", "cpu"},
              more);
}

}  // namespace

TEST_SUITE_BEGIN("ranks");

TEST_CASE("a picture of two stages has the bytes of one model's") {
  const Folder folder;
  check_same(folder, {}, {".png"});
}

TEST_CASE("so have pictures of one request, which are read once, and one with a plan") {
  const Folder folder;
  check_same(folder, {"-b", "2", "--size", "64x64"}, {"-000.png", "-001.png"});
  check_same(folder, {"--think", "--seed", "7"}, {".png"});
}

TEST_CASE("so have edits, each of which draws what it reads") {
  const Folder folder;
  const std::string input = folder.file("input.png");
  REQUIRE(run_alone(demo(input, {})).code == 0);
  check_same(folder, {"-i", input, "-b", "2"}, {"-000.png", "-001.png"});
}

TEST_CASE("a list is read ahead, with the bytes of one model's") {
  const Folder folder;
  folder.write("l.jsonl", kList);
  REQUIRE(run(batch(folder, "together")).code == 0);
  const auto expected = contents(folder.path() / "together");
  const Outcome apart = run(batch(folder, "apart", kApart));
  CAPTURE(apart.err);
  CHECK(apart.code == 0);
  CHECK(contents(folder.path() / "apart") == expected);
  const Outcome shared = run(batch(folder, "shared", with(kApart, {"--batch-size", "3"})));
  CAPTURE(shared.err);
  CHECK(shared.code == 0);
  for (const std::size_t ranks : {2, 4}) {
    const std::string name = "ranks" + std::to_string(ranks);
    const std::vector<Outcome> outcomes = run_ranks(ranks, batch(folder, name, kApart));
    check_all(outcomes, 0);
    CHECK(has(outcomes[0].err, "of which one reads and the other one paints (shared_memory)"));
    auto painted = contents(folder.path() / name);
    CHECK(painted.erase("manifest.jsonl") == 1);  // groups write their lines when they are ready
    auto pictures = expected;
    pictures.erase("manifest.jsonl");
    CHECK(painted == pictures);
  }
}

TEST_CASE("an item that fails is left out of what is read ahead") {
  const Folder folder;
  folder.write("l.jsonl",
               "{\"prompt\": \"one\"}\n{\"prompt\": \"two\", \"image\": \"none.png\"}\n"
               "{\"prompt\": \"three\"}\n");
  folder.write("none.png", "no picture");
  for (const std::size_t ranks : {1, 2}) {
    const std::string name = "out" + std::to_string(ranks);
    const Words words = batch(folder, name, kApart);
    const Outcome outcome = ranks == 1 ? run(words) : run_ranks(ranks, words)[0];
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "3 items: 2 done, 1 failed"));
    CHECK(fs::exists(folder.path() / name / "0002.png"));
  }
}

TEST_CASE("what one stage fails with ends both") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const auto start = std::chrono::steady_clock::now();
  std::vector<Outcome> outcomes =
      run_ranks(2, demo(output, kApart), [&](std::size_t rank, Command& command) {
        if (rank == 1)
          command.arguments.insert(command.arguments.end(), {"--noise", folder.file("none")});
      });
  check_all(outcomes, 2);
  CHECK(outcomes[1].err.starts_with("diptych: rank 1: --noise: "));
  // One that is killed while it reads a list: what is painted stays.
  std::string list;
  for (int i = 0; i < 40; ++i) list += "{\"prompt\": \"item\"}\n";
  folder.write("l.jsonl", list);
  outcomes = run_ranks(2, batch(folder, "killed", with(kApart, {"--progress", "kv"})),
                       [&](std::size_t rank, Command& command) {
                         signal_at_cue(rank, command, 1, 0, "\ndone=2\ntotal=40", SIGKILL,
                                       folder.file("pid"));
                       });
  CHECK(outcomes[0].code == 3);
  CHECK(fs::exists(folder.path() / "killed/0000.png"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  check_all(run_ranks(2, batch(folder, "killed", with(kApart, {"--resume"}))), 0);
  CHECK(fs::exists(folder.path() / "killed/0039.png"));
}

TEST_CASE("a text is written by the stage that reads") {
  const Folder folder;
  const Words chat = {"generate", "--task", "chat", "-p", "what is it?", "--device", "cpu"};
  const Outcome together = run_alone(chat), apart = run_alone(with(chat, kApart));
  CAPTURE(apart.err);
  CHECK(apart.code == 0);
  CHECK(apart.out == together.out);
}

TEST_CASE("stages apart are refused where they have no meaning") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const auto error_of = [&](const Words& more) {
    const Outcome outcome = run(demo(output, with(more, {"-q"})));
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK(error_of({"--connector", "c10d"}) == "diptych: --connector: given without --read-device\n");
  CHECK(has(error_of(with(kApart, {"--connector", "c10d"})),
            "--connector c10d: is between processes, and this one is alone"));
  CHECK(has(error_of({"--read-device", "cuda:99"}), "diptych: --read-device cuda:99: "));
  CHECK(error_of({"--read-device", "tpu"}) ==
        "diptych: --read-device: unknown value 'tpu' (known: same, auto, cpu, cuda, cuda:N)\n");
  CHECK(has(error_of(with(kApart, {"--trace", folder.file("t.safetensors")})),
            "--trace: needs a model that reads and paints, and --read-device cpu makes two"));
  const auto first_error = [&](std::size_t ranks, const Words& words) {
    const std::vector<Outcome> outcomes = run_ranks(ranks, words);
    check_all(outcomes, 2);
    return outcomes[0].err;
  };
  CHECK(has(first_error(2, demo(output, with(kApart, {"--connector", "in_process"}))),
            "--connector in_process: the stages are two processes; expected shared_memory or "
            "c10d"));
  CHECK(has(first_error(3, demo(output, kApart)),
            "--read-device cpu: 3 processes share one request (RANK and WORLD_SIZE), but a stage "
            "that reads and one that paints are the work of 2"));
  CHECK(has(first_error(4, demo(output, with(kApart, {"--cfg-parallel-size", "2"}))),
            "--read-device cpu: the stage that paints is one process, found 2 (cfg 2, rows 1)"));
}

TEST_CASE("a clip of two stages, and one of a picture") {
  const Folder folder;
  const std::string input = folder.file("input.png");
  const Words clip = {
      "generate", "--task", "t2v",      "-p", "a red circle moves up", "--video-frames", "5",
      "--steps",  "2",      "--device", "cpu"};
  REQUIRE(run_alone(demo(input, {})).code == 0);
  for (const Words& more : {Words{}, Words{"--task", "i2v", "-i", input}}) {
    Words words = clip;
    if (!more.empty()) words.erase(words.begin() + 1, words.begin() + 3);
    words = with(words, more);
    const std::string together = folder.file("together.gif"), apart = folder.file("apart.gif"),
                      ranks = folder.file("ranks.gif");
    REQUIRE(run_alone(with(words, {"-o", together})).code == 0);
    REQUIRE(run_alone(with(words, with(kApart, {"-o", apart}))).code == 0);
    check_all(run_ranks(2, with(words, with(kApart, {"-o", ranks}))), 0);
    CHECK(read_text_file(apart) == read_text_file(together));
    CHECK(read_text_file(ranks) == read_text_file(together));
  }
}

TEST_SUITE_END();
