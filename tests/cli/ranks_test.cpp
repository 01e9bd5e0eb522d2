// Several processes that share a request.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/lance_folder.h"
#include "tests/cli/rank_processes.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_model.h"
#include "tests/verify/goldens.h"

namespace {

namespace fs = std::filesystem;
using diptych::test::check_all;
using diptych::test::Command;
using diptych::test::Folder;
using diptych::test::has;
using diptych::test::Outcome;
using diptych::test::run_ranks;
using diptych::test::signal_at_cue;
using diptych::test::skip;
using diptych::test::with;
using diptych::test::Words;

std::string bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

Outcome run_alone(const Words& arguments) {
  Command command;
  command.arguments = arguments;
  command.environment = {{"OMP_NUM_THREADS", "1"}};
  return run(command);
}

Words demo(const std::string& output, const Words& more = {"--steps", "4"}) {
  return with(
      {"generate", "-p", "a red circle on a white background", "--device", "cpu", "-o", output},
      more);
}

// Of the recorded runs; "" where they are not there.
std::string checkpoint(const std::string& family, const std::string& name = "checkpoint") {
  const fs::path model = diptych::test::goldens_of(family).back() / name;
  return fs::exists(model / "model_index.json") ? model.string() : "";
}

// Two clips, as folders of frames.
void check_same_frames(const std::string& a, const std::string& b) {
  const Outcome outcome = diptych::test::run({"check", a, "--against", b, "--max-abs", "0"});
  CHECK_MESSAGE(outcome.code == 0, (outcome.out + outcome.err));
}

Words wan(const std::string& output, const Words& more = {}) {
  return with({"generate", "-m", checkpoint("wan"), "-p", "a cat", "--device", "cpu", "--size",
               "64x48", "--video-frames", "5", "--steps", "3", "-o", output},
              more);
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

TEST_CASE("ranks that divide the rows of a picture") {
  const Folder folder;
  const auto paint = [&](std::size_t ranks, const std::string& name, const Words& more) {
    const Words words = demo(folder.file(name), with({"--size", "128x96", "--steps", "4"}, more));
    check_all(ranks == 1 ? std::vector<Outcome>{run_alone(words)} : run_ranks(ranks, words), 0);
    return folder.file(name);
  };
  const auto differ_by = [](const std::string& a, const std::string& b, const std::string& most) {
    const Outcome outcome = diptych::test::run({"check", a, "--against", b, "--max-abs", most});
    CHECK_MESSAGE(outcome.code == 0, (outcome.out + outcome.err));
  };
  const std::string alone = paint(1, "alone.png", {});
  // 48 rows; of five ranks the last has fewer of its own.
  const std::string five = paint(5, "five.png", {"--ring-degree", "5"});
  differ_by(five, alone, "1");
  differ_by(paint(5, "again.png", {"--ring-degree", "5"}), five, "0");
  // Six heads over three key heads: four ranks have one key head each, the last one computed twice.
  const Words heads = {"--ulysses-degree", "4", "--cfg-parallel-size", "1"};
  const std::string four = paint(4, "four.png", heads);
  differ_by(four, alone, "1");
  differ_by(paint(4, "again4.png", heads), four, "0");
  differ_by(paint(4, "mixed.png", {"--ulysses-degree", "2", "--ring-degree", "2"}), alone, "1");
  differ_by(paint(2, "batched.png", {"--cfg-mode", "batched"}), alone, "1");
  for (const char* mode : {"batched", "auto"}) {
    differ_by(paint(2, "heads.png",
                    {"--cfg-mode", mode, "--ulysses-degree", "2", "--cfg-parallel-size", "1"}),
              alone, "1");
  }
  differ_by(paint(4, "both.png", {"--cfg-parallel-size", "2"}), alone, "1");  // branches, too
  const std::vector<Outcome> rows =
      run_ranks(4, demo(folder.file("rows.png"), {"--size", "128x96", "--steps", "4"}));
  check_all(rows, 0);
  CHECK(has(rows[0].err, "4 processes share this request: ring 4\n"));
  differ_by(folder.file("rows.png"), alone, "1");
  const Words cached = {"--cache-mode", "taylorseer"};
  differ_by(paint(2, "cached.png", cached), paint(1, "alone_cached.png", cached), "1");
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

// A launcher ends the others with the first one that ends.
TEST_CASE("of ranks that all fail the one that says why ends first") {
  const Folder folder;
  const Words words = {
      "bench",   "-p", "a red circle",   "--device", "cpu",      "--repeats", "1",
      "--steps", "4",  "--warmup-steps", "1",        "--format", "png",       "--load-format",
      "dummy"};
  std::vector<std::size_t> ended;
  const std::vector<Outcome> outcomes = run_ranks(3, words, {}, &ended);
  check_all(outcomes, 2);
  CHECK(has(outcomes[ended[0]].err, "--warmup-steps: 1 is out of range"));
  CHECK(!has(outcomes[ended[1]].err, "diptych: "));
  CHECK(!has(outcomes[ended[2]].err, "diptych: "));
}

TEST_CASE("a rank that is killed, or stopped by a signal, ends the others") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  for (const auto& [signal, code] : {std::pair{SIGKILL, 3}, std::pair{SIGINT, 130}}) {
    CAPTURE(signal);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Outcome> outcomes =
        run_ranks(2, demo(output, {"--steps", "9999", "--progress", "kv"}),
                  [&, signal = signal](std::size_t rank, Command& c) {
                    signal_at_cue(rank, c, /*victim=*/1, /*watched=*/0, "stage=denoise", signal,
                                  folder.file("process"));
                  });
    CHECK_MESSAGE(outcomes[0].code == code, outcomes[0].err);
    if (signal == SIGKILL) {
      CHECK(outcomes[1].code == 1000 + SIGKILL);
      CHECK(outcomes[1].err.empty());
      CHECK(outcomes[0].err.find("diptych: ") != std::string::npos);
    } else {
      CHECK(outcomes[1].code == code);
    }
    CHECK(folder.names() == std::vector<std::string>{"process"});
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  }
}

TEST_CASE("the other ranks say so where the first one is killed") {
  const Folder folder;
  const std::vector<Outcome> outcomes =
      run_ranks(2, demo(folder.file("a.png"), {"--steps", "9999", "--progress", "kv"}),
                [&](std::size_t rank, Command& c) {
                  if (rank != 0) return;
                  c.interrupt_after = "stage=denoise";
                  c.signal = SIGKILL;
                });
  CHECK(outcomes[0].code == 1000 + SIGKILL);
  CHECK(outcomes[1].code == 3);
  CHECK(outcomes[1].err == "diptych: rank 1: rank 0 is gone\n");
}

TEST_CASE("degrees that do not fit the processes are refused") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const Outcome alone = run_alone(demo(output, {"--cfg-parallel-size", "2"}));
  CHECK(alone.code == 2);
  CHECK(alone.err ==
        "diptych: --cfg-parallel-size: 2 processes are expected, and this one is alone; start them "
        "with torchrun, mpirun or srun\n");
  const std::vector<Outcome> three = run_ranks(3, demo(output, {"--cfg-parallel-size", "2"}));
  check_all(three, 2);
  CHECK(
      three[0].err ==
      "diptych: --cfg-parallel-size: 3 processes share one request (RANK and WORLD_SIZE); expected "
      "2, for 2 branches\n");
  const std::vector<Outcome> ring = run_ranks(3, demo(output, {"--ring-degree", "2"}));
  check_all(ring, 2);
  CHECK(ring[0].err ==
        "diptych: --ring-degree: 3 processes share one request (RANK and WORLD_SIZE); expected 2, "
        "for "
        "ring 2\n");
}

TEST_CASE("ranks that differ in a setting are refused, whichever it is") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  struct Case {
    Words of_rank1;
    const char* said;
  };
  for (const Case& each :
       {Case{{"--size", "96x96", "--steps", "6", "--seed", "2"}, "--seed: 2 in rank 1, but 42 in"},
        Case{{"--size", "128x96", "--steps", "6"}, ": 128 in rank 1, but 96 in rank 0; expected"},
        Case{{"--size", "96x96", "--steps", "9"},
             "--steps: 9 in rank 1, but 6 in rank 0; expected"},
        Case{{"--size", "96x96", "--steps", "6", "--ring-degree", "2"},
             "other degrees than rank 0"}}) {
    CAPTURE(each.said);
    const std::vector<Outcome> outcomes =
        run_ranks(2, demo(output, {"--size", "96x96", "--steps", "6"}),
                  [&](std::size_t rank, Command& command) {
                    if (rank == 1) command.arguments = demo(output, each.of_rank1);
                  });
    check_all(outcomes, 2);
    CHECK_MESSAGE(has(outcomes[1].err, each.said), outcomes[1].err);
    CHECK(outcomes[0].err.find("diptych: ") == std::string::npos);
  }
  CHECK_FALSE(fs::exists(output));
}

