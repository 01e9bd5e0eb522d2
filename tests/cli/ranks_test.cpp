// Several processes that share a request, as a launcher starts them: each is told its rank by the
// environment.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/words.h"
#include "tests/support/free_port.h"
#include "tests/support/skip.h"

namespace {

namespace fs = std::filesystem;
using diptych::test::Command;
using diptych::test::Folder;
using diptych::test::Outcome;
using diptych::test::skip;
using diptych::test::Words;

std::string bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `change`: what is different about one of them.
std::vector<Outcome> run_ranks(std::size_t size, const Words& arguments,
                               const std::function<void(std::size_t, Command&)>& change = {}) {
  const std::string port = std::to_string(diptych::test::free_port());
  std::vector<Outcome> outcomes(size);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    Command command;
    command.arguments = arguments;
    command.environment = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(size)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port},
                           {"OMP_NUM_THREADS", "1"}};
    if (change) change(rank, command);
    threads.emplace_back([&outcomes, rank, command] { outcomes[rank] = run(command); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Outcome run_alone(const Words& arguments) {
  Command command;
  command.arguments = arguments;
  command.environment = {{"OMP_NUM_THREADS", "1"}};
  return run(command);
}

Words demo(const std::string& output, const Words& more = {"--steps", "4"}) {
  return diptych::test::with(
      {"generate", "-p", "a red circle on a white background", "--device", "cpu", "-o", output},
      more);
}

// Of the recorded runs; "" where they are not there.
std::string wan_checkpoint() {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const fs::path goldens = named != nullptr
                               ? fs::path(named)
                               : fs::path(DIPTYCH_SOURCE_DIR).parent_path() / "shared/goldens";
  const fs::path model = goldens / "wan/checkpoint";
  return fs::exists(model / "model_index.json") ? model.string() : "";
}

Words wan(const std::string& output, const Words& more = {}) {
  return diptych::test::with(
      {"generate", "-m", wan_checkpoint(), "-p", "a cat", "--device", "cpu", "--size", "64x48",
       "--video-frames", "5", "--steps", "3", "-o", output},
      more);
}

void check_all(const std::vector<Outcome>& outcomes, int code) {
  for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == code, outcome.err);
}

}  // namespace

TEST_SUITE_BEGIN("ranks");

TEST_CASE("two ranks that divide the branches give the bytes of sequential guidance") {
  const Folder folder;
  const std::string alone = folder.file("alone.png"), shared = folder.file("shared.png");
  CHECK(run_alone(demo(alone, {"--steps", "4", "--cfg-mode", "sequential"})).code == 0);
  const std::vector<Outcome> outcomes = run_ranks(2, demo(shared));
  check_all(outcomes, 0);
  CHECK(outcomes[0].out == shared + "\n");
  CHECK(outcomes[0].err.find("2 processes share this request") != std::string::npos);
  CHECK(outcomes[1].out.empty());
  CHECK(outcomes[1].err.empty());
  CHECK(bytes(shared) == bytes(alone));
}

TEST_CASE("what fails in one rank ends all, and is said once") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const std::string noise = folder.file("none.safetensors");
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes =
      run_ranks(2, demo(output), [&](std::size_t rank, Command& c) {
        if (rank == 1) c.arguments.insert(c.arguments.end(), {"--noise", noise});
      });
  check_all(outcomes, 2);
  CHECK(outcomes[1].err.starts_with("diptych: rank 1: --noise: "));
  CHECK(outcomes[0].err.find("diptych: ") == std::string::npos);
  CHECK(!fs::exists(output));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("a rank that is killed, or stopped by a signal, ends the others") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  for (const auto& [signal, code] : {std::pair{SIGKILL, 3}, std::pair{SIGINT, 130}}) {
    CAPTURE(signal);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Outcome> outcomes =
        run_ranks(2, demo(output, {"--steps", "9999", "--progress", "kv", "-v"}),
                  [signal = signal](std::size_t rank, Command& c) {
                    if (rank != 1) return;
                    c.signal = signal;
                    c.interrupt_after = "stage=denoise";
                  });
    CHECK_MESSAGE(outcomes[0].code == code, outcomes[0].err);
    if (signal == SIGKILL) {
      CHECK(outcomes[1].code == 1000 + SIGKILL);
      CHECK(outcomes[0].err.find("diptych: ") != std::string::npos);
    } else {
      CHECK(outcomes[1].code == code);
    }
    CHECK(!fs::exists(output));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  }
}

