// `diptych batch` in several processes that were started together: groups of them take turns at the
// list and write one manifest; the ranks of a group share each item.
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/batch_contents.h"
#include "tests/cli/rank_processes.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace {

namespace fs = std::filesystem;
using diptych::test::check_all;
using diptych::test::Command;
using diptych::test::contents;
using diptych::test::Folder;
using diptych::test::has;
using diptych::test::manifest;
using diptych::test::Outcome;
using diptych::test::run;
using diptych::test::run_ranks;
using diptych::test::signal_at_cue;
using diptych::test::with;
using diptych::test::Words;

constexpr const char* kList = R"({"prompt": "a red fox"}
{"prompt": "two birds", "seed": 9, "size": "48x32", "output": "sub/birds.png", "id": "birds"}
{"prompt": "three", "batch_count": 2, "think": true, "max_think_tokens": 5, "think_output": "plan.txt"}
{"prompt": "four", "seed": 4, "trace": "four.safetensors", "trace_filter": "denoise.*"}
{"prompt": "five", "seed": 5}
{"prompt": "six", "size": "32x48"}
)";

Words batch(const Folder& folder, const std::string& output, const Words& more = {}) {
  return with({"batch", folder.file("l.jsonl"), "-c", diptych::test::kTinyConfig, "-o",
               folder.file(output), "--steps", "4", "--size", "32x32", "--device", "cpu"},
              more);
}

const Words kBranches = {"--cfg-parallel-size", "2"};
const Words kSequential = {"--cfg-mode", "sequential"};

// Of one process.
std::map<std::string, std::string> alone(const Folder& folder, int code, const Words& more = {}) {
  const Outcome outcome = run(batch(folder, "alone", with(kSequential, more)));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == code);
  return contents(folder.path() / "alone");
}

}  // namespace

TEST_SUITE_BEGIN("ranks");

TEST_CASE("groups of ranks share a list, and the ranks of a group its items") {
  const Folder folder;
  folder.write("l.jsonl", kList);
  const std::vector<Outcome> ranks = run_ranks(4, batch(folder, "out", kBranches));
  check_all(ranks, 0);
  CHECK(has(ranks[0].err, "4 processes share this list: 2 items at a time, 2 branches each"));
  CHECK(has(ranks[0].err, "part 0/2 of 6 items, from RANK and WORLD_SIZE; all write manifest"));
  CHECK(has(ranks[0].err, "3 items: 3 done, 0 failed"));
  CHECK(has(ranks[2].err, "3 items: 3 done, 0 failed"));
  for (const std::size_t quiet : {1, 3}) CHECK((ranks[quiet].out + ranks[quiet].err).empty());
  CHECK(ranks[0].out.starts_with(folder.file("out/0000.png") + "\n"));
  auto together = contents(folder.path() / "out"), single = alone(folder, 0);
  // Of divided branches a trace has those of the leading rank.
  CHECK(together.erase("four.safetensors") == 1);
  CHECK(single.erase("four.safetensors") == 1);
  for (auto* files : {&together, &single}) {
    std::string& lines = (*files)["manifest.jsonl"];
    const std::size_t trace = lines.find("four.safetensors");
    REQUIRE(trace != std::string::npos);
    lines.erase(trace, std::string("four.safetensors\",\"sha256\":\"").size() + 64);
  }
  CHECK((together == single));
}

TEST_CASE("each group of ranks paints the prompts that its first rank has rewritten") {
  const Folder folder;
  folder.write("l.jsonl", R"({"prompt": "Count from 103 to 114.", "id": "a"}
{"prompt": "Count from 7 to 9.", "id": "b"}
{"prompt": "", "id": "c"}
)");
  folder.write("how.txt", "Count.");
  const Words rewritten = {"--enhance-prompt",
                           "--enhancer",
                           DIPTYCH_SOURCE_DIR "/tests/goldens/dflash/checkpoint_trained/target",
                           "--enhance-instructions",
                           folder.file("how.txt"),
                           "--enhance-max-tokens",
                           "24"};
  const std::vector<Outcome> ranks = run_ranks(4, batch(folder, "out", with(kBranches, rewritten)));
  check_all(ranks, 4);
  CHECK(has(ranks[0].err, "a: prompt: "));
  CHECK(has(ranks[2].err, "b: prompt: "));
  auto together = contents(folder.path() / "out"), single = alone(folder, 4, rewritten);
  CHECK((together == single));
}

TEST_CASE("an item that fails is recorded, and its ranks go on") {
  const Folder folder;
  folder.write("l.jsonl", R"({"prompt": "one"}
{"prompt": "lost", "image": "none.png"}
{"prompt": "odd", "steps": 0}
{"prompt": "four", "seed": "random", "output": "place/four.png"}
{"prompt": "five", "output": "blocked/five.png"}
{"task": "chat", "prompt": "hello"}
{"prompt": "unguided", "cfg_scale": 1}
)");
  fs::create_directory(folder.path() / "out");
  folder.write("out/blocked", "a file");
  const std::vector<Outcome> ranks = run_ranks(2, batch(folder, "out", kBranches));
  check_all(ranks, 4);
  CHECK(has(ranks[0].err, "7 items: 2 done, 5 failed"));
  const auto lines = manifest(folder.path() / "out/manifest.jsonl");
  REQUIRE(lines.size() == 7);
  const auto error = [&](std::size_t i) { return lines[i].value("error", ""); };
  CHECK(error(0).empty());
  CHECK(has(error(1), "none.png"));
  CHECK(has(error(2), "steps"));
  CHECK(error(3).empty());
  CHECK(has(error(4), "blocked"));
  CHECK(has(error(5), "writes a text, which is the work of one"));
  CHECK(has(error(6), "guidance is off"));
}

