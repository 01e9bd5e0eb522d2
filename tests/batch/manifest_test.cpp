// The manifest after kills at any byte, and its records.
#include "lib/batch/manifest.h"

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/text_file.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

ManifestRecord record(const std::string& id, std::size_t number, bool ok = true) {
  ManifestRecord made;
  made.id = id;
  made.number = number;
  made.ok = ok;
  made.seconds = 1.5;
  made.seed = 18446744073709551615u;
  made.request = "abc";
  if (ok) {
    made.files = {{id + ".png", "00ff"}};
  } else {
    made.error = "list:3: \"quoted\"\nline";
  }
  return made;
}

TEST_CASE("a record survives its line") {
  ManifestRecord made = record("a b", 3);
  made.prompt = "a tall red house";
  made.prompt_given = "a house";
  made.text = "an answer\nwith \xF0\x9F\x98\x80";
  made.plan = "";
  made.finish_reason = "length";
  const auto read = ManifestRecord::parse(made.line());
  REQUIRE(read);
  CHECK(read->line() == made.line());
  CHECK(read->prompt.value_or("none") == "a tall red house");
  CHECK(read->prompt_given.value_or("none") == "a house");
  CHECK(read->text.value_or("none") == *made.text);
  CHECK(read->plan.value_or("none").empty());
  CHECK(read->finish_reason == "length");
  CHECK(read->seed == made.seed);
  CHECK((read->files == made.files));
  CHECK(made.line().find('\n') == std::string::npos);
  const auto failed = ManifestRecord::parse(record("b", 4, false).line());
  REQUIRE(failed);
  CHECK_FALSE(failed->ok);
  CHECK(failed->error == "list:3: \"quoted\"\nline");
  for (const char* line : {"", "{}", "[]", "null", "{\"id\": 3}", "\x00\x00"}) {
    CAPTURE(line);
    CHECK_FALSE(ManifestRecord::parse(line));
  }
}

TEST_CASE("a manifest is taken up again, and refused without --resume") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  {
    Manifest manifest(file, false);
    manifest.append(std::vector{record("a", 0), record("b", 1, false)});
  }
  CHECK(message_of([&] { Manifest(file, false); }).find("--resume goes on with it") !=
        std::string::npos);
  Manifest manifest(file, true);
  CHECK(manifest.records().size() == 2);
  CHECK(manifest.find("a")->ok);
  CHECK_FALSE(manifest.find("b")->ok);
  CHECK(manifest.find("c") == nullptr);
}

TEST_CASE("a run in which every item failed is begun anew without --resume") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const std::string failed = record("a", 0, false).line() + "\n";
  folder.write("manifest.jsonl", failed);
  {
    Manifest manifest(file, false);
    CHECK(manifest.records().empty());
  }
  CHECK(read_text_file(file) == failed);  // reading changes nothing
  {
    Manifest manifest(file, false);
    manifest.append(std::vector{record("b", 0)});
    manifest.finish({"b"});
  }
  CHECK(read_text_file(file) == record("b", 0).line() + "\n");
  // With a file, or what may stand for one, it is a run.
  ManifestRecord half = record("a", 0, false);
  half.files = {{"a-000.png", "00ff"}};
  for (const std::string& more : {half.line() + "\n", std::string("torn"), std::string("odd\n")}) {
    folder.write("manifest.jsonl", failed + more);
    CHECK(message_of([&] { Manifest(file, false); }).find("holds a run already") !=
          std::string::npos);
  }
}

