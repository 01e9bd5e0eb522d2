// `diptych compare --a ... --b ...`: two settings of one list, what they make and how they fail;
// and the same computed again from the two folders. The checkpoint is the demo's.
#include <csignal>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Command;
using test::Folder;
using test::has;
using test::Outcome;
using test::Words;

class Sides {
 public:
  Sides() { folder.write("p.txt", "a red circle\n\n# no prompt\na blue square\n"); }

  Command command(const Words& more, const std::string& list = "p.txt") const {
    Command made;
    made.arguments = test::with({"compare", "--prompts", folder.file(list), "-o", folder.file("ab"),
                                 "--size", "32", "--steps", "3", "--device", "cpu"},
                                more);
    return made;
  }
  Outcome run(const Words& more, const std::string& list = "p.txt") const {
    return test::run(command(more, list));
  }
  // From the folders, without a model.
  Outcome again(const Words& more = {}) const {
    return test::run(test::with({"compare", folder.file("ab/a"), folder.file("ab/b")}, more));
  }
  bool there(const char* name) const { return fs::exists(folder.path() / name); }

  Folder folder;
};

const Words kBatched = {"--a", "--cfg-mode sequential", "--b", "--cfg-mode batched"};

TEST_CASE("two settings of a list are compared, and again from their folders") {
  const Sides sides;
  const Outcome made =
      sides.run(test::with(kBatched, {"--repeat-a", "--json", "--min-ssim", "0.99"}));
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  const json report = json::parse(made.out);
  CHECK(report["a"]["settings"] == "--cfg-mode sequential");
  CHECK(report["pass"] == true);
  REQUIRE(report["pairs"].size() == 2);
  CHECK(report["pairs"][1]["name"] == "0001.png");
  CHECK(report["pairs"][1]["ssim"] > 0.99);
  CHECK(report["pairs"][1]["seconds"][1] > 0);
  CHECK(report["total"]["ssim"]["worst"] > 0.99);
  CHECK(report["repeat_a"]["total"]["compared"] == 2);
  CHECK(report["repeat_a"]["total"]["equal"] == 2);
  for (const char* name : {"ab/a/0000.png", "ab/b/0001.png", "ab/side-by-side/0001.png"})
    CHECK(sides.there(name));
  const json a = test::record_of(sides.folder.file("ab/a/0001.png"));
  const json b = test::record_of(sides.folder.file("ab/b/0001.png"));
  CHECK(a["cfg_mode"] == "sequential");
  CHECK(b["cfg_mode"] == "batched");
  CHECK(a["noise"] == b["noise"]);
  CHECK(a["seed"] == b["seed"]);

  const Outcome again = sides.again({"--json", "--min-ssim", "0.99"});
  CHECK(again.code == 0);
  CHECK(json::parse(again.out)["pairs"] == report["pairs"]);
  CHECK(json::parse(again.out)["total"] == report["total"]);

  // A file that cannot be read or has gone is a failed item.
  sides.folder.write("ab/b/0000.png", "\x89PNG\r\n\x1a\n rest");
  fs::remove(sides.folder.path() / "ab/a/0001.png");
  const Outcome broken = sides.again({"-o", sides.folder.file("side")});
  CHECK(broken.code == 2);
  CHECK(has(broken.out, "0000.png: broken PNG"));
  CHECK(has(broken.out, "missing in " + sides.folder.file("ab/a")));
  CHECK(has(broken.out, "0 compared, 1 missing, 1 not comparable"));
  CHECK(broken.err == "diptych: compare: 2 pairs could not be compared\n");
  CHECK_FALSE(sides.there("side"));
}

TEST_CASE("settings that need two models, and a gate that fails") {
  const Sides sides;
  // Without --a: the flags of both. The seed that is drawn is one for both.
  const Outcome made = sides.run({"--b", "--dtype bfloat16 --negative-prompt 'a big tree'",
                                  "--seed", "random", "--min-psnr", "200", "--warmup", "0"});
  CAPTURE(made.err);
  CAPTURE(made.out);
  CHECK(made.code == 1);
  CHECK(has(made.out, "\n0001.png "));
  CHECK(has(made.out, " is below 200"));
  CHECK(has(made.out, "\nmean "));
  CHECK(has(made.out, "\nworst "));
  const json a = test::record_of(sides.folder.file("ab/a/0000.png"));
  const json b = test::record_of(sides.folder.file("ab/b/0000.png"));
  CHECK(a["seed"] == b["seed"]);
  CHECK(a["dtype"] == "float32");
  CHECK(b["dtype"] == "bfloat16");
  CHECK(b["requested"]["negative_prompt"] == "a big tree");
}