TEST_CASE("a rank that is killed loses no finished item, and --resume does the rest") {
  const Folder folder;
  folder.write("l.jsonl", kList);
  const auto whole = alone(folder, 0);
  const auto resumed = [&](std::size_t victim, const Words& more) {
    fs::remove_all(folder.path() / "out");
    const auto start = std::chrono::steady_clock::now();
    const std::size_t leader = victim / 2 * 2;
    const std::vector<Outcome> ranks =
        run_ranks(4, batch(folder, "out", with(with(kBranches, more), {"--progress", "kv"})),
                  [&](std::size_t rank, Command& c) {
                    if (victim == leader && rank == victim) {
                      c.interrupt_after = "stage=items\ndone=1\n";
                      c.signal = SIGKILL;
                    } else {
                      signal_at_cue(rank, c, victim, leader, "stage=items\ndone=1\n", SIGKILL,
                                    folder.file("process"));
                    }
                  });
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      CHECK_MESSAGE(ranks[rank].code == (rank == victim ? 1000 + SIGKILL : 3), ranks[rank].err);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
    return manifest(folder.path() / "out/manifest.jsonl").size();
  };
  const auto same = [&] {
    auto files = contents(folder.path() / "out");
    CHECK(files["0004.png"] == whole.at("0004.png"));
    CHECK(files["sub/birds.png"] == whole.at("sub/birds.png"));
    CHECK(files.size() == whole.size());
    CHECK(manifest(folder.path() / "out/manifest.jsonl").size() == 6);
  };
  SUBCASE("a rank that does not write; one process does the rest") {
    const std::size_t done = resumed(3, {});
    CHECK(done >= 1);
    const Outcome rest = run(batch(folder, "out", with(kSequential, {"--resume"})));
    CHECK(rest.code == 0);
    CHECK(has(rest.err, std::to_string(done) + " skipped"));
    same();
  }
  SUBCASE("the first one; a single group does the rest") {
    CHECK(resumed(0, {}) >= 1);
    check_all(run_ranks(2, batch(folder, "out", with(kBranches, {"--resume"}))), 0);
    same();
  }
}

TEST_CASE("processes that share no item need not meet, and write one manifest") {
  const Folder folder;
  folder.write("l.jsonl", kList);
  const auto apart = [](std::size_t, Command& c) { c.environment.erase("MASTER_PORT"); };
  const Words together = {"--batch-size", "2"};
  const std::vector<Outcome> three =
      run_ranks(3, batch(folder, "out", with(kSequential, together)), apart);
  check_all(three, 0);
  CHECK(has(three[2].err, "part 2/3 of 6 items, from RANK and WORLD_SIZE"));
  // Which items share a forward does not depend on the number of processes.
  CHECK((contents(folder.path() / "out") == alone(folder, 0, together)));
  const std::vector<Outcome> again = run_ranks(2, batch(folder, "out", kSequential), apart);
  check_all(again, 2);
  CHECK(has(again[1].err, "out/manifest.jsonl: the folder holds a run already; --resume"));
  // Another number of them does the rest.
  fs::remove(folder.path() / "out/0004.png");
  const Words resume = with(kSequential, {"--batch-size", "2", "--resume"});
  check_all(run_ranks(2, batch(folder, "out", resume), apart), 0);
  CHECK((contents(folder.path() / "out") == contents(folder.path() / "alone")));
}

TEST_CASE("degrees that do not fit the processes of a list are refused") {
  const Folder folder;
  folder.write("l.jsonl", kList);
  const Outcome one = run(batch(folder, "out", kBranches));
  CHECK(one.code == 2);
  CHECK(has(one.err, "--cfg-parallel-size: 2 processes are expected, and this one is alone"));
  const std::vector<Outcome> three = run_ranks(3, batch(folder, "out", kBranches));
  check_all(three, 2);
  CHECK(has(three[0].err, "found 3 rank(s), expected a multiple of 2 (cfg 2, ulysses 1, ring 1)"));
  const std::vector<Outcome> shard =
      run_ranks(4, batch(folder, "out", with(kBranches, {"--shard", "0/2"})));
  check_all(shard, 2);
  CHECK(has(shard[0].err + shard[1].err + shard[2].err + shard[3].err,
            "--shard: is a part of the list for 2 processes, which share each item; found 4"));
  const std::vector<Outcome> unguided =
      run_ranks(2, batch(folder, "out", with(kBranches, {"--cfg-scale", "1"})));
  check_all(unguided, 2);
  CHECK(has(unguided[0].err + unguided[1].err, "guidance is off, and there is one branch"));
  CHECK(!fs::exists(folder.path() / "out"));
}

TEST_SUITE_END();
