// `diptych batch` as a user runs it: lists, failures, kills, shards. The checkpoint is the tiny
// one.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/picture_formats.h"
#include "lib/base/sha256.h"
#include "lib/base/text_file.h"
#include "lib/media/png.h"
#include "lib/tensor/safetensors.h"
#include "tests/cli/batch_contents.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Command;
using test::contents;
using test::Folder;
using test::has;
using test::manifest;
using test::Outcome;
using test::Words;

constexpr const char* kSmall = R"({"prompt": "a red fox"}
{"prompt": "two birds", "seed": 9, "size": "48x32", "output": "sub/birds.png", "id": "birds"}
{"task": "chat", "prompt": "hello", "max_tokens": 6}
{"prompt": "three", "batch_count": 2, "think": true, "max_think_tokens": 5, "think_output": "plan.txt"}
{"prompt": "four", "seed": 4}
{"prompt": "five", "seed": 5}
)";

Command batch(const Folder& folder, const std::string& list, const Words& more = {}) {
  Command command;
  command.arguments = {
      "batch", folder.file(list), "-c",    test::kTinyConfig, "-o", folder.file("out"), "--steps",
      "3",     "--size",          "32x32", "--device",        "cpu"};
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  return command;
}

Words names(const std::map<std::string, std::string>& files) {
  Words all;
  for (const auto& [name, text] : files) all.push_back(name);
  return all;
}

// A run of kSmall that nobody disturbed: its folder, and how long it took.
struct Undisturbed {
  std::map<std::string, std::string> files;
  double seconds = 0;
};
const Undisturbed& undisturbed_run() {
  static const Undisturbed once = [] {
    const Folder folder;
    folder.write("l.jsonl", kSmall);
    const double start = steady_seconds();
    const Outcome outcome = run(batch(folder, "l.jsonl"));
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    return Undisturbed{contents(folder.path() / "out"), steady_seconds() - start};
  }();
  return once;
}
const std::map<std::string, std::string>& undisturbed() {
  return undisturbed_run().files;
}

TEST_CASE("a list becomes files and a manifest") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  const Outcome outcome = run(batch(folder, "l.jsonl", {"--progress", "jsonl"}));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const fs::path out = folder.path() / "out";
  const Words files = {"0000.png", "0002.txt",       "0003-000.png", "0003-001.png", "0004.png",
                       "0005.png", "manifest.jsonl", "plan.txt",     "sub/birds.png"};
  CHECK(names(contents(out)) == files);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 8);
  CHECK(outcome.out.starts_with(folder.file("out/0000.png") + "\n"));
  CHECK(has(outcome.err, "6/6 0005: "));
  CHECK(has(outcome.err, "6 items: 6 done, 0 failed, 0 skipped in "));
  CHECK(has(outcome.err, R"({"stage":"items","done":2,"total":6)"));

  const auto lines = manifest(out / "manifest.jsonl");
  REQUIRE(lines.size() == 6);
  CHECK(lines[1]["id"] == "birds");
  CHECK(lines[1]["seed"] == 9);
  for (const json& line : lines) {
    CHECK(line["status"] == "ok");
    for (const json& file : line["files"]) {
      const auto hash = file_sha256(out / file["file"].get<std::string>());
      CHECK(file["sha256"] == hash.value_or("missing"));
    }
  }
  CHECK(lines[2]["text"].get<std::string>() + "\n" == read_text_file(out / "0002.txt"));
  CHECK(lines[2]["finish_reason"] == "length");
  CHECK(lines[3]["finish_reason"] == "length");
  CHECK_FALSE(lines[0].contains("finish_reason"));
  CHECK(lines[3]["files"].size() == 3);
  CHECK(lines[3]["plan"].get<std::string>() + "\n" == read_text_file(out / "plan.txt"));
  const Image birds = read_png(out / "sub/birds.png");
  CHECK(birds.rgb.size(0) == 32);
  CHECK(birds.rgb.size(1) == 48);

  // The same file as generate's.
  const Outcome alone = test::run(Words{"generate", "-c", test::kTinyConfig, "-p", "two birds",
                                        "-s", "9", "--size", "48x32", "--steps", "3", "--device",
                                        "cpu", "-o", folder.file("alone.png"), "-q"});
  CHECK(alone.code == 0);
  CHECK(read_text_file(folder.path() / "alone.png") == read_text_file(out / "sub/birds.png"));
}

