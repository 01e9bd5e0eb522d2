// Editing, answers and plans, as a user runs them, on the tiny checkpoint.
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.h"
#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::kPicture;
using test::kTinyConfig;
using test::Outcome;
using test::record_of;
using test::run;
using test::Words;

const std::string kGoldens = DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/";

Words painting(Words more) {
  Words words = {"generate", "-c", kTinyConfig, "--device", "cpu", "--steps", "3", "-q"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST_CASE("a picture and an instruction are an edit of the picture's size") {
  const test::Folder folder;
  const std::string file = folder.file("edit.png");
  const Outcome outcome = run(painting({"-i", kPicture, "-p", "make it red", "-o", file}));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out == file + "\n");
  const auto record = record_of(file);
  CHECK(record["requested"]["task"] == "edit");
  CHECK(record["requested"]["cfg_img_scale"] == 2.0);
  CHECK(record["requested"]["cfg_renorm_type"] == "text_channel");
  CHECK(record["inputs"][0]["image"] == "img_90x90_rgba.png");
  CHECK(record["inputs"][0]["width"] == 90);
  CHECK(record["inputs"][1]["text"] == "make it red");
  CHECK(record["forwards"] == 6);  // three branches, two updates
  // 90 pixels are brought to 96, the nearest multiple of 16 in the model's range.
  CHECK(read_png(file).rgb.size(0) == 96);
  CHECK(read_png(file).rgb.size(1) == 96);

  const std::string wide = folder.file("wide.png");
  REQUIRE(
      run(painting({"-i", kPicture, "-p", "make it red", "--size", "64x48", "-o", wide})).code ==
      0);
  CHECK(read_png(wide).rgb.size(0) == 48);
}

TEST_CASE("an input picture is not replaced by the output") {
  const test::Folder folder;
  const std::string file = folder.file("in.png");
  std::filesystem::copy_file(kPicture, file);
  const std::string before = content(file);
  const Outcome outcome = run(painting({"-i", file, "-p", "make it red", "-o", file}));
  CHECK(outcome.code == 2);
  CHECK(outcome.err ==
        "diptych: --output: " + file + ": is an input picture; expected another name\n");
  CHECK(content(file) == before);
}

TEST_CASE("the order of texts and pictures counts") {
  const test::Folder folder;
  const std::string first = folder.file("first.png"), last = folder.file("last.png");
  REQUIRE(run(painting({"-p", "a fox", "-i", kPicture, "-o", first})).code == 0);
  REQUIRE(run(painting({"-i", kPicture, "-p", "a fox", "-o", last})).code == 0);
  CHECK(record_of(first)["inputs"][0]["text"] == "a fox");
  CHECK(record_of(last)["inputs"][0].contains("image"));
  CHECK_FALSE(read_png(first).rgb.equal(read_png(last).rgb));
}

TEST_CASE("answers go to stdout, or to a file") {
  const test::Folder folder;
  const Words question = {"--task", "understand",  "-i",           kPicture,
                          "-p",     "What is it?", "--max-tokens", "12"};
  const Words chat = {"generate",     "-c",     kTinyConfig, "--device", "cpu",
                      "-q",           "--task", "chat",      "-p",       "It's a test, isn't it?",
                      "--max-tokens", "16"};
  // Case 05d of the recordings, character for character.
  const auto recorded =
      nlohmann::json::parse(std::ifstream(kGoldens + "cases/05d_text_only_chat/case.json"));
  const Outcome said = run(chat);
  CAPTURE(said.err);
  CHECK(said.code == 0);
  CHECK(said.out == recorded["outputs"][0]["text"].get<std::string>() + "\n");

  Words words = {"generate", "-c", kTinyConfig, "--device", "cpu", "-q"};
  words.insert(words.end(), question.begin(), question.end());
  const Outcome answer = run(words);
  CHECK(answer.code == 0);
  CHECK(answer.out.size() > 2);
  const std::string file = folder.file("answer.txt");
  words.insert(words.end(), {"-o", file});
  const Outcome kept = run(words);
  CHECK(kept.out == file + "\n");
  CHECK(content(file) == answer.out);
  CHECK(folder.names() == Words{"answer.txt"});
}

// Of a file that an answer was written to with its record.
nlohmann::ordered_json answer_in(const std::string& file) {
  return nlohmann::ordered_json::parse(content(file));
}

const Words kQuestion = {
    "generate",   "-c", kTinyConfig,    "--device", "cpu",           "-q",     "--task",
    "understand", "-i", kPicture,       "-p",       "What is it?",   "--seed", "7",
    "--top-k",    "50", "--max-tokens", "12",       "--temperature", "0.9"};

TEST_CASE("an answer named .json has its record, and comes out again") {
  const test::Folder folder;
  const std::string text = run(kQuestion).out, file = folder.file("answer.json");
  REQUIRE(text.size() > 2);
  const Outcome made = run(test::with(kQuestion, {"-o", file}));
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  CHECK(made.out == file + "\n");
  const auto json = answer_in(file);
  CHECK(json.size() == 2);
  CHECK(json["text"].get<std::string>() + "\n" == text);
  const auto& record = json["record"];
  CHECK(record["schema"] == "diptych.generate");
  CHECK(record["seed"] == 7);
  CHECK(record["weights_hash"].get<std::string>().size() > 16);
  CHECK(record["inputs"][0]["image"] == "img_90x90_rgba.png");
  CHECK(record["inputs"][1]["text"] == "What is it?");
  CHECK(record["requested"]["temperature"] == 0.9);
  CHECK_FALSE(record["requested"].contains("steps"));  // nothing is painted
  // The same on stdout, byte by byte.
  CHECK(run(test::with(kQuestion, {"--format", "json"})).out == content(file));

  const Outcome seen = run({"inspect", file});
  CHECK(seen.out.starts_with(file + ": JSON, an answer of "));
  CHECK(seen.out.find("\nanswer:\n" + text) != std::string::npos);
  CHECK(seen.out.find("\"weights_hash\": ") != std::string::npos);
  const auto shown = nlohmann::json::parse(run({"inspect", file, "--json"}).out);
  CHECK(shown["answer"] == json["text"]);
  CHECK(shown["text"]["diptych"] == nlohmann::json(record));

  const std::string again = folder.file("again.json");
  const Words replay = {"inspect", file,    "--replay", "-q", "-m", test::kTinyCheckpoint,
                        "-i",      kPicture};
  const Outcome same = run(test::with(replay, {"-o", again}));
  CAPTURE(same.err);
  CHECK(same.code == 0);
  CHECK(same.out == fmt::format("{}: the same text, {} bytes\n", file, text.size() - 1));
  CHECK(content(again) == content(file));
}

TEST_CASE("an answer that differs from its record is told by its first character") {
  const test::Folder folder;
  const std::string file = folder.file("answer.json");
  Words ask = {"generate",     "-c",     kTinyConfig, "--device", "cpu",
               "-q",           "--task", "chat",      "-p",       "It's a test, isn't it?",
               "--max-tokens", "16",     "-o",        file};
  REQUIRE(run(ask).code == 0);
  auto json = answer_in(file);
  const std::string text = json["text"];
  const Words replay = {"inspect", file, "--replay", "-q", "-m", test::kTinyCheckpoint};
  CHECK(run(replay).code == 0);
  const auto replayed = [&](const std::string& other) {
    json["text"] = other;
    folder.write("answer.json", json.dump());
    return run(test::with(replay, {"--json"}));
  };
  // Characters of one byte and of more.
  const std::size_t first = utf8_at(text, 0).length;
  Outcome outcome = replayed(text.substr(0, first) + "\u00e9" + text.substr(first));
  CHECK(outcome.code == 1);
  CHECK(nlohmann::json::parse(outcome.out)["first_difference"] == 2);
  CHECK(nlohmann::json::parse(outcome.out)["identical"] == false);
  outcome = replayed("");
  CHECK(nlohmann::json::parse(outcome.out)["first_difference"] == 1);
  outcome = run(replay);
  CHECK(outcome.code == 1);
  CHECK(outcome.out.starts_with(file + ": differs from character 1 on: its end, now "));

  const auto refused = [&](const std::string& bytes) {
    folder.write("answer.json", bytes);
    const Outcome said = run(replay);
    CHECK(said.code == 2);
    CHECK(run({"inspect", file}).code == 2);
    return said.err;
  };
  const std::string whole = json.dump();
  CHECK(refused(whole.substr(0, whole.size() / 2)).find("ends within its JSON") !=
        std::string::npos);
  CHECK(refused("{\"text\": \"x\"}")
            .find("answer.json: is no text with a record; expected an object with \"text\" and "
                  "\"record\"") != std::string::npos);
  folder.write("answer.json", "{\"text\": \"x\", \"record\": {}}");
  CHECK(run(replay).err == "diptych: " + file + ": holds no record by diptych\n");

  folder.write("answer.json", whole);
  const std::string weights = folder.file("none.safetensors");
  CHECK(run(test::with(replay, {"--weights", weights})).err == "diptych: --weights: " + weights +
                                                                   ": is none of the files that " +
                                                                   file + " was made with\n");
  json["record"]["inputs"] = nlohmann::json::array();
  folder.write("answer.json", json.dump());
  CHECK(run(replay).err == "diptych: " + file + ": its record is broken\n");
}

TEST_CASE("json is a format of answers alone") {
  const test::Folder folder;
  const std::string file = folder.file("a.png");
  const Outcome painted =
      run(painting({"-p", "a fox", "--format", "json", "--task", "t2i", "-o", file}));
  CAPTURE(painted.err);
  CHECK(painted.code == 2);
  CHECK(painted.err.find("--format: json is of texts, but --task t2i makes pictures") !=
        std::string::npos);
  const Outcome named =
      run(test::with(kQuestion, {"-o", folder.file("a.txt"), "--format", "json"}));
  CHECK(named.code == 2);
  CHECK(named.err.find("a.txt: unknown extension '.txt'; expected .json") != std::string::npos);
  CHECK(run(test::with(kQuestion, {"--format", "png"})).code == 2);
  CHECK(folder.names().empty());
}

TEST_CASE("a list writes answers with records, and goes on with them") {
  const test::Folder folder;
  const std::string out = folder.file("out");
  folder.write("list.jsonl", fmt::format("{{\"task\": \"understand\", \"image\": \"{0}\", "
                                         "\"prompt\": \"What?\", \"output\": \"what.json\"}}\n"
                                         "{{\"task\": \"chat\", \"prompt\": \"hello\"}}\n",
                                         kPicture));
  Words list = {"batch",        folder.file("list.jsonl"),
                "-o",           out,
                "-c",           kTinyConfig,
                "--device",     "cpu",
                "--max-tokens", "8",
                "--format",     "json"};
  const Outcome made = run(list);
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  CHECK(made.out == out + "/what.json\n" + out + "/0001.json\n");
  for (const char* name : {"/what.json", "/0001.json"}) {
    const Outcome same =
        run({"inspect", out + name, "--replay", "-q", "-m", test::kTinyCheckpoint, "-i", kPicture});
    CAPTURE(same.err);
    if (std::string(name) == "/what.json") CHECK(same.code == 0);
    // That picture is none of the chat's inputs.
    if (std::string(name) == "/0001.json") CHECK(same.code == 2);
  }
  CHECK(run({"inspect", out + "/0001.json", "--replay", "-q", "-m", test::kTinyCheckpoint}).code ==
        0);
  const auto line = nlohmann::json::parse(
      content(out + "/manifest.jsonl").substr(0, content(out + "/manifest.jsonl").find('\n')));
  CHECK(line["files"][0]["file"] == "what.json");
  CHECK(line["text"] == answer_in(out + "/what.json")["text"]);
  list.push_back("--resume");
  CHECK(run(list).err.find("0 done, 0 failed, 2 skipped") != std::string::npos);
  folder.write("out/0001.json", "{}");
  CHECK(run(list).err.find("1 done, 0 failed, 1 skipped") != std::string::npos);
  CHECK(answer_in(out + "/0001.json")["record"]["schema"] == "diptych.generate");
}

TEST_CASE("a format for all items goes with names of their own") {
  const test::Folder folder;
  for (const char* name : {"a.json", "a.txt"}) {
    folder.write("list.jsonl",
                 fmt::format(R"({{"task": "chat", "prompt": "What?", "output": "{}"}})", name));
    CHECK(run({"batch", folder.file("list.jsonl"), "-o", folder.file("out"), "--format", "json",
               "--check-config", "-m", test::kTinyCheckpoint})
              .code == 0);
  }
}

TEST_CASE("a folder for a trace is made, and compare finds the trace in it") {
  const test::Folder folder;
  const auto traced = [&](const std::string& flag, const std::string& value, const char* prompt) {
    return run(
        painting({"-p", prompt, "--size", "32x32", "-o", folder.file("a.png"), flag, value}));
  };
  CHECK(traced("--dump-dir", folder.file("one/in"), "a fox").code == 0);
  CHECK(traced("--trace", folder.file("two/"), "a cat").code == 0);
  CHECK(traced("--dump-dir", folder.file("three.safetensors"), "a fox").code == 0);
  CHECK(std::filesystem::exists(folder.file("two/trace.safetensors")));
  const std::string one = folder.file("one/in");
  CHECK(run({"compare", one, folder.file("three.safetensors"), "--tolerance", "0"}).code == 0);
  for (const std::string& other : {folder.file("two"), folder.file("two/trace.safetensors")}) {
    const Outcome compared = run({"compare", other, one, "--tolerance", "0"});
    CAPTURE(compared.out);
    CAPTURE(compared.err);
    CHECK(compared.code == 1);
    CHECK(compared.out.find("first divergence: ") != std::string::npos);
  }
  // Nothing is left of a folder that nothing came into.
  CHECK(traced("--dump-dir", folder.file("none"), "\xff").code == 2);
  CHECK_FALSE(std::filesystem::exists(folder.file("none")));
}

TEST_CASE("sampled text follows the seed") {
  const auto chat = [](const char* seed) {
    return run(Words{"generate",     "-c",      kTinyConfig,     "--device", "cpu",
                     "-q",           "--task",  "chat",          "-p",       "hello",
                     "--max-tokens", "24",      "--temperature", "0.9",      "--top-k",
                     "50",           "--top-p", "0.95",          "--seed",   seed})
        .out;
  };
  CHECK(chat("1") == chat("1"));
  CHECK(chat("1") != chat("2"));
}

TEST_CASE("a plan is shown, kept in the picture and in a file") {
  const test::Folder folder;
  const std::string file = folder.file("planned.png"), plan = folder.file("plan.txt");
  const Outcome outcome =
      run(Words{"generate", "-c", kTinyConfig, "--device", "cpu", "--steps", "3", "-p", "a fox",
                "--think", "--max-think-tokens", "20", "--think-output", plan, "-o", file});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string text = record_of(file)["plan"].get<std::string>();
  CHECK(content(plan) == text + "\n");
  CHECK(outcome.err.find("plan: ") != std::string::npos);
  CHECK(outcome.err.find("a plan was stopped by --max-think-tokens 20\n") != std::string::npos);
  CHECK(record_of(file)["finish_reason"] == "length");
  CHECK(record_of(file)["requested"]["think"] == true);
}

TEST_CASE("flags that a task would pass over are refused") {
  const auto refusal = [](Words words) {
    words.insert(words.begin(), {"generate", "-c", kTinyConfig, "-q"});
    const Outcome outcome = run(words);
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK(refusal({"--task", "chat", "-p", "hi", "--steps", "4"}) ==
        "diptych: --steps: has no meaning for --task chat, which paints nothing\n");
  CHECK(refusal({"--task", "chat", "-p", "hi", "--vae-dtype", "float32"}) ==
        "diptych: --vae-dtype: has no meaning for --task chat, which paints nothing\n");
  CHECK(refusal({"-p", "a fox", "--temperature", "1"}) ==
        "diptych: --temperature: given without --think\n");
  CHECK(refusal({"-p", "a fox", "--think", "--top-k", "5"}) ==
        "diptych: --top-k: given without --temperature\n");
  CHECK(refusal({"-p", "a fox", "-n", "blur", "--cfg-scale", "1"}) ==
        "diptych: --negative-prompt: has no effect without text guidance (--cfg-scale above 1)\n");
  for (const auto& [flag, value] :
       {std::pair("--cfg-interval", "0,1"), std::pair("--cfg-renorm-type", "channel"),
        std::pair("--cfg-renorm-min", "0.5"), std::pair("--cfg-img-scale", "2")}) {
    CHECK(refusal({"-p", "a fox", flag, value, "--cfg-scale", "1"}) ==
          fmt::format("diptych: {}: has no effect without text guidance (--cfg-scale above 1)\n",
                      flag));
  }
  CHECK(refusal({"-p", "a fox", "--cache-mode", "teacache", "--device", "cpu"})
            .find("`diptych calibrate` writes it") != std::string::npos);
  CHECK(refusal({"--size", "1024x1024", "--device", "cpu", "--check-config"})
            .find("expected a multiple of 16 up to 192") != std::string::npos);
  CHECK(refusal({"-p", "a fox", "--cache-threshold", "1"}) ==
        "diptych: --cache-threshold: given without --cache-mode teacache\n");
  CHECK(refusal({"-p", "a fox", "-i", "/nowhere/a.png"}) ==
        "diptych: --image: /nowhere/a.png: no such file\n");
  CHECK(refusal({"-p", "a fox", "-i", kGoldens + "README.md"})
            .find("not a picture, expected PNG, JPEG") != std::string::npos);
  CHECK(refusal({"-p", "a fox", "--think-output", "p.txt"}) ==
        "diptych: --think-output: given without a plan to paint by; expected --think and a task "
        "that paints\n");
  CHECK(refusal({"-p", "a fox", "--device", "cpu", "--max-vram", "24"}) ==
        "diptych: --max-vram: needs a GPU; this run is on the CPU\n");
  CHECK(refusal({"-p", "a fox", "--device", "cpu", "--offload", "layers"})
            .find("--offload layers: the run is on the CPU") != std::string::npos);
}

}  // namespace
}  // namespace diptych
