// Pictures of every format on their ways in and out, stdin and stdout among them.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "lib/base/text_file.h"
#include "lib/media/image_read.h"
#include "lib/media/picture_write.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Command;
using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::run;
using test::with;
using test::Words;

Command generate(const Words& more) {
  Command command;
  command.arguments = with(
      {"generate", "-c", kTinyConfig, "--steps", "2", "--device", "cpu", "--size", "32x32", "-q"},
      more);
  return command;
}

ReadPicture decode(const std::string& bytes) {
  return decode_picture({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "x");
}

TEST_CASE("every extension gets its format, patterns and several pictures too") {
  const Folder folder;
  for (const std::string_view extension : written_extensions()) {
    CAPTURE(extension);
    const std::string end(extension);
    REQUIRE(run(generate({"-p", "x", "-b", "2", "-o", folder.file("p-%d" + end)})).code == 0);
    for (const char* name : {"p-0", "p-1"}) {
      const ReadPicture picture = read_picture(folder.path() / (name + end));
      CHECK((picture.format == *format_of_name("x" + end)));
      CHECK(picture.image.rgb.sizes() == at::IntArrayRef({32, 32, 3}));
      CHECK(test::record_of(folder.path() / (name + end))["steps"] == 2);
    }
    const Outcome shown = run(Words{"inspect", folder.file("p-1" + end), "--json"});
    const auto report = json::parse(shown.out);
    CHECK(report["format"] == facts_of(*format_of_name("x" + end)).name);
    CHECK(report["text"]["diptych"]["index"] == 1);
    CHECK(has(report["text"]["parameters"].get<std::string>(), "Steps: 2"));
  }
}

TEST_CASE("without a name --format decides: a folder, a default name, stdout") {
  const Folder folder;
  const bool webp = facts_of(PictureFormat::webp).built_in;
  const std::string format = webp ? "webp" : "png";
  REQUIRE(run(generate({"-p", "x", "-o", folder.path().string(), "--format", format})).code == 0);
  CHECK(folder.names() == Words{"0000." + format});
  const std::string file = read_text_file(folder.path() / ("0000." + format));

  const Outcome piped = run(generate({"-p", "x", "-o", "-", "--format", format}));
  CHECK(piped.code == 0);
  CHECK(piped.out == file);
  const Outcome png = run(generate({"-p", "x", "-o", "-"}));
  CHECK((decode(png.out).format == PictureFormat::png));
  Command loud = generate({"-p", "x", "-o", "-"});
  std::erase(loud.arguments, "-q");
  const Outcome logged = run(loud);
  CHECK(logged.out == png.out);  // what is logged goes to stderr
  CHECK(has(logged.err, "it/s"));
}

TEST_CASE("an answer goes to stdout by name, too") {
  const Words chat = {"--task", "chat", "-p", "hi", "--max-tokens", "4"};
  Command command;
  command.arguments = with({"generate", "-c", kTinyConfig, "--device", "cpu", "-q"}, chat);
  const Outcome plain = run(command);
  command.arguments = with(command.arguments, {"-o", "-"});
  CHECK(run(command).out == plain.out);
  CHECK_FALSE(plain.out.empty());
}

TEST_CASE("a picture is read from stdin as from a file, whatever its format") {
  const Folder folder;
  const Tensor rgb =
      at::arange(40 * 32 * 3, at::kInt).remainder(251).to(at::kByte).view({40, 32, 3});
  for (const std::string_view extension : written_extensions()) {
    CAPTURE(extension);
    const std::string name = "in" + std::string(extension);
    const auto bytes = encode_picture(rgb, {}, {*format_of_name(name)});
    const std::string content(bytes.begin(), bytes.end());
    folder.write(name, content);
    const Words edit = {"-p", "redder", "-o", "-"};
    const Outcome of_file = run(generate(with({"-i", folder.file(name)}, edit)));
    CAPTURE(of_file.err);
    REQUIRE(of_file.code == 0);
    Command command = generate(with({"-i", "-"}, edit));
    command.input = content;
    const Outcome of_stdin = run(command);
    CAPTURE(of_stdin.err);
    REQUIRE(of_stdin.code == 0);
    CHECK(at::equal(decode(of_stdin.out).image.rgb, decode(of_file.out).image.rgb));
    folder.write("out.png", of_stdin.out);
    const json input = test::record_of(folder.path() / "out.png")["inputs"][0];
    CHECK(input["image"] == "stdin");
    CHECK(input["width"] == 32);
    const Outcome replayed = run(Words{"inspect", folder.file("out.png"), "--replay", "-m",
                                       kTinyCheckpoint, "-i", folder.file(name), "-q"});
    CHECK(has(replayed.out, ": identical, "));
  }
}

TEST_CASE("stdin is read once, and what it holds is checked") {
  const auto refused = [](const Words& more, const std::string& input) {
    Command command = generate(more);
    command.input = input;
    const Outcome outcome = run(command);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    return outcome.err;
  };
  CHECK(has(refused({"-i", "-", "-p", "-", "-o", "-"}, "x"),
            "--prompt: - given twice; stdin is read once"));
  CHECK(has(refused({"-p", "-", "-i", "-", "-o", "-"}, "x"),
            "--image: - given twice; stdin is read once"));
  CHECK(
      has(refused({"-i", "-", "-p", "x", "-o", "-"}, ""), "--image: /dev/stdin: empty, expected"));
  CHECK(has(refused({"-i", "-", "-p", "x", "-o", "-"}, "\x89PNG\r\n\x1a\nshort"),
            "--image: /dev/stdin: broken PNG"));
  Command closed = generate({"-i", "-", "-p", "x", "-o", "-"});
  closed.before_exec = [] { close(STDIN_FILENO); };
  CHECK(has(run(closed).err, "--image: "));
}

TEST_CASE("batch: a list on stdin, of prompts or of JSON lines, and every format") {
  const Folder folder;
  const auto batch = [&](const std::string& list, const std::string& out, const Words& more) {
    Command command;
    command.arguments = with({"batch", "-", "-c", kTinyConfig, "--device", "cpu", "--steps", "2",
                              "--size", "32x32", "-q", "-o", folder.file(out)},
                             more);
    command.input = list;
    return run(command);
  };
  CHECK(batch("a fox\n# no\n\na cat\n", "texts", {}).code == 0);
  CHECK(fs::exists(folder.path() / "texts/0001.png"));
  CHECK_FALSE(fs::exists(folder.path() / "texts/0002.png"));

  const bool webp = facts_of(PictureFormat::webp).built_in;
  const std::string extension = webp ? ".webp" : ".png";
  const std::string list = "\n  {\"prompt\": \"a fox\"}\n{\"prompt\": \"b\", \"output\": \"b" +
                           extension + "\"" + (webp ? ", \"quality\": 100" : "") + "}\n";
  const Words quality = webp ? Words{"--quality", "50", "--format", "webp"} : Words{};
  CHECK(batch(list, "items", quality).code == 0);
  const json first = test::record_of(folder.path() / ("items/0000" + extension));
  const json second = test::record_of(folder.path() / ("items/b" + extension));
  if (webp) {
    CHECK(first["encoding"] == json{{"format", "webp"}, {"quality", 50}});
    CHECK(second["encoding"]["quality"] == 100);
  }
  const auto written = fs::last_write_time(folder.path() / ("items/b" + extension));
  CHECK(batch(list, "items", with(quality, {"--resume"})).code == 0);
  CHECK(fs::last_write_time(folder.path() / ("items/b" + extension)) == written);
  if (webp) {  // another quality is another file
    CHECK(batch(list, "items", {"--quality", "60", "--format", "webp", "--resume"}).code == 0);
    CHECK(fs::last_write_time(folder.path() / ("items/b" + extension)) == written);
    CHECK(test::record_of(folder.path() / "items/0000.webp")["encoding"]["quality"] == 60);
  }

  const Outcome bad = batch("{\"prompt\": \"x\", \"step\": 3}\n", "bad", {});
  CHECK(bad.code == 2);
  CHECK(has(bad.err, "stdin:1: unknown key 'step'"));
  CHECK(has(batch("", "none", {}).err, "stdin: holds no item"));
  CHECK(has(batch("a\n", "none", {"-i", "-"}).err, "--image: -: stdin holds the list"));
  CHECK(has(batch("{\"prompt\": \"x\", \"output\": \"a.tif\"}", "none", {}).err,
            "output: a.tif: unknown extension '.tif'; expected .png"));
}

TEST_CASE("check, compare and inspect read what -i reads, stdin as well") {
  const Folder folder;
  const Tensor rgb = at::full({16, 16, 3}, 100, at::kByte);
  std::vector<std::string> names;
  for (const std::string_view extension : written_extensions()) {
    names.push_back("a" + std::string(extension));
    const auto bytes = encode_picture(rgb, {}, {*format_of_name(names.back()), 100});
    folder.write(names.back(), {bytes.begin(), bytes.end()});
  }
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(run(Words{"check", folder.file(name), "--probe", "3,4=100,100,100+-2"}).code == 0);
    CHECK(
        run(Words{"check", folder.file("a.png"), "--against", folder.file(name), "--max-abs", "2"})
            .code == 0);
    CHECK(run(Words{"compare", folder.file("a.png"), folder.file(name), "--max-abs", "2", "--diff",
                    folder.file("d" + fs::path(name).extension().string())})
              .code == 0);
    const std::string both = folder.file("both.png");
    const Outcome twice =
        run(Words{"compare", folder.file("a.png"), folder.file(name), "-o", both, "--diff", both});
    CHECK(twice.code == 2);
    CHECK(twice.err.ends_with("--diff: " + both + ": is also the place of the output\n"));
    Command command;
    command.input = read_text_file(folder.path() / name);
    command.arguments = {"check", "-", "--probe", "3,4=100,100,100+-2"};
    CHECK(run(command).code == 0);
    command.arguments = {"check", folder.file("a.png"), "--against", "-", "--max-abs", "2"};
    CHECK(run(command).code == 0);
    command.arguments = {"check", "-", "--against", "-", "--max-abs", "2"};
    CHECK(run(command).code == 2);
    command.arguments = {"compare", "-", folder.file("a.png"), "--max-abs", "2"};
    CHECK(run(command).code == 0);
    command.arguments = {"inspect", "-"};
    CHECK(has(run(command).out, "/dev/stdin: " + std::string(facts_of(*format_of_name(name)).name) +
                                    ", 16x16, 0 text entries\n"));
  }
  CHECK(has(run(Words{"compare", "-", "-"}).err, "- given twice"));
  for (const std::string input : {"", "hello"}) {
    Command command;
    command.arguments = {"inspect", "-"};
    command.input = input;
    const Outcome outcome = run(command);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, input.empty() ? "stdin: empty; expected a picture ("
                                         : "stdin: neither a picture nor a video; expected"));
  }
  folder.write("note.md", "hello");
  for (const Words& words : {Words{"inspect"}, {"check", "--probe", "0,0=1,1,1"}}) {
    const Outcome outcome = run(with(words, {folder.file("note.md")}));
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, "note.md: "));
  }
}

TEST_CASE("bench keeps its pictures in the format that is asked for") {
  if (!facts_of(PictureFormat::jpeg).built_in) return;
  const Folder folder;
  const Outcome outcome =
      run(Words{"bench",    "-c",       kTinyConfig, "--device",   "cpu",
                "--size",   "32x32",    "--steps",   "2",          "--repeats",
                "1",        "--warmup", "0",         "--save-dir", folder.file("kept"),
                "--format", "jpg",      "--quality", "70",         "-q"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK((read_picture(folder.path() / "kept/32x32.jpg").format == PictureFormat::jpeg));
}

}  // namespace
}  // namespace diptych