TEST_CASE("prompts of a .txt, items of a .yaml, flags as defaults for all") {
  const Folder folder;
  folder.write("p.txt", "a fox\n\n# no prompt\na bird\n");
  const Outcome texts = run(batch(folder, "p.txt", {"-s", "7"}));
  CAPTURE(texts.err);
  CHECK(texts.code == 0);
  CHECK(has(texts.err, "p.txt: 2 items; 2 lines that are empty or a comment skipped"));
  CHECK(manifest(folder.path() / "out/manifest.jsonl")[1]["seed"] == 7);
  folder.write("l.yaml", "- {prompt: a fox}\n- {prompt: a bird, seed: 8}\n");
  const Outcome again = run(batch(folder, "l.yaml", {"-s", "7", "--resume"}));
  CHECK(again.code == 0);
  CHECK(has(again.err, "0001: changed since it was made; it runs again"));
  CHECK(has(again.err, "2 items: 1 done, 0 failed, 1 skipped in "));
  CHECK(manifest(folder.path() / "out/manifest.jsonl")[1]["seed"] == 8);
}

TEST_CASE("a failed item does not stop the others") {
  const Folder folder;
  // A start noise at the end of float32's range becomes infinity on the way.
  const std::vector<std::pair<std::string, Tensor>> noise = {
      {"init_noise", at::full({4, 64}, 3e38)}};
  write_safetensors(folder.path() / "huge.safetensors", noise);
  folder.write("l.jsonl", R"({"prompt": "fine"}
{"prompt": "steps", "steps": 1}
{"prompt": "picture", "image": "none.png"}
{"prompt": "size", "size": "4096x32"}
{"prompt": "noise", "noise": "huge.safetensors"}
{"prompt": "fine, too"}
)");
  for (const char* size : {"1", "4"}) {
    CAPTURE(size);
    const Outcome outcome = run(batch(folder, "l.jsonl", {"--batch-size", size}));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    CHECK(names(contents(folder.path() / "out")) ==
          Words{"0000.png", "0005.png", "manifest.jsonl"});
    CHECK(has(outcome.err, "6 items: 2 done, 4 failed, 0 skipped in "));
    const auto lines = manifest(folder.path() / "out/manifest.jsonl");
    REQUIRE(lines.size() == 6);
    const std::string list = folder.file("l.jsonl");
    CHECK(lines[1]["status"] == "failed");
    CHECK(lines[1]["error"] == list + ":2: steps: 1 makes 0 updates; expected at least 2");
    CHECK(lines[2]["error"] == list + ":3: image: " + folder.file("none.png") + ": no such file");
    CHECK(has(lines[3]["error"].get<std::string>(), ":4: size: width: found 4096, expected"));
    CHECK(has(lines[4]["error"].get<std::string>(), ":5: the latent is not finite"));
    CHECK(has(outcome.err, "[ERROR] 0004: " + list + ":5: the latent is not finite"));
    // Bad values are known before anything is loaded.
    CHECK(outcome.err.find("[ERROR] 0002") < outcome.err.find(" 0000: "));
    fs::remove_all(folder.path() / "out");
  }
  // Mended, only they run again.
  folder.write("none.png", "");
  run(batch(folder, "l.jsonl"));
  const Outcome resumed = run(batch(folder, "l.jsonl", {"--resume"}));
  CHECK(resumed.code == 4);
  CHECK(has(resumed.err, "6 items: 0 done, 4 failed, 2 skipped in "));
}

TEST_CASE("items that share a forward come out as one by one") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  const Outcome outcome = run(batch(folder, "l.jsonl", {"--batch-size", "4"}));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const fs::path out = folder.path() / "out";
  CHECK(names(contents(out)) == names(undisturbed()));
  for (const auto& [name, bytes] : undisturbed()) {
    if (!name.ends_with(".png")) continue;
    CAPTURE(name);
    const Image together = read_png(out / name);
    const std::vector<std::uint8_t> encoded(bytes.begin(), bytes.end());
    const Image alone = decode_png(encoded, name);
    REQUIRE(together.rgb.sizes() == alone.rgb.sizes());
    CHECK((together.rgb.to(at::kInt) - alone.rgb.to(at::kInt)).abs().max().item<int>() <= 1);
    CHECK(alone.rgb.to(at::kFloat).std().item<float>() > 1);
  }
  const auto record = [&](const char* name) { return test::record_of(out / name); };
  CHECK(record("0004.png")["together"]["place"] == 0);
  CHECK(record("0005.png")["together"]["others"][0]["inputs"][0]["text"] == "four");
  CHECK_FALSE(record("0003-000.png").contains("together"));
  // A lost picture is painted again among its neighbours, to the same bytes.
  const auto before = contents(out);
  fs::remove(out / "0005.png");
  const Outcome resumed = run(batch(folder, "l.jsonl", {"--batch-size", "4", "--resume"}));
  CHECK(resumed.code == 0);
  CHECK(has(resumed.err, "6 items: 1 done, 0 failed, 5 skipped in "));
  CHECK(contents(out) == before);
}