TEST_CASE("a manifest that was moved or removed takes no more lines") {
  const test::Folder folder;
  std::filesystem::create_directories(folder / "out");
  const auto file = folder / "out" / "manifest.jsonl";
  const auto error = [&](const auto& disturb) -> std::string {
    Manifest manifest(file, true);
    manifest.append(std::vector{record("a", 0)});
    disturb();
    try {
      manifest.require_in_place();
    } catch (const WriteError& first) {
      CHECK_THROWS_AS(manifest.append(std::vector{record("b", 1)}), WriteError);
      CHECK_THROWS_AS(manifest.finish({"a"}), WriteError);
      return first.what();
    }
    return "in place";
  };
  const std::string end = ": was moved or removed while the batch was running; stopped";
  CHECK(error([] {}) == "in place");
  CHECK(error([&] { std::filesystem::rename(file, folder / "m"); }) == file.string() + end);
  CHECK(error([&] { folder.write("out/other", ""), std::filesystem::remove(file); }) ==
        file.string() + end);
  CHECK(error([&] {
          std::filesystem::remove(file);
          folder.write("out/manifest.jsonl", "");
        }) == file.string() + end);
  CHECK(error([&] { std::filesystem::rename(folder / "out", folder / "moved"); }) ==
        (folder / "out").string() + end);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("a pipe or a device is no manifest, and stays") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  std::filesystem::create_symlink("/dev/null", file);
  for (const bool resume : {false, true}) {
    CHECK(message_of([&] { Manifest(file, resume); }) ==
          file.string() + ": is a device, expected a file");
  }
  CHECK(std::filesystem::is_symlink(file));
}

TEST_CASE("a manifest without a record goes away") {
  const test::Folder folder;
  { const Manifest manifest(folder.path() / "manifest.jsonl", false); }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("cut off at any byte, it holds the records before, and goes on behind them") {
  const test::Folder folder;
  const std::string first = record("a", 0).line() + "\n", second = record("b", 1).line() + "\n";
  const std::string whole = first + second;
  for (std::size_t bytes = 1; bytes <= whole.size(); ++bytes) {
    const auto file = folder.write("manifest.jsonl", whole.substr(0, bytes));
    {
      Manifest manifest(file, true);
      CHECK(manifest.unreadable_lines() == 0);
      CHECK(manifest.records().size() == (bytes < first.size() ? 0 : bytes < whole.size() ? 1 : 2));
      CHECK(read_text_file(file) == whole.substr(0, bytes));  // reading changes nothing
      manifest.append(std::vector{record("a", 0), record("b", 1)});
      manifest.finish({"a", "b"});
    }
    CHECK(read_text_file(file) == whole);
    std::filesystem::remove(file);
  }
}

TEST_CASE("at the end each id has one line, in the list's order") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const auto lines = [&](const std::string& before, std::vector<ManifestRecord> more) {
    folder.write("manifest.jsonl", before);
    Manifest manifest(file, true);
    manifest.append(more);
    manifest.finish({"a", "b"});
    return read_text_file(file);
  };
  const std::string expected = record("a", 0).line() + "\n" + record("b", 1).line() + "\n";
  CHECK(lines("", {record("b", 1), record("a", 0)}) == expected);
  CHECK(lines(record("b", 1, false).line() + "\n", {record("a", 0), record("b", 1)}) == expected);
  CHECK(lines(record("gone", 2).line() + "\nnonsense\n", {record("a", 0), record("b", 1)}) ==
        expected);
}

TEST_CASE("one process writes a manifest, not two") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const Manifest mine(file, false);
  // A lock is of the open file: a second one in this process is as another's.
  CHECK(message_of([&] { Manifest(file, true); }) ==
        file.string() + ": another process is writing it");
}