TEST_CASE("ranks that would run another number of times are refused") {
  const Words words = {"bench", "-p", "a red circle", "--device", "cpu", "--steps", "4"};
  const std::vector<Outcome> outcomes = run_ranks(2, words, [](std::size_t rank, Command& c) {
    c.arguments.insert(c.arguments.end(), {"--repeats", rank == 1 ? "2" : "1"});
  });
  check_all(outcomes, 2);
  CHECK(has(outcomes[1].err, "--repeats: 2 in rank 1, but 1 in rank 0; expected the same"));
}

TEST_CASE("bench measures what ranks share") {
  const Folder folder;
  const std::vector<Outcome> outcomes =
      run_ranks(2, {"bench", "--device", "cpu", "--steps", "3", "--size", "96x96", "--repeats", "1",
                    "--warmup", "0", "--save-dir", folder.file("saved")});
  check_all(outcomes, 0);
  CHECK(outcomes[0].out.find("denoise") != std::string::npos);
  CHECK(has(outcomes[0].out, "\n  exchanges: this process sends "));
  CHECK(has(outcomes[0].out, " MiB for an image (branches "));
  CHECK(has(outcomes[0].out, " % of denoising\n"));
  CHECK(outcomes[1].out.empty());
}

TEST_CASE("what ranks cannot divide is refused") {
  const Folder folder;
  const std::string output = folder.file("a.png");
  const auto refused = [&](const Words& words) {
    const std::vector<Outcome> outcomes = run_ranks(2, words);
    check_all(outcomes, 2);
    return outcomes[0].err;
  };
  CHECK(refused(demo(output, {"--cfg-scale", "1", "--ring-degree", "1"})) ==
        "diptych: --cfg-parallel-size: 2 processes share one request (RANK and WORLD_SIZE), and "
        "there is nothing to divide: guidance is off\n");
  CHECK(refused(demo(output, {"--cfg-scale", "1", "--cfg-parallel-size", "2"})) ==
        "diptych: --cfg-parallel-size 2: guidance is off, and there is one branch (--cfg-scale "
        "above 1 has two)\n");
  CHECK(refused(demo(output, {"--cfg-mode", "batched", "--cfg-parallel-size", "2"})) ==
        "diptych: --cfg-mode batched: is for one process; the branches are divided among 2, as in "
        "sequential\n");
  const Words chat = {"generate", "--task", "chat", "-p", "hello", "--device", "cpu"};
  CHECK(refused(chat) ==
        "diptych: --cfg-parallel-size: 2 processes share one request (RANK and WORLD_SIZE), and "
        "there is nothing to divide: a text is the work of one\n");
  CHECK(refused(with(chat, {"--cfg-parallel-size", "2"})) ==
        "diptych: --cfg-parallel-size 2: --task chat writes a text, which is the work of one\n");
  folder.write("two.yaml",
               "pipeline: bagel\nstages:\n  - stage_id: 0\n  - stage_id: 1\n    "
               "cfg_parallel_size: 2\n");
  CHECK(has(diptych::test::refusal(
                run_alone({"calibrate", "-c", folder.file("two.yaml"), "--device", "cpu"})),
            "cfg_parallel_size: 2 processes for one request are for generate, batch and bench; "
            "expected 1"));
}