TEST_CASE("what is finished stays, whatever it would share a forward with now") {
  const Folder folder;
  const fs::path out = folder.path() / "out";
  folder.write("l.jsonl",
               R"({"prompt": "one", "think": true, "max_think_tokens": 4, "think_output": "p.txt"}
{"prompt": "two"}
{"prompt": "three"}
{"prompt": "four"}
)");
  REQUIRE(run(batch(folder, "l.jsonl")).code == 0);
  const auto before = contents(out);
  const auto marked = [&] {  // its time tells whether a file was written again
    const fs::file_time_type past = fs::file_time_type::clock::now() - std::chrono::hours(1);
    for (const char* name : {"0000.png", "0001.png", "0002.png", "p.txt"})
      fs::last_write_time(out / name, past);
    return past;
  };
  const auto check_kept = [&](fs::file_time_type past, const Outcome& outcome) {
    CAPTURE(outcome.err);
    for (const char* name : {"0000.png", "0001.png", "0002.png", "p.txt"}) {
      CAPTURE(name);
      CHECK(fs::last_write_time(out / name) == past);
      CHECK(read_text_file(out / name) == before.at(name));
    }
    const auto lines = manifest(out / "manifest.jsonl");
    REQUIRE(lines.size() == 4);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(lines[i]["status"] == "ok");
      CHECK(lines[i]["files"][0]["sha256"] ==
            file_sha256(out / fmt::format("000{}.png", i)).value_or("missing"));
    }
  };
  fs::remove(out / "0003.png");
  SUBCASE("one by one, then together") {
    const auto past = marked();
    const Outcome outcome = run(batch(folder, "l.jsonl", {"--batch-size", "4", "--resume"}));
    CHECK(outcome.code == 0);
    CHECK(has(outcome.err, "4 items: 1 done, 0 failed, 3 skipped in "));
    check_kept(past, outcome);
    CHECK(fs::exists(out / "0003.png"));
  }
  SUBCASE("the picture of the fourth cannot be written") {
    fs::create_directory(out / "0003.png");
    const auto past = marked();
    const Outcome outcome = run(batch(folder, "l.jsonl", {"--batch-size", "4", "--resume"}));
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "4 items: 0 done, 1 failed, 3 skipped in "));
    check_kept(past, outcome);
  }
}

// Runs to the end with --resume, and holds the folder to an undisturbed run's.
void finish(const Folder& folder, const Words& more = {}) {
  Words flags = {"--resume"};
  flags.insert(flags.end(), more.begin(), more.end());
  const Outcome outcome = run(batch(folder, "l.jsonl", flags));
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const auto files = contents(folder.path() / "out");
  CHECK(names(files) == names(undisturbed()));
  CHECK((files == undisturbed()));
}

TEST_CASE("killed again and again, --resume ends with the files of an undisturbed run") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  for (const char* cue : {"stage=load", "stage=denoise", "\ndone=1\ntotal=6", "stage=think",
                          "stage=encode", "\ndone=4\ntotal=6", "\ndone=5\ntotal=6"}) {
    CAPTURE(cue);
    Command command = batch(folder, "l.jsonl", {"--resume", "--progress", "kv"});
    command.interrupt_after = cue;
    command.signal = SIGKILL;
    const Outcome outcome = run(command);
    CHECK((outcome.code == 1000 + SIGKILL || outcome.code == 0));
  }
  finish(folder);
}

TEST_CASE("killed after any time") {
  const double whole = undisturbed_run().seconds;
  for (const double share : {0.5, 0.65, 0.75, 0.85, 0.95}) {
    CAPTURE(share);
    const Folder folder;
    folder.write("l.jsonl", kSmall);
    Command command = batch(folder, "l.jsonl", {"-q"});
    command.before_exec = [&] {  // SIGALRM ends it as SIGKILL would
      const auto microseconds = static_cast<suseconds_t>(share * whole * 1e6);
      const itimerval timer{{}, {microseconds / 1'000'000, microseconds % 1'000'000}};
      setitimer(ITIMER_REAL, &timer, nullptr);
    };
    const Outcome outcome = run(command);
    CHECK((outcome.code == 1000 + SIGALRM || outcome.code == 0));
    finish(folder);
  }
}