TEST_CASE("an item that fails is one of the report, and the others are compared") {
  const Sides sides;
  sides.folder.write("l.jsonl",
                     "{\"prompt\": \"a\", \"seed\": -2}\n"
                     "{\"prompt\": \"b\", \"output\": \"sub/b.png\"}\n");
  const Outcome made = sides.run(kBatched, "l.jsonl");
  CAPTURE(made.err);
  CAPTURE(made.out);
  CHECK(made.code == 4);
  CHECK(has(made.out, "; failed in " + sides.folder.file("ab/b: ")));
  CHECK(has(made.out, "\nsub/b.png "));
  CHECK(has(made.out, "1 compared, 0 missing, 1 not comparable"));
  CHECK(sides.there("ab/side-by-side/sub/b.png"));
  CHECK(sides.again().code == 2);
}

TEST_CASE("Ctrl-C leaves whole files, and --resume goes on with the same settings alone") {
  const Sides sides;
  Command command = sides.command(kBatched);
  command.interrupt_after = "] b: --cfg-mode";
  const Outcome stopped = test::run(command);
  CAPTURE(stopped.err);
  CHECK(stopped.code == 128 + SIGINT);
  CHECK(stopped.out.empty());
  CHECK(sides.there("ab/a/0001.png"));
  CHECK_FALSE(sides.there("ab/side-by-side"));
  for (const auto& entry : fs::recursive_directory_iterator(sides.folder.path()))
    CHECK_FALSE(has(entry.path().string(), "partial"));
  CHECK(has(test::refusal(sides.run(kBatched)), "the folder holds a run already; --resume"));
  CHECK(has(test::refusal(sides.run({"--b", "--cfg-mode sequential", "--resume"})),
            "settings.json: is of a run with other settings"));
  const Outcome resumed = sides.run(test::with(kBatched, {"--resume"}));
  CHECK(resumed.code == 0);
  CHECK(has(resumed.err, "2 items: 0 done, 0 failed, 2 skipped"));
  CHECK(has(resumed.out, ": 2 compared, 0 missing\n"));
}

TEST_CASE("a full disk ends a comparison with 3, and nothing half-written stays") {
  const Sides sides;
  sides.folder.write("p.txt", "a red circle\n");
  Command command = sides.command(kBatched);
  command.before_exec = [] {
    const rlimit limit{1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome full = test::run(command);
  CAPTURE(full.err);
  CHECK(full.code == 3);
  CHECK(full.out.empty());
  CHECK(has(full.err, ": write failed"));
  CHECK_FALSE(sides.there("ab"));
}

TEST_CASE("what is no comparison of two settings is refused, and nothing is written") {
  const Sides sides;
  sides.folder.write("own.jsonl", "{\"prompt\": \"a\", \"cfg_mode\": \"batched\"}\n");
  sides.folder.write("text.jsonl",
                     "{\"prompt\": \"a\"}\n{\"task\": \"chat\", \"prompt\": \"a\"}\n");
  const auto said = [&](const Words& more, const std::string& list = "p.txt") {
    return test::refusal(sides.run(more, list));
  };
  CHECK(has(said({"--b", "--task edit"}), "--b: --task: must not differ between the two"));
  CHECK(has(said({"--b", "--prompt x"}), "--b: --prompt: must not differ"));
  CHECK(has(said({"--b", "--cfg-mod batched"}),
            "--b: unknown flag '--cfg-mod' (did you mean --cfg-mode?)"));
  CHECK(has(said({"--b", "--cfg-mode bad"}), "--b: --cfg-mode: unknown value 'bad'"));
  CHECK(has(said({"--b", "--steps '3"}), "has no end"));
  CHECK(has(said({"--b", "--cfg-mode batched"}), "--b: asks for what --a does"));
  CHECK(has(said({"--a", "--steps 4", "--b", "--steps 5"}),
            "--steps: has no effect: --a and --b both set it; expected it there alone"));
  CHECK(has(said({"--set", "x.y=1", "--a", "--set x.y=2", "--b", "--set x.y=3"}),
            "--set x.y: has no effect: --a and --b both set it"));
  CHECK(has(said({"--b", "--cfg-mode sequential"}, "own.jsonl"),
            "own.jsonl:1: cfg_mode: given together with --b: --cfg-mode"));
  CHECK(has(said({"--b", "--steps 4"}, "text.jsonl"), "text.jsonl:2: task chat: makes a text"));
  CHECK(has(said({"--b", "--steps 4"}, "none.txt"), "none.txt: is missing"));
  CHECK(has(said({"--b", "-m none"}), "--b: --model: none: not found"));
  CHECK(has(said({"--b", "--format jpg"}), "--a writes 0000.png, but --b 0000.jpg"));
  CHECK(has(test::refusal(test::run({"compare", "a.png", "b.png", "--steps", "3"})),
            "compare: --steps: is for two settings"));
  CHECK_FALSE(sides.there("ab"));
}

}  // namespace
}  // namespace diptych