TEST_CASE("empty manifests that come and go are held by one at a time") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  std::atomic<int> holders = 0, held = 0, wrong = 0;
  const auto come_and_go = [&] {
    for (int i = 0; i < 400; ++i) {
      try {
        const Manifest mine(file, false);
        if (++holders != 1 || !std::filesystem::exists(file)) ++wrong;
        ++held;
        --holders;
      } catch (const InputError&) {  // another has it
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(come_and_go);
  threads.clear();
  CHECK(held > 0);
  CHECK(wrong == 0);
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("several processes write one manifest, the last one puts it in order") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const std::set<std::string> of_a = {"a"}, of_b = {"b"};
  const std::string in_order = record("a", 0).line() + "\n" + record("b", 1).line() + "\n";
  {
    Manifest b(file, false, &of_a);
    CHECK(message_of([&] { Manifest(file, true); }) ==
          file.string() + ": another process is writing it");
    b.append(std::vector{record("b", 1)});
    {
      Manifest a(file, false, &of_b);  // b's record is of this run
      a.append(std::vector{record("a", 0)});
      a.finish({"a", "b"});
    }
    CHECK(read_text_file(file) == record("b", 1).line() + "\n" + record("a", 0).line() + "\n");
    b.finish({"a", "b"});
    CHECK(read_text_file(file) == in_order);
  }
  CHECK(message_of([&] { Manifest(file, false, &of_b); }).find("holds a run already") !=
        std::string::npos);
  // One that begins when another is done: the rest is still to come.
  std::filesystem::remove(file);
  {
    Manifest b(file, false, &of_a);
    b.append(std::vector{record("b", 1)});
    b.finish({"a", "b"});
  }
  {
    Manifest a(file, false, &of_b);
    a.append(std::vector{record("a", 0)});
    a.finish({"a", "b"});
  }
  CHECK(read_text_file(file) == in_order);
  folder.write("manifest.jsonl", record("gone", 0).line() + "\n");
  CHECK(message_of([&] { Manifest(file, false, &of_b); }).find("holds a run already") !=
        std::string::npos);
}

TEST_CASE("a line that a killed process left is cut off by the next one of another") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const std::set<std::string> others = {"b"};
  for (const std::string& before : {std::string(), record("b", 1).line() + "\n"}) {
    folder.write("manifest.jsonl", before);
    Manifest a(file, true, &others);
    std::ofstream(file, std::ios::app) << "{\"id\": \"torn";
    a.append(std::vector{record("a", 0)});
    CHECK(read_text_file(file) == before + record("a", 0).line() + "\n");
  }
}

TEST_CASE("an empty manifest stays while another process has it") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const std::set<std::string> others = {"b"};
  Manifest a(file, false, &others);
  { const Manifest b(file, false, &others); }
  a.append(std::vector{record("a", 0)});
  CHECK(read_text_file(file) == record("a", 0).line() + "\n");
}

TEST_CASE("lines of several processes do not mix") {
  const test::Folder folder;
  const auto file = folder.path() / "manifest.jsonl";
  const std::set<std::string> others = {"x"};
  constexpr int kProcesses = 4, kEach = 25;
  std::vector<std::jthread> threads;
  for (int process = 0; process < kProcesses; ++process) {
    threads.emplace_back([&, process] {
      Manifest own(file, true, &others);
      for (int i = 0; i < kEach; ++i) {
        ManifestRecord made = record(std::to_string(process * kEach + i), 0);
        made.text = std::string(3000, 'x');
        own.append(std::vector{made});
      }
    });
  }
  threads.clear();
  const auto records = read_manifest(file);
  REQUIRE(records);
  CHECK(records->size() == kProcesses * kEach);
}

TEST_CASE("a manifest is read without being taken up") {
  const test::Folder folder;
  const auto file = folder.path() / kManifestName;
  CHECK_FALSE(read_manifest(file));
  std::ofstream(file) << record("b", 1).line() << "\n"
                      << record("a", 0).line() << "\n"
                      << record("b", 1, false).line() << "\n{\"id\": \"torn";
  const auto records = read_manifest(file);
  REQUIRE(records);
  REQUIRE(records->size() == 2);
  CHECK(records->front().id == "a");
  CHECK_FALSE(records->back().ok);  // the last of its id counts
  std::ofstream(file, std::ios::app) << "\n";
  CHECK(message_of([&] { read_manifest(file); }).find("manifest.jsonl:4: is no record") !=
        std::string::npos);
}

TEST_CASE("manifests of another division are seen") {
  const test::Folder folder;
  folder.write("manifest-0-of-4.jsonl", "x\n");
  folder.write("manifest-3-of-4.jsonl", "x\n");
  folder.write("manifest-1-of-2.jsonl", "");
  folder.write("manifest-a-of-2.jsonl", "x");
  using Names = std::vector<std::string>;
  CHECK(manifests_of_other_shards(folder.path(), 4).empty());
  CHECK(manifests_of_other_shards(folder.path(), 1) ==
        Names{"manifest-0-of-4.jsonl", "manifest-3-of-4.jsonl"});
  folder.write("manifest.jsonl", "x\n");
  CHECK(manifests_of_other_shards(folder.path(), 4) == Names{"manifest.jsonl"});
  CHECK(manifests_of_other_shards(folder.path() / "missing", 1).empty());
}

}  // namespace
}  // namespace diptych