TEST_CASE("what a kill can leave behind is mended") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  const fs::path out = folder.path() / "out";
  REQUIRE(run(batch(folder, "l.jsonl")).code == 0);
  const fs::path file = out / "manifest.jsonl";
  SUBCASE("a picture without its line, an unfinished one, a torn line") {
    std::string lines = read_text_file(file);
    lines.resize(lines.rfind('\n', lines.size() - 2) + 20);
    folder.write("out/manifest.jsonl", lines);
    folder.write("out/0004.png.partial-123", "half");
    folder.write("out/sub/birds.png.partial-7", "");
    folder.write("out/manifest.jsonl.partial-7", "{");
  }
  SUBCASE("nothing but a torn line") {
    fs::remove_all(out);
    fs::create_directory(out);
    folder.write("out/manifest.jsonl", "{\"id\":");
  }
  SUBCASE("a picture that is not what the manifest says") {
    folder.write("out/0003-001.png", "other");
  }
  SUBCASE("a line of zeros, as a crash of the system leaves") {
    std::string lines = read_text_file(file);
    std::fill_n(lines.begin(), lines.find('\n'), '\0');
    folder.write("out/manifest.jsonl", lines);
  }
  finish(folder);
}

TEST_CASE("a resumed run says what was computed otherwise, and keeps it") {
  const Folder folder;
  folder.write("l.jsonl", "{\"prompt\": \"one\"}\n");
  REQUIRE(run(batch(folder, "l.jsonl", {"--dtype", "float32"})).code == 0);
  const nlohmann::json first = manifest(folder.path() / "out/manifest.jsonl")[0];
  CHECK(first["dtype"] == "float32");
  CHECK(first["device"].get<std::string>().size() > 0);
  folder.write("l.jsonl", "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n");
  const Outcome resumed = run(batch(folder, "l.jsonl", {"--dtype", "bfloat16", "--resume"}));
  CHECK(resumed.code == 0);
  CHECK(
      has(resumed.err, "made with other settings are kept (1): 0000: dtype float32, now bfloat16"));
  const auto lines = manifest(folder.path() / "out/manifest.jsonl");
  CHECK(lines[0] == first);
  CHECK(lines[1]["dtype"] == "bfloat16");
  CHECK(lines[1]["quantization"] == "none");
  fs::remove(folder.path() / "out/0001.png");
  const Outcome third = run(
      batch(folder, "l.jsonl",
            {"--dtype", "bfloat16", "--quantization", "int8", "--attention", "math", "--resume"}));
  CHECK(third.code == 0);
  CHECK(has(third.err,
            "(1): 0000: attention auto, now math; dtype float32, now bfloat16; "
            "quantization none, now int8"));
  const Outcome none = run(batch(folder, "l.jsonl", {"--kernels", "reference", "--resume"}));
  CHECK(none.code == 0);
  CHECK(has(none.err, "0 done, 0 failed, 2 skipped"));
  CHECK(has(none.err, "are kept (2): 0000: kernels automatic, now reference"));
}

TEST_CASE("items that changed run again, and what they had is gone") {
  const Folder folder;
  folder.write("in.png", read_text_file(test::kPicture));
  folder.write("l.jsonl", R"({"prompt": "one", "output": "a.png"}
{"prompt": "two", "output": "b.png"}
{"prompt": "three", "image": "in.png", "size": "32x32"}
)");
  REQUIRE(run(batch(folder, "l.jsonl")).code == 0);
  const auto before = contents(folder.path() / "out");
  folder.write("l.jsonl", R"({"prompt": "one", "output": "c.png"}
{"prompt": "two", "output": "b.png"}
{"prompt": "three", "image": "in.png", "size": "32x32"}
)");
  folder.write("in.png", before.at("b.png"));
  const Outcome outcome = run(batch(folder, "l.jsonl", {"--resume"}));
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err, "0000: changed since it was made; it runs again"));
  CHECK(has(outcome.err, "0002: changed since it was made; it runs again"));
  CHECK(has(outcome.err, "3 items: 2 done, 0 failed, 1 skipped in "));
  const auto after = contents(folder.path() / "out");
  CHECK(names(after) == Words{"0002.png", "b.png", "c.png", "manifest.jsonl"});
  CHECK(after.at("c.png") == before.at("a.png"));
  CHECK(after.at("0002.png") != before.at("0002.png"));
  CHECK(manifest(folder.path() / "out/manifest.jsonl").size() == 3);
}