TEST_CASE("a trace of divided branches, and the picture beside it") {
  const Folder folder;
  const std::string alone = folder.file("alone.png"), shared = folder.file("shared.png");
  const Words edit = {"-i", diptych::test::kPicture, "--steps", "4", "--think=false"};
  CHECK(run_alone(demo(alone, with(edit, {"--cfg-mode", "sequential"}))).code == 0);
  check_all(run_ranks(2, demo(shared, with(edit, {"--trace", folder.file("t.safetensors")}))), 0);
  CHECK(bytes(shared) == bytes(alone));
  CHECK(fs::exists(folder.file("t.safetensors")));
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("needs goldens");

TEST_CASE("ranks that divide branches and rows of a clip") {
  if (checkpoint("wan").empty()) return skip("there is no checkpoint of Wan");
  const Folder folder;
  const std::string alone = folder.file("alone.frames");
  CHECK(run_alone(wan(alone, {"--cfg-mode", "sequential"})).code == 0);
  const std::string branches = folder.file("branches.frames");
  check_all(run_ranks(2, wan(branches)), 0);
  check_same_frames(branches, alone);
  struct Case {
    std::size_t ranks;
    Words degrees;
  };
  for (const Case& each : {Case{2, {"--cfg-parallel-size", "1"}},
                           Case{3, {"--ulysses-degree", "3", "--cfg-parallel-size", "1"}},
                           Case{4, {}}, Case{3, {"--ring-degree", "3"}},
                           Case{4, {"--ring-degree", "2", "--cfg-parallel-size", "1"}}}) {
    const std::string name = std::to_string(each.ranks) + "-" + std::to_string(each.degrees.size());
    CAPTURE(name);
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

TEST_CASE("a clip that ranks decode together has the bytes of one that a process decodes alone") {
  if (checkpoint("wan").empty()) return skip("there is no checkpoint of Wan");
  const Folder folder;
  const auto of_size = [&](const std::string& name, const std::string& size, const Words& more) {
    return with({"generate", "-m", checkpoint("wan"), "-p", "a cat", "--device", "cpu", "--size",
                 size, "--video-frames", "9", "--steps", "3", "-o", folder.file(name)},
                more);
  };
  const auto clip = [&](const std::string& name, const Words& more) {
    return of_size(name, "48x64", more);
  };
  const std::string sheet = folder.file("sheet.png");
  const Outcome alone =
      run_alone(clip("alone.gif", {"--cfg-mode", "sequential", "--contact-sheet", sheet}));
  CHECK_MESSAGE(alone.code == 0, alone.err);
  // Eight latent rows; three ranks have three, three and two. A third one repeats a branch.
  for (const std::size_t ranks : {2, 3}) {
    CAPTURE(ranks);
    const std::string name = std::to_string(ranks) + ".gif", own = folder.file("own.png");
    const Words degree = {"--cfg-parallel-size", std::to_string(ranks), "--contact-sheet", own};
    check_all(run_ranks(ranks, clip(name, degree)), 0);
    CHECK(bytes(folder.file(name)) == bytes(folder.file("alone.gif")));
    CHECK(bytes(own) == bytes(sheet));
  }
  // A trace of the first rank looks at the frames while the others give theirs.
  check_all(run_ranks(2, clip("traced.gif", {"--trace", folder.file("t.safetensors")})), 0);
  CHECK(bytes(folder.file("traced.gif")) == bytes(folder.file("alone.gif")));
  // In tiles each process decodes alone, and so it does where there are more ranks than rows.
  const std::string wide = "320x32", low = "64x16";
  const Words tiles = {"--vae-tiling", "on"}, sequential = {"--cfg-mode", "sequential"};
  CHECK(run_alone(of_size("tiles.gif", wide, with(tiles, sequential))).code == 0);
  const std::vector<Outcome> in_tiles = run_ranks(2, of_size("divided.gif", wide, tiles));
  check_all(in_tiles, 0);
  CHECK(
      has(in_tiles[0].err, "decoding is not divided: a process decodes in tiles (--vae-tiling)\n"));
  CHECK(bytes(folder.file("divided.gif")) == bytes(folder.file("tiles.gif")));
  CHECK(run_alone(of_size("low.gif", low, sequential)).code == 0);
  const std::vector<Outcome> of_few =
      run_ranks(3, of_size("three.gif", low, {"--cfg-parallel-size", "3"}));
  check_all(of_few, 0);
  CHECK(has(of_few[0].err,
            "decoding is not divided: the latent has 2 rows, fewer than 3 processes\n"));
  CHECK(bytes(folder.file("three.gif")) == bytes(folder.file("low.gif")));
}

TEST_CASE("a rank that is killed while ranks decode together ends the others") {
  if (checkpoint("wan").empty()) return skip("there is no checkpoint of Wan");
  const Folder folder;
  const auto start = std::chrono::steady_clock::now();
  const Words words = {
      "generate", "-m",    checkpoint("wan"),      "-p",  "a cat",   "--device", "cpu",
      "--size",   "64x48", "--video-frames",       "161", "--steps", "2",        "--progress",
      "kv",       "-o",    folder.file("a.frames")};
  const std::vector<Outcome> outcomes = run_ranks(2, words, [&](std::size_t rank, Command& c) {
    signal_at_cue(rank, c, /*victim=*/1, /*watched=*/0, "stage=encode", SIGKILL,
                  folder.file("process"));
  });
  CHECK_MESSAGE(outcomes[0].code == 3, outcomes[0].err);
  CHECK(outcomes[1].code == 1000 + SIGKILL);
  CHECK(folder.names() == std::vector<std::string>{"process"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("a video of Cosmos that ranks decode together") {
  const std::string model = checkpoint("cosmos", "checkpoint_v2w");
  if (model.empty()) return skip("there is no checkpoint of Cosmos");
  const Folder folder;
  const auto cosmos = [&](const std::string& name, const Words& more) {
    return with(
        {"generate", "-m", model, "-i", diptych::test::kPicture, "-p", "a cat", "--device", "cpu",
         "--size", "64x48", "--video-frames", "9", "--steps", "3", "-o", folder.file(name)},
        more);
  };
  CHECK(run_alone(cosmos("alone.gif", {"--cfg-mode", "sequential"})).code == 0);
  for (const std::size_t ranks : {2, 3}) {
    CAPTURE(ranks);
    const Words degree = {"--cfg-parallel-size", std::to_string(ranks)};
    check_all(run_ranks(ranks, cosmos("together.gif", degree)), 0);
    CHECK(bytes(folder.file("together.gif")) == bytes(folder.file("alone.gif")));
  }
  const Words four = {"--cfg-parallel-size", "2", "--ring-degree", "2"};
  check_all(run_ranks(4, cosmos("four.frames", four)), 0);
  check_all(run_ranks(4, cosmos("again.frames", four)), 0);
  check_all(run_ranks(4, cosmos("default.frames", {})), 0);
  check_same_frames(folder.file("four.frames"), folder.file("again.frames"));
  check_same_frames(folder.file("four.frames"), folder.file("default.frames"));
}

TEST_CASE("ranks that divide branches and rows of Cosmos") {
  const std::string model = checkpoint("cosmos", "checkpoint_t2i");
  if (model.empty()) return skip("there is no checkpoint of Cosmos");
  const Folder folder;
  const auto cosmos = [&](const std::string& name, const Words& more) {
    return with({"generate", "-m", model, "-p", "a cat", "--device", "cpu", "--size", "64x48",
                 "--steps", "3", "-o", folder.file(name)},
                more);
  };
  CHECK(run_alone(cosmos("alone.png", {"--cfg-mode", "sequential"})).code == 0);
  check_all(run_ranks(2, cosmos("branches.png", {"--cfg-parallel-size", "2"})), 0);
  CHECK(bytes(folder.file("branches.png")) == bytes(folder.file("alone.png")));
  for (const char* degree : {"--ulysses-degree", "--ring-degree"}) {
    CAPTURE(degree);
    const Words rows = {degree, "2", "--cfg-parallel-size", "1"};
    check_all(run_ranks(2, cosmos("rows.png", rows)), 0);
    check_all(run_ranks(2, cosmos("again.png", rows)), 0);
    CHECK(bytes(folder.file("rows.png")) == bytes(folder.file("again.png")));
    const Outcome near = diptych::test::run({"check", folder.file("rows.png"), "--against",
                                             folder.file("alone.png"), "--max-abs", "1"});
    CHECK_MESSAGE(near.code == 0, (near.out + near.err));
  }
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("ranks");

TEST_CASE("bench tells the bytes that a rank sends, and its time in exchanges") {
  const Folder folder;
  diptych::test::link_lance(folder.path() / "model");
  const auto measure = [&](std::size_t ranks, const Words& more) {
    const Words words = with({"bench",
                              "-m",
                              folder.file("model"),
                              "--load-format",
                              "dummy",
                              "--device",
                              "cpu",
                              "--dtype",
                              "float32",
                              "--vae-dtype",
                              "float32",
                              "--steps",
                              "4",
                              "-p",
                              "a boat",
                              "--size",
                              "64x48",
                              "--repeats",
                              "1",
                              "--warmup",
                              "0",
                              "--json",
                              "-"},
                             more);
    const std::vector<Outcome> outcomes = run_ranks(ranks, words);
    check_all(outcomes, 0);
    return nlohmann::json::parse(outcomes[0].out)["cases"][0]["settings"];
  };
  constexpr std::int64_t kLayers = 3, kKeyHeads = 2, kHeadDim = 16, kWidth = 48, kFloat = 4;
  const auto check_time = [](const nlohmann::json& exchanges) {
    CHECK(exchanges["share_of_denoising"] > 0);
    CHECK(exchanges["share_of_denoising"] < 1);
    for (const auto& [axis, cost] : exchanges["axes"].items()) CHECK(cost["seconds"] > 0);
  };
  // 12 rows: of three ranks each has 4, and sends them to two.
  for (const std::int64_t ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto setting =
        measure(static_cast<std::size_t>(ranks), {"--ring-degree", std::to_string(ranks)})[0];
    const auto& exchanges = setting["exchanges"];
    const std::int64_t own = 12 / ranks, forwards = setting["ran"]["forwards"];
    CHECK(forwards == 2 * setting["ran"]["updates"].get<std::int64_t>());
    const std::int64_t of_layer = 2 * own * kKeyHeads * kHeadDim;  // keys and values
    const std::int64_t sent = forwards * (ranks - 1) * kFloat * (kLayers * of_layer + own * kWidth);
    CHECK(exchanges["processes"] == ranks);
    CHECK(exchanges["axes"]["ring"]["sent_bytes"] == sent);
    CHECK_FALSE(exchanges["axes"].contains("branches"));
    check_time(exchanges);
  }
  // The velocity of a branch goes to the other one.
  const auto setting = measure(2, {"--cfg-parallel-size", "2"})[0];
  const auto& exchanges = setting["exchanges"];
  CHECK(exchanges["axes"]["branches"]["count"] == setting["ran"]["updates"]);
  CHECK(exchanges["axes"]["branches"]["sent_bytes"] ==
        setting["ran"]["updates"].get<std::int64_t>() * 12 * kWidth * kFloat);
  // Both ranks decode: edges and frames.
  CHECK(exchanges["axes"]["decoding"]["sent_bytes"] > 0);
  CHECK(exchanges["sent_bytes_per_image"].get<std::int64_t>() ==
        exchanges["axes"]["branches"]["sent_bytes"].get<std::int64_t>() +
            exchanges["axes"]["decoding"]["sent_bytes"].get<std::int64_t>());
  check_time(exchanges);
}

TEST_CASE("ranks that divide the branches and rows of Lance") {
  const Folder folder;
  diptych::test::link_lance(folder.path() / "model");
  const auto lance = [&](const std::string& name, const Words& more) {
    return with({"generate", "-m", folder.file("model"), "--load-format", "dummy", "--device",
                 "cpu", "--steps", "3", "-p", "a boat", "--size", "64x48", "-o", folder.file(name)},
                more);
  };
  CHECK(run_alone(lance("alone.png", {"--cfg-mode", "sequential"})).code == 0);
  check_all(run_ranks(2, lance("shared.png", {"--cfg-parallel-size", "2"})), 0);
  CHECK(bytes(folder.file("shared.png")) == bytes(folder.file("alone.png")));
  const Words clip = {"--task", "t2v", "--video-frames", "5"};
  CHECK(run_alone(lance("alone.frames", with(clip, {"--cfg-mode", "sequential"}))).code == 0);
  for (const std::size_t ranks : {2, 3}) {  // three latent rows
    CAPTURE(ranks);
    const Words degree = {"--cfg-parallel-size", std::to_string(ranks)};
    check_all(run_ranks(ranks, lance("shared.frames", with(clip, degree))), 0);
    check_same_frames(folder.file("shared.frames"), folder.file("alone.frames"));
  }
  for (const char* degree : {"--ring-degree", "--ulysses-degree"}) {
    CAPTURE(degree);
    const Words rows = {degree, "2", "--cfg-parallel-size", "1"};
    check_all(run_ranks(2, lance("rows.frames", with(clip, rows))), 0);
    const Outcome near = diptych::test::run({"check", folder.file("rows.frames"), "--against",
                                             folder.file("alone.frames"), "--max-abs", "1"});
    CHECK_MESSAGE(near.code == 0, (near.out + near.err));
  }
}

TEST_SUITE_END();