TEST_CASE("degrees that do not fit the processes are refused") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const Outcome alone = run_alone(demo(output, {"--cfg-parallel-size", "2"}));
  CHECK(alone.code == 2);
  CHECK(alone.err ==
        "diptych: --cfg-parallel-size: 2 processes are expected, and this one is alone; start them "
        "with torchrun, mpirun or srun\n");
  const std::vector<Outcome> three = run_ranks(3, demo(output));
  check_all(three, 2);
  CHECK(three[0].err.find("3 processes share one request (RANK and WORLD_SIZE), but 1 parts of its "
                          "branches and 1 of its rows are the work of 1") != std::string::npos);
  check_all(run_ranks(2, demo("-", {"--ulysses-degree", "2"})), 2);
}

TEST_CASE("bench measures what ranks share; lists are shared another way") {
  const Folder folder;
  const std::vector<Outcome> outcomes =
      run_ranks(2, {"bench", "--device", "cpu", "--steps", "3", "--size", "96x96", "--repeats", "1",
                    "--warmup", "0", "--save-dir", folder.file("saved")});
  check_all(outcomes, 0);
  CHECK(outcomes[0].out.find("denoise") != std::string::npos);
  CHECK(outcomes[1].out.empty());
  folder.write(
      "two.yaml",
      "pipeline: bagel\nstages:\n  - stage_id: 0\n  - stage_id: 1\n    cfg_parallel_size: 2\n");
  folder.write("list.txt", "a red circle\n");
  const Outcome list = run_alone({"batch", folder.file("list.txt"), "-c", folder.file("two.yaml"),
                                  "--output-dir", folder.file("out")});
  CHECK(list.code == 2);
  CHECK(list.err.find("cfg_parallel_size: 2 processes for one request are for generate and bench; "
                      "expected 1") != std::string::npos);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("needs goldens");

TEST_CASE("ranks that divide branches and rows of a clip") {
  if (wan_checkpoint().empty()) return skip("there is no checkpoint of Wan");
  const Folder folder;
  const std::string alone = folder.file("alone.frames");
  CHECK(run_alone(wan(alone, {"--cfg-mode", "sequential"})).code == 0);
  const std::string branches = folder.file("branches.frames");
  check_all(run_ranks(2, wan(branches)), 0);
  const Outcome same =
      diptych::test::run({"check", branches, "--against", alone, "--max-abs", "0"});
  CHECK_MESSAGE(same.code == 0, (same.out + same.err));
  struct Case {
    std::size_t ranks;
    Words degrees;
  };
  for (const Case& each :
       {Case{2, {"--cfg-parallel-size", "1"}},
        Case{3, {"--ulysses-degree", "3", "--cfg-parallel-size", "1"}}, Case{4, {}}}) {
    CAPTURE(each.ranks);
    const std::string name = std::to_string(each.ranks);
    const std::string first = folder.file(name + "a.frames"),
                      second = folder.file(name + "b.frames");
    check_all(run_ranks(each.ranks, wan(first, each.degrees)), 0);
    check_all(run_ranks(each.ranks, wan(second, each.degrees)), 0);
    const Outcome near = diptych::test::run({"check", first, "--against", alone, "--max-abs", "1"});
    CHECK_MESSAGE(near.code == 0, (near.out + near.err));
    const Outcome equal =
        diptych::test::run({"check", first, "--against", second, "--max-abs", "0"});
    CHECK_MESSAGE(equal.code == 0, (equal.out + equal.err));
  }
}

TEST_SUITE_END();