TEST_CASE("a prompt beside a list of prompts is refused by the name it was given under") {
  const Folder folder;
  folder.write("p.txt", "a\n");
  const std::string rest = ": every line of " + folder.file("p.txt") + " is one; expected none\n";
  CHECK(run(batch(folder, "p.txt", {"-p", "x", "-q"})).err == "diptych: --prompt" + rest);
  Command command = batch(folder, "p.txt", {"-q"});
  command.environment["DIPTYCH_PROMPT"] = "x";
  const Outcome outcome = run(command);
  CHECK(outcome.code == 2);
  CHECK(outcome.err == "diptych: DIPTYCH_PROMPT" + rest);
}

TEST_CASE("a folder that holds a run is not mixed with another") {
  const Folder folder;
  folder.write("p.txt", "a\nb\n");
  REQUIRE(run(batch(folder, "p.txt")).code == 0);
  const auto before = contents(folder.path() / "out");
  const Outcome again = run(batch(folder, "p.txt"));
  CHECK(again.code == 2);
  CHECK(again.err.starts_with("diptych: " + folder.file("out/manifest.jsonl") +
                              ": the folder holds a run already; --resume goes on with it"));
  const Outcome shard = run(batch(folder, "p.txt", {"--shard", "0/2", "--resume"}));
  CHECK(shard.code == 2);
  CHECK(shard.err.starts_with("diptych: --output-dir: "));
  CHECK(has(shard.err, "holds manifest.jsonl, of a run with other shards"));
  CHECK((contents(folder.path() / "out") == before));
  const Outcome nothing_left = run(batch(folder, "p.txt", {"--resume"}));
  CHECK(nothing_left.code == 0);
  CHECK(nothing_left.out.empty());
  CHECK(has(nothing_left.err, "2 items: 0 done, 0 failed, 2 skipped in "));
}

TEST_CASE("checking a list leaves no folder") {
  const Folder folder;
  folder.write("p.txt", "a\n");
  Command command = batch(folder, "p.txt", {"--check-config"});
  *std::ranges::find(command.arguments, folder.file("out")) = folder.file("q/../r");
  CHECK(run(command).code == 0);
  CHECK(folder.names() == Words{"p.txt"});
}

TEST_CASE("keys that other programs have get a hint, and a format without effect a warning") {
  const Folder folder;
  const auto error = [&](const std::string& key) {
    folder.write("l.jsonl", "{\"prompt\": \"a\", \"" + key + "\": 1}\n");
    const std::string err = run(batch(folder, "l.jsonl")).err;
    return err.substr(err.find("unknown key"));
  };
  CHECK(error("num_inference_steps") == "unknown key 'num_inference_steps': expected steps\n");
  CHECK(error("strength").starts_with("unknown key 'strength': not supported: an edit reads"));
  folder.write(
      "l.jsonl",
      "{\"prompt\": \"a\", \"output\": \"a.jpg\"}\n{\"prompt\": \"b\", \"output\": \"b.png\"}\n");
  const Outcome outcome = run(batch(folder, "l.jsonl", {"--format", "png"}));
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err,
            "--format png: has no effect on 1 item with an output of another extension\n"));
}

// The pipe holds fewer records than the second item writes: the batch waits in the middle of its
// steps until the test, which reads no further, is through with `disturb`.
TEST_CASE("a folder or manifest that is moved or removed meanwhile ends the run with 3") {
  const auto disturbed = [](const auto& disturb) {
    const Folder folder;
    folder.write("l.jsonl",
                 "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"steps\": 401}\n{\"prompt\": \"c\"}\n");
    Command command = batch(folder, "l.jsonl", {"--progress", "kv"});
    command.before_exec = [] {
      constexpr int kBytes = 4096;
      if (fcntl(STDERR_FILENO, F_SETPIPE_SZ, kBytes) < 0) _exit(99);
    };
    command.interrupt_after = "stage=denoise\ndone=1\ntotal=400\n";
    const fs::path out = folder.path() / "out";
    command.at_cue = [&] { disturb(out); };
    const Outcome outcome = run(command);
    CHECK(outcome.code == 3);
    CHECK(has(outcome.err, "stopped after 1 of 3 items; the same command with --resume continues"));
    CHECK_FALSE(has(outcome.err, "[ERROR]"));  // no item failed
    std::string line = outcome.err.substr(outcome.err.rfind("diptych: "));
    line.erase(line.find(folder.path().string()), folder.path().string().size() + 1);
    return std::pair(line, names(contents(folder.path())));
  };
  const std::string end = ": was moved or removed while the batch was running; stopped\n";
  const auto moved = disturbed([](const fs::path& out) { fs::rename(out, out.string() + "2"); });
  CHECK(moved.first == "diptych: out" + end);
  CHECK(moved.second == Words{"l.jsonl", "out2/0000.png", "out2/manifest.jsonl"});
  const auto removed = disturbed([](const fs::path& out) { fs::remove_all(out); });
  CHECK(removed.first == "diptych: out" + end);
  CHECK(removed.second == Words{"l.jsonl"});
  const auto headless = disturbed([](const fs::path& out) { fs::remove(out / "manifest.jsonl"); });
  CHECK(headless.first == "diptych: out/manifest.jsonl" + end);
  CHECK(headless.second == Words{"l.jsonl", "out/0000.png", "out/0001.png"});
}

TEST_CASE("where every item failed, the corrected list runs in the same folder") {
  const Folder folder;
  folder.write("l.jsonl",
               "{\"prompt\": \"a\", \"image\": \"none.png\"}\n{\"prompt\": \"b\", \"seed\": -2}\n");
  REQUIRE(run(batch(folder, "l.jsonl")).code == 4);
  CHECK(manifest(folder.path() / "out/manifest.jsonl").size() == 2);
  folder.write("l.jsonl", "{\"prompt\": \"a\"}\n");
  const Outcome again = run(batch(folder, "l.jsonl"));
  CHECK(again.code == 0);
  const auto lines = manifest(folder.path() / "out/manifest.jsonl");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["status"] == "ok");
}

TEST_CASE("what is wrong with the whole batch ends it with 2, and nothing is written") {
  const Folder folder;
  folder.write("l.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"sede\": 1}\n");
  folder.write("p.txt", "a\n");
  const auto error = [&](const Command& command) {
    const Outcome outcome = run(command);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    return outcome.err.substr(outcome.err.rfind("diptych: "));
  };
  const auto only_error = [&](const Command& command) {
    const std::string line = error(command);
    CHECK(run(command).err == line);
    return line;
  };
  CHECK(
      has(error(batch(folder, "l.jsonl")), "l.jsonl:2: unknown key 'sede' (did you mean 'seed'?"));
  CHECK(has(error(batch(folder, "none.txt")), "none.txt: is missing"));
  CHECK(has(error(batch(folder, "p.txt", {"-m", folder.file("none")})), "none"));
  CHECK(has(only_error(batch(folder, "p.txt", {"--shard", "2/2"})), "--shard: '2/2' is no shard"));
  CHECK(has(error(batch(folder, "p.txt", {"--trace", "a"})), "unknown flag '--trace'"));
  CHECK(has(only_error(batch(folder, "p.txt", {"--batch-size", "0"})), "diptych: --batch-size: "));
  CHECK(has(error(batch(folder, "p.txt", {"--offload", "layers"})),
            "diptych: --offload layers: the run is on the CPU"));
  CHECK(has(error(batch(folder, "p.txt", {"--cache-mode", "teacache"})),
            "diptych: --cache-mode teacache: "));
  CHECK(has(error(batch(folder, "p.txt", {"--task", "edit"})), "diptych: --task edit: needs a"));
  // Whatever is wrong with an item itself.
  folder.write("l.jsonl", "{\"prompt\": \"a\", \"seed\": -2}\n{\"prompt\": \"a\"}\n");
  CHECK(has(error(batch(folder, "l.jsonl", {"--cache-mode", "teacache"})),
            "diptych: --cache-mode teacache: "));
  CHECK(names(contents(folder.path())) == Words{"l.jsonl", "p.txt"});
  CHECK_FALSE(fs::exists(folder.path() / "out"));
  folder.write("out", "a file");
  CHECK(has(only_error(batch(folder, "p.txt")), "--output-dir: "));
}

TEST_CASE("--check-config looks at every item and loads nothing") {
  const Folder folder;
  folder.write("l.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"seed\": -2}\n{}\n");
  const Outcome outcome = run(batch(folder, "l.jsonl", {"--check-config"}));
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err,
            "[ERROR] 0001: " + folder.file("l.jsonl") + ":2: seed: '-2' is not a whole number"));
  CHECK(has(outcome.err, "[ERROR] 0002: " + folder.file("l.jsonl") + ":3: prompt: not given"));
  CHECK(
      outcome.err.ends_with("diptych: " + folder.file("l.jsonl") + ": 2 of 3 items cannot run\n"));
  CHECK_FALSE(fs::exists(folder.path() / "out"));
  folder.write("p.txt", "a\n");
  CHECK(run(batch(folder, "p.txt", {"--check-config"})).out == folder.file("p.txt") + ": valid\n");

  // What the model and the folder say.
  folder.write("l.jsonl", R"({"prompt": "a", "size": "208x208"}
{"prompt": "a", "cache_mode": "teacache", "cache_calibration": "no.json"}
{"image": "p.txt", "prompt": "a"}
{"prompt": "-", "think": "yes"}
)");
  const Outcome model = run(batch(folder, "l.jsonl", {"--check-config"}));
  CHECK(model.code == 2);
  CHECK(has(model.err, folder.file("l.jsonl") + ":1: size: width: found 208, expected"));
  CHECK(has(model.err, ":2: cache_calibration " + folder.file("no.json") + ": is not there"));
  CHECK(has(model.err, folder.file("p.txt") + ": not a picture"));
  CHECK(has(model.err, ":4: think: expected true or false, found the text 'yes'"));
  CHECK(has(model.err, "4 of 4 items cannot run"));
  folder.write("out", "a file");
  const Outcome file = run(batch(folder, "p.txt", {"--check-config"}));
  CHECK(file.code == 2);
  CHECK(has(file.err, "diptych: --output-dir: " + folder.file("out") + ": cannot be made: "));
}

TEST_CASE("an item's - is a text, and a batch size that nothing shares is pointed out") {
  const Folder folder;
  folder.write("l.jsonl", "{\"prompt\": \"-\"}\n");
  Command command = batch(folder, "l.jsonl", {"--batch-size", "4"});
  command.input = "not this";
  const Outcome outcome = run(command);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err, "[WARN ] --batch-size 4: no two consecutive items can share a forward"));
  CHECK(test::record_of(folder.path() / "out/0000.png")["inputs"][0]["text"] == "-");
}

TEST_CASE("shards share a list and a folder") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  auto one = std::async(std::launch::async, [&] {
    return run(batch(folder, "l.jsonl", {"--shard", "0/2"}));
  });
  Command second = batch(folder, "l.jsonl");
  second.environment = {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "2"}};
  const Outcome two = run(second);
  CAPTURE(two.err);
  CHECK(one.get().code == 0);
  CHECK(two.code == 0);
  CHECK(has(two.err,
            "shard 1/2 of 6 items, from SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT; --shard "
            "0/1 takes the whole list"));
  const fs::path out = folder.path() / "out";
  auto files = contents(out);
  CHECK(manifest(out / "manifest-0-of-2.jsonl").size() == 3);
  CHECK(manifest(out / "manifest-1-of-2.jsonl")[0]["id"] == "birds");
  files.erase("manifest-0-of-2.jsonl");
  files.erase("manifest-1-of-2.jsonl");
  auto whole = undisturbed();
  whole.erase("manifest.jsonl");
  CHECK((files == whole));

  // More shards than items; a launcher that is overruled; two that disagree.
  fs::remove_all(out);
  const Outcome idle = run(batch(folder, "l.jsonl", {"--shard", "6/7"}));
  CHECK(idle.code == 0);
  CHECK(has(idle.err, "the list has no item for shard 6/7"));
  second = batch(folder, "l.jsonl", {"--shard", "0/1", "--check-config"});
  second.environment = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  CHECK(run(second).code == 0);
  second = batch(folder, "l.jsonl");
  second.environment = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  const Outcome torn = run(second);
  CHECK(torn.code == 2);
  CHECK(has(torn.err, "RANK and WORLD_SIZE say 1/2, but PMI_RANK and PMI_SIZE say 0/2"));

  // A job script that forgot srun.
  folder.write("p.txt", "a\nb\n");
  second = batch(folder, "p.txt");
  second.environment = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
  const Outcome script = run(second);
  CHECK(script.code == 0);
  CHECK(has(script.err, "SLURM_NTASKS is 8, but SLURM_STEP_ID is not set: a job script"));
  CHECK(has(script.err, "2 items: 2 done"));
}

TEST_CASE("Ctrl-C drops the running item and keeps those before") {
  const Folder folder;
  folder.write("l.jsonl", kSmall);
  Command command = batch(folder, "l.jsonl", {"--progress", "kv"});
  command.interrupt_after = "stage=think";  // of the fourth item
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 128 + SIGINT);
  CHECK(has(outcome.err, "stopped after 3 of 6 items; the same command with --resume continues"));
  CHECK(outcome.err.ends_with("diptych: interrupted\n"));
  const auto files = contents(folder.path() / "out");
  CHECK(std::ranges::none_of(names(files), [](const std::string& name) {
    return has(name, "partial") || name.ends_with("0003-000.png");
  }));
  CHECK(manifest(folder.path() / "out/manifest.jsonl").size() == 3);
  finish(folder);
}

TEST_CASE("a full disk ends the run with 3, what was done stays") {
  const Folder folder;
  // The answer fits into the limit, the picture does not.
  folder.write("l.jsonl",
               "{\"task\": \"chat\", \"prompt\": \"a\", \"max_tokens\": 3}\n{\"prompt\": \"a\"}\n"
               "{\"prompt\": \"b\"}\n");
  Command command = batch(folder, "l.jsonl");
  command.before_exec = [] {
    const rlimit limit{1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "stopped after 1 of 3 items; the same command with --resume"));
  CHECK(has(outcome.err, "diptych: " + folder.file("out/0001.png") + ": write failed"));
  CHECK(names(contents(folder.path() / "out")) == Words{"0000.txt", "manifest.jsonl"});
  const Outcome resumed = run(batch(folder, "l.jsonl", {"--resume"}));
  CHECK(resumed.code == 0);
  CHECK(has(resumed.err, "3 items: 2 done, 0 failed, 1 skipped in "));
}

TEST_CASE("variables are flags, and those of one request are pointed out") {
  const Folder folder;
  folder.write("p.txt", "a\n");
  Command command;
  command.arguments = {"batch", folder.file("p.txt"), "--check-config"};
  command.environment = {{"DIPTYCH_OUTPUT_DIR", folder.file("out")},
                         {"DIPTYCH_TRACE", "t.safetensors"},
                         {"DIPTYCH_STEPS", "1"}};
  const Outcome outcome = run(command);
  CHECK(outcome.code == 2);
  CHECK(has(outcome.err, "DIPTYCH_TRACE has no effect on this verb"));
  CHECK(has(outcome.err, "DIPTYCH_STEPS: 1 makes 0 updates"));
}

// 8192 x 8192 pixels in some bytes: a GIF whose frame is one of them.
std::string huge_gif() {
  constexpr char kSide = 0x20;  // the high byte of each
  const char bytes[] = {'G',    'I', 'F', '8', '9', 'a', 0, kSide, 0, kSide,
                        '\x80', 0,   0,   1,   2,   3,   4, 5,     6,  // two colours
                        ',',    0,   0,   0,   0,   1,   0, 1,     0, 0,
                        2,      2,   'D', 1,   0,   ';'};  // codes 4 (clear), 0, 5 (end)
  return {bytes, sizeof(bytes)};
}

TEST_SUITE_BEGIN("needs stb");

TEST_CASE("a picture that does not fit into memory fails its item alone") {
  if (!facts_of(PictureFormat::gif).built_in) return test::skip("this build has no stb_image");
#ifdef __SANITIZE_ADDRESS__
  return test::skip("the sanitizer maps terabytes for itself");
#endif
  const Folder folder;
  folder.write("huge.gif", huge_gif());
  folder.write("in.png", read_text_file(test::kPicture));
  folder.write("l.jsonl", R"({"prompt": "one", "image": "huge.gif"}
{"prompt": "two", "image": "in.png"}
{"prompt": "three", "image": "in.png"}
)");
  for (const char* size : {"1", "3"}) {
    CAPTURE(size);
    Command command = batch(folder, "l.jsonl", {"--batch-size", size});
    command.environment["OMP_NUM_THREADS"] = "1";  // stacks of threads count, too
    command.environment["LD_BIND_NOW"] = "1";      // all of libtorch, whether there is a GPU or not
    command.before_exec = [] {
      // More than the libraries and these pictures take, less than with the pixels of the huge one.
      const rlim_t bytes = rlim_t{DIPTYCH_HAVE_CUDA != 0 ? 900 : 600} << 20;
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_DATA, &limit);
    };
    const Outcome outcome = run(command);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "3 items: 2 done, 1 failed, 0 skipped in "));
    CHECK(names(contents(folder.path() / "out")) ==
          Words{"0001.png", "0002.png", "manifest.jsonl"});
    const auto lines = manifest(folder.path() / "out/manifest.jsonl");
    REQUIRE(lines.size() == 3);
    CHECK(has(lines[0]["error"].get<std::string>(), "l.jsonl:1: "));
    CHECK(has(lines[0]["error"].get<std::string>(), "memory"));
    fs::remove_all(folder.path() / "out");
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace diptych
