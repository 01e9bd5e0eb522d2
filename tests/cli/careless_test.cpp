// The careless user: each mistake gives one line on stderr, nothing on stdout, and exit code 2.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "lib/base/picture_formats.h"
#include "lib/base/text_file.h"
#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using test::Outcome;
using test::run;
using test::Words;

// The line without "diptych: " and the newline; checks that it is one line, alone.
std::string refusal(const test::Command& command) {
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.starts_with("diptych: "));
  if (outcome.err.size() < 10) return outcome.err;
  return outcome.err.substr(9, outcome.err.size() - 10);
}

std::string refusal(Words arguments) {
  test::Command command;
  command.arguments = std::move(arguments);
  return refusal(command);
}

std::string refusal_of(Words flags) {
  Words arguments = {"generate", "-p", "x", "-o", "/nonexistent/never.png"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return refusal(arguments);
}

TEST_CASE("no verb, a wrong verb, a wrong flag") {
  CHECK(refusal(Words{}) == "no verb given, such as generate (see diptych --help)");
  CHECK(refusal(Words{"genrate"}).starts_with("unknown verb 'genrate' (did you mean 'generate'?"));
  CHECK(refusal(Words{"generate", "--stpes", "4"}) ==
        "generate: unknown flag '--stpes' (did you mean --steps? see diptych generate --help)");
  CHECK(refusal(Words{"generate", "--stpes=4"}).find("did you mean --steps?") != std::string::npos);
  CHECK(refusal(Words{"generate", "a fox"}) ==
        "generate: unknown argument 'a fox' (see diptych generate --help)");
  CHECK(refusal(Words{"generate", "-p", "x", "-steps", "3"}) ==
        "generate: unknown flag '-steps' (did you mean --steps? see diptych generate --help)");
  CHECK(refusal(Words{"generate", "-p", "x", "-o", "a.png", "generate", "-p", "y"}) ==
        "generate: unknown argument 'generate' (see diptych generate --help)");
  CHECK(refusal(Words{"version", "devices"}) ==
        "version: unknown argument 'devices' (see diptych version --help)");
  CHECK(refusal(Words{"--xyzzy"}) == "unknown flag '--xyzzy' (see diptych --help)");
  CHECK(refusal(Words{"generate", "--steps"}).starts_with("generate: --steps"));
  CHECK(refusal(Words{"completion"}).starts_with("completion: "));
  CHECK(refusal(Words{"completion", "csh"}).find("csh") != std::string::npos);
  for (const Words& words : {Words{"understand", "--help"}, Words{"--help", "understand"}})
    CHECK(refusal(words).starts_with("unknown verb 'understand' (known: generate, "));
}

TEST_CASE("what the parser refuses is said as everything else is") {
  const test::Folder folder;
  folder.write("p.txt", "a\n");
  const std::string list = folder.file("p.txt");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"generate", "--prompt"}, "generate: --prompt: given without a value; expected TEXT"},
      {{"generate", "-p", "x", "--think=maybe"},
       "--think: unknown value 'maybe'; expected true or false"},
      {{"batch", list}, "batch: --output-dir: not given; expected DIR"},
      {{"batch", list, "-o", "o", "-o", "p"}, "batch: --output-dir: given 2 times; expected once"},
      {{"batch", list, "-o", "o", "--resume=x"},
       "batch: --resume: 'x' could not be read; expected true or false"},
      {{"batch", list, "-o", folder.file("o"), "-q", "--batch-size", "0"},
       "--batch-size: 0 is out of range; expected 1 to 1024"},
      {{"batch", list, "-o", folder.file("o"), "-q", "--batch-size", "x"},
       "--batch-size: 'x' is not a whole number"},
      {{"calibrate", "-o", folder.file("c.json"), "-q", "--pictures", "0"},
       "--pictures: 0 is out of range; expected 1 to 1000"},
      {{"generate", "--task", "chat", "-p", "x", "-s", "7"},
       "--seed: given without --temperature, and so nothing is drawn"},
      {{"generate", "--task", "chat", "-p", "x", "--max-think-tokens", "3"},
       "--max-think-tokens: given without --think"},
      {{"batch", list, "-o", folder.file("o"), "--task", "chat", "--max-think-tokens", "3"},
       "--max-think-tokens: does nothing for any item: given without --think"},
      {{"generate", "-q", "-p", "x", "--timestep-shift", "1e-12"},
       "--timestep-shift: 1e-12 is too extreme for float32: t begins at inf, expected 1"},
      {{"generate", "-p", "x", "--trace-filter", "kv.*"},
       "--trace-filter: given without --trace FILE"},
      {{"generate", "-p", "x", "--think-output", "p.txt"},
       "--think-output: given without a plan to paint by; expected --think and a task that paints"},
      {{"generate", "-p", "x", "--set", "stages.0.default_sampling_params.top_k=7"},
       "--set stages.0.default_sampling_params.top_k: given without --think"},
      {{"batch", list, "-o", folder.file("o"), "--top-k", "5"},
       "--top-k: does nothing for any item: given without --think"},
      {{"batch", list, "-o", folder.file("o"), "--cache-threshold", "0.3"},
       "--cache-threshold: does nothing for any item: given without --cache-mode teacache"},
      {{"generate", "-p", "x", "-b", "3", "--think", "--temperature", "0.7", "--think-output",
        folder.file("plan.txt")},
       "--think-output: one file, but each of the 3 pictures has a plan of its own; expected "
       "--batch-count 1"},
      {{"batch", list, "-o", folder.file("o"), "--shard", ""},
       "--shard: '' is no shard; expected I/N with I from 0 to N - 1, such as 0/4"},
      {{"bench", "--dataset", list},
       "--dataset: is of texts, but --task t2i writes none; expected --task chat"},
      {{"bench", "--sizes", ""},
       "--sizes: '' is not a size; expected WIDTHxHEIGHT, such as 1024x768"},
      {{"generate", "-p", "x", "--set", "pipeline=nope"},
       "--set pipeline: unknown family 'nope' (known: bagel, lance, wan, cosmos, qwen3_dflash)"},
      {{"batch", "", "-o", folder.file("o")}, "batch: list: is empty; expected a path"},
      {{"batch", list, "-o", ""}, "batch: --output-dir: is empty; expected a path"},
      {{"calibrate", "--prompts", ""}, "calibrate: --prompts: is empty; expected a path"},
      {{"verify", ""}, "verify: cases: is empty; expected a path"},
      {{"inspect", ""}, "inspect: path: is empty; expected a path"},
      {{"check", "", "--probe", "1,1=1,1,1"}, "check: file: is empty; expected a path"},
      {{"compare", "a.png", ""}, "compare: expected: is empty; expected a path"},
      {{"compare", "a.png", "b.png", "--diff", ""}, "compare: --diff: is empty; expected a path"},
      {{"compare", "a", "b", "--case="}, "compare: --case: is empty; expected a path"},
      {{"compare", "a.png", "b.png", "--min-ssim="},
       "compare: --min-ssim: is empty; expected a number"},
      {{"check", "a.png", "--against", "b.png", "--max-abs", ""},
       "check: --max-abs: is empty; expected a number"},
      {{"check", "a.png", "--tolerance", ""}, "check: --tolerance: is empty; expected a number"},
      {{"inspect", "a.png", "--replay", "--device="},
       "inspect: --device: is empty; expected auto, cpu, cuda or cuda:N"},
      {{"batch", list, "-o", "-"},
       "batch: --output-dir: found -, which is stdout elsewhere; expected a folder (./- for one of "
       "that name)"},
      {{"generate", "-p", "x", "-i", "/tmp"}, "--image: /tmp: is a folder; expected a file"},
      {{"generate", "-p", "x", "--cfg-scale", "1", "--cfg-mode", "sequential"},
       "--cfg-mode: has no effect without text guidance (--cfg-scale above 1)"},
      {{"generate", "-p", "x", "--cfg-renorm-min", "1", "--cfg-renorm-type", "channel"},
       "--cfg-renorm-type: has no effect with --cfg-renorm-min 1, which switches the renorm off"},
      {{"completion", "tcsh"}, "completion: unknown shell 'tcsh' (known: bash, zsh, fish)"},
      {{"compare", "a.png"},
       "compare: expected: not given; expected a file or folder of the same kind to compare it "
       "with"},
      {{"check", "a.png", "--tolerance", "1.5"},
       "check: --tolerance: '1.5' could not be read; expected a whole number"},
      {{"inspect", "a.png", "-m", "x"}, "inspect: --model: given without --replay"},
      {{"inspect", "a.png", "--filter", "x", "--replay"},
       "inspect: --filter: given together with --replay; expected one of them"},
  };
  for (const auto& [words, message] : cases) CHECK(refusal(words) == message);
  CHECK(folder.names() == Words{"p.txt"});
}

TEST_CASE("help and version go to stdout") {
  const Outcome help = run(Words{"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  for (const char* verb :
       {"generate", "verify", "check", "compare", "inspect", "devices", "version", "completion"}) {
    CHECK(help.out.find(verb) != std::string::npos);
    const Outcome own = run(Words{verb, "--help"});
    CHECK(own.code == 0);
    CHECK(own.out.find("xample") != std::string::npos);
    std::istringstream lines(own.out);
    for (std::string line; std::getline(lines, line);) {
      const bool is_description = line.starts_with(std::string(30, ' '));
      if (is_description) CHECK(line.size() <= 100);
    }
  }
  CHECK(run(Words{"--version"}).out.starts_with("diptych "));
  CHECK(run(Words{"version"}).out.find("libtorch 2.") != std::string::npos);
  const Outcome devices = run(Words{"devices"});
  CHECK(devices.code == 0);
  CHECK(devices.out.starts_with("cpu: "));
  CHECK(devices.out.find("attention math   usable") != std::string::npos);
}

TEST_CASE("bad values") {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--steps", "abc"}, "--steps: 'abc' is not a whole number"},
      {{"--steps", "20x"}, "--steps: '20x' is not a whole number"},
      {{"--steps", "0"}, "--steps: 0 is out of range; expected 2 to 10000"},
      {{"--steps", "1"}, "--steps: 1 makes 0 updates; expected at least 2"},
      {{"--steps", "4", "--steps", "5"}, "--steps: given 2 times ('4' and '5'); expected once"},
      {{"-W", "100"}, "--width: 100 is not a multiple of 16; nearest are 96 and 112"},
      {{"--size", "96x"}, "--size: '96x' is not a size; expected WIDTHxHEIGHT, such as 1024x768"},
      {{"--size", "0x96"},
       "--size: width: 0 is out of range; expected a multiple of 16 from 16 to 65536, less "
       "with some models"},
      {{"--size", "96x96", "-W", "96"},
       "--width: given together with --size; expected one of them"},
      {{"--cfg-scale", "nan"}, "--cfg-scale/--cfg-text-scale: 'nan' is not a finite number"},
      {{"--cfg-interval", "1,0"},
       "--cfg-interval: 1,0 is out of range; expected 0 <= LO < HI <= 1"},
      {{"--device", "mps"}, "--device: unknown value 'mps' (known: auto, cpu, cuda, cuda:N)"},
      {{"--task", "t2x"},
       "--task: unknown value 't2x' (did you mean 't2i'? known: auto, t2i, edit, understand, "
       "chat, image_edit, video_edit, t2v, i2v, x2t_image, x2t_video)"},
      {{"-p", "-", "-p", "-"}, "--prompt: - given twice; stdin is read once"},
      {{"--set", "seed"},
       "--set: 'seed' is not KEY=VALUE, such as stages.1.default_sampling_params.seed=7"},
      {{"-c", "/nonexistent/a.yaml"}, "--config: /nonexistent/a.yaml: no such file"},
      {{"--log-level", "loud"},
       "--log-level: unknown value 'loud' (known: quiet, error, warning, info, debug)"},
      {{"-v", "-q"}, "--verbose: given together with --quiet; expected one"},
      {{"-v", "--log-level", "quiet"}, "--log-level: given together with --verbose; expected one"},
      {{"-q", "--log-level", "loud"},
       "--log-level: unknown value 'loud' (known: quiet, error, warning, info, debug)"},
  };
  for (const auto& [flags, message] : cases) CHECK(refusal_of(flags) == message);
}

TEST_CASE("what is not there is told from a link to nowhere and from an address") {
  const test::Folder folder;
  const std::string link = folder.file("link");
  std::filesystem::create_symlink("nowhere", link);
  const std::string nowhere = link + ": is a link to nowhere, which is not there";
  CHECK(refusal_of({"-i", link}) == "--image: " + nowhere);
  CHECK(refusal_of({"-c", link}) == "--config: " + nowhere);
  const auto refused_model = [&](const std::string& model) {
    return refusal(Words{"generate", "-p", "x", "-o", folder.file("x.png"), "-m", model});
  };
  CHECK(refused_model(link) == "--model: " + nowhere);
  CHECK(refusal(Words{"inspect", link}) == nowhere);
  CHECK(refusal(Words{"compare", link, link}) == nowhere);
  const std::string address = "https://example.org/a";
  const std::string no_path = address + ": is an address; expected a path, nothing is downloaded";
  CHECK(refusal_of({"-i", address}) == "--image: " + no_path);
  CHECK(refused_model(address) == "--model: " + no_path);
  CHECK(refusal(Words{"batch", address + ".txt", "-o", folder.file("out")}) ==
        address + ".txt: is an address; expected a path, nothing is downloaded");
  CHECK(folder.names() == Words{"link"});
}

TEST_CASE("control characters in a message are shown, and cut nothing") {
  CHECK(refusal(Words{"inspect", "no\nsuch\x1b[2J.png"}) == "no\\x0Asuch\\x1B[2J.png: not found");
  CHECK(refusal(Words{"check", "a.png", "--max-abs", "a\nb"}) ==
        "check: --max-abs: 'a\\x0Ab' could not be read; expected a number");
  const std::string long_name(300, 'a');
  CHECK(refusal(Words{"inspect", long_name}) == long_name + ": File name too long");
  const test::Folder folder;
  CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("line\nbreak/a.png")}) ==
        "--output: " + folder.file("line\\x0Abreak/a.png") +
            ": no such folder: " + folder.file("line\\x0Abreak"));
}

TEST_CASE("bad prompts") {
  const test::Folder folder;
  CHECK(refusal(Words{"generate", "-o", folder.file("x.png")}) ==
        "--prompt: not given; expected a text (\"\" is one), or - for stdin");
  folder.write("a.png", "");  // an edit, and a question, say what is wanted
  for (const char* task : {"auto", "understand"}) {
    CHECK(refusal(Words{"generate", "--task", task, "-i", folder.file("a.png")}) ==
          "--prompt: not given; expected a text (\"\" is one), or - for stdin");
  }
  CHECK(refusal(Words{"generate", "-p", "caf\xE9"}) ==
        "--prompt: not valid UTF-8: byte 0xE9 at offset 3");
  test::Command command;
  command.arguments = {"generate", "-p", "-", "-o", folder.file("never.png")};
  command.input = std::string("a\0b\n", 4);
  CHECK(refusal(command) == "--prompt: stdin: a NUL character at offset 1");
  const std::string none = ": stdin holds no text (an empty one is --prompt \"\")";
  for (const char* input : {"", "\n"}) {
    command.input = input;
    CHECK(refusal(command) == "--prompt" + none);
  }
  command.before_exec = [] { close(STDIN_FILENO); };
  CHECK(refusal(command) == "--prompt" + none);
  command.arguments = {"generate", "-o", folder.file("never.png")};
  command.environment["DIPTYCH_PROMPT"] = "-";
  CHECK(refusal(command) == "DIPTYCH_PROMPT" + none);
}

TEST_CASE("bad outputs are refused before any work") {
  const test::Folder folder;
  const auto output = [&](const std::string& path) {
    return refusal(Words{"generate", "-p", "x", "-o", path});
  };
  std::string list;  // ".png, .jpg, .jpeg or .webp", as far as the build has them
  const auto written = written_extensions();
  for (std::size_t i = 0; i < written.size(); ++i) {
    const char* joint = i == 0 ? "" : i + 1 < written.size() ? ", " : " or ";
    list += joint + std::string(written[i]);
  }
  CHECK(output(folder.file("a.bmp")) ==
        "--output: " + folder.file("a.bmp") + ": unknown extension '.bmp'; expected " + list);
  CHECK(output(folder.file("a")) ==
        "--output: " + folder.file("a") + ": has no extension; expected " + list);
  CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.png"), "--quality", "80"}) ==
        "--quality: has no meaning for PNG, which loses nothing; expected a .jpg or .webp");
  CHECK(refusal(Words{"generate", "-p", "x", "-o", "-", "-b", "2"}) ==
        "--output -: takes one result, found 2 pictures");
  CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.png"), "--format", "bmp"})
            .starts_with("--format: unknown value 'bmp'"));
  if (facts_of(PictureFormat::webp).built_in) {
    CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.png"), "--format", "webp"}) ==
          "--output: " + folder.file("a.png") + ": is named as a PNG file; expected .webp");
    CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.webp"), "-W", "16384"}) ==
          "--width: found 16384, but a WebP file has sides of at most 16383");
  }
  CHECK(output("/dev/full") == "--output: /dev/full: is a device, expected a file name");
  CHECK(output(folder.file("no/a.png")) ==
        "--output: " + folder.file("no/a.png") + ": no such folder: " + folder.file("no"));
  folder.write("file", "");
  CHECK(output(folder.file("file/x/")) ==
        "--output: " + folder.file("file/x") + ": cannot be made in " + folder.file("file"));
  std::filesystem::remove(folder.file("file"));
  CHECK(output(folder.file("a%s.png")) ==
        "--output: 'a%s.png' is no pattern; expected one number such as %d or %03d (%% is a %)");
  CHECK(output(folder.file("a%d-%d.png")).find("is no pattern") != std::string::npos);
  CHECK(output("/proc/a.png").starts_with("--output: /proc/a.png: cannot be written"));
  CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.png"), "--trace",
                      folder.file("no/t.safetensors")}) ==
        "--trace: " + folder.file("no/t.safetensors") +
            ": cannot be written: No such file or directory");
  CHECK(refusal(Words{"generate", "-p", "x", "-o", folder.file("a.png"), "--noise",
                      folder.file("n.safetensors")}) ==
        "--noise: " + folder.file("n.safetensors") + ": no such file");
  CHECK(folder.names().empty());
}

TEST_CASE("a size that the model does not paint is named as it was given") {
  const test::Folder folder;
  test::Command command;
  const Words base = {"generate", "-m", test::kTinyCheckpoint, "-p", "x", "--device", "cpu",
                      "-q",       "-o", folder.file("a.png")};
  const std::string limit = "found 4096, expected a multiple of 16 up to 192 (nearest: 192)";
  const auto with = [&](const Words& flags) {
    command.arguments = base;
    command.arguments.insert(command.arguments.end(), flags.begin(), flags.end());
    return refusal(command);
  };
  CHECK(with({"--size", "4096x32"}) == "--size: width: " + limit);
  CHECK(with({"--size", "32x4096", "--check-config"}) == "--size: height: " + limit);
  CHECK(with({"-W", "4096"}) == "--width: " + limit);
  command.environment["DIPTYCH_SIZE"] = "4096x32";
  CHECK(with({}) == "DIPTYCH_SIZE: width: " + limit);
  command.environment = {{"DIPTYCH_WIDTH", "4096"}};
  CHECK(with({}) == "DIPTYCH_WIDTH: " + limit);
}

TEST_CASE("--check-config refuses what the run would refuse before it paints") {
  const test::Folder folder;
  const auto both = [&](const Words& flags, const std::string& input = "") {
    test::Command command;
    command.arguments = {"generate", "--device", "cpu", "-q", "--size", "32x32"};
    command.arguments.insert(command.arguments.end(), flags.begin(), flags.end());
    command.input = input;
    const std::string ran = refusal(command);
    command.arguments.emplace_back("--check-config");
    CHECK(refusal(command) == ran);
    if (flags[1] != "x") return ran;
    std::erase_if(command.arguments, [](const auto& each) { return each == "-p" || each == "x"; });
    CHECK(refusal(command) == ran);
    return ran;
  };
  const std::string output = folder.file("a.png");
  const std::string on_cpu =
      " layers: the run is on the CPU, where the weights are in host memory anyway; expected none "
      "or auto";
  CHECK(both({"-p", "x", "-o", output, "--offload", "layers"}) == "--offload" + on_cpu);
  CHECK(both({"-p", "x", "-o", output, "--set", "offload=layers"}) == "--set offload" + on_cpu);
  CHECK(both({"-p", "x", "-o", output, "--attention", "flash"}) ==
        "--attention: attention backend flash: needs a CUDA device, not cpu");
  CHECK(both({"-p", "x", "-o", "/proc/a.png"}) ==
        "--output: /proc/a.png: cannot be written: No such file or directory");
  CHECK(both({"-p", "x", "-o", output, "--noise", "none"}) == "--noise: none: no such file");
  CHECK(both({"-p", "x", "-o", output, "-i", "none"}) == "--image: none: no such file");
  CHECK(both({"-p", "x", "-o", output, "--think", "--temperature", "1e-300"}) ==
        "--temperature: found 1e-300, expected 0 (greedy) or at least 0.0001");
  std::string words;
  for (int i = 0; i < 10'000; ++i) words += "aZ%9 ";  // below what a pipe holds
  CHECK(both({"-m", test::kTinyCheckpoint, "-p", "-", "-o", output}, words)
            .find("tokens, expected at most 32767") != std::string::npos);
  CHECK(both({"-p", "-", "-o", output}).starts_with("--prompt: stdin holds no text"));
  CHECK(both({"-p", "x", "-o", output, "--cache-mode", "teacache", "--cache-calibration",
              folder.file("no.json")})
            .find("no.json: is not there") != std::string::npos);
  CHECK(folder.names().empty());
  folder.write("p.txt", "no");
  CHECK(
      both({"-p", "x", "-o", output, "-i", folder.file("p.txt")})
          .starts_with("--image: " + folder.file("p.txt") + ": not a picture, expected PNG, JPEG"));
}

TEST_CASE("--check-config refuses a checkpoint whose weights do not fit its configs") {
  const test::Folder folder;
  const std::filesystem::path model = folder.path() / "model";
  std::filesystem::copy(test::kTinyCheckpoint, model);
  const auto with = [&](const char* name, const std::string& from, const std::string& to) {
    const std::string old = read_text_file(model / name);
    std::string text = old;
    text.replace(from.empty() ? 0 : text.find(from), from.empty() ? text.size() : from.size(), to);
    folder.write(std::string("model/") + name, text);
    const Words command = {"generate", "-m", model.string(), "-p",    "x",  "--device",
                           "cpu",      "-q", "--size",       "32x32", "-o", folder.file("a.png")};
    const std::string ran = refusal(command);
    Words check = command;
    check.emplace_back("--check-config");
    CHECK(refusal(check) == ran);
    folder.write(std::string("model/") + name, old);
    return ran;
  };
  const std::string weights = (model / "ema.safetensors").string();
  CHECK(with("llm_config.json", "\"hidden_size\": 64", "\"hidden_size\": 128") ==
        weights +
            ": tensor \"language_model.model.embed_tokens.weight\" has shape [640, 64], "
            "expected [640, 128]");
  CHECK(with("llm_config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2")
            .starts_with(weights + ": 28 unexpected tensors that the model does not have: "));
  CHECK(with("llm_config.json", "", "{}") ==
        (model / "llm_config.json").string() + ": hidden_size: not given; expected a number");
  CHECK(with("vit_config.json", "", "{}") ==
        (model / "vit_config.json").string() + ": hidden_size: not given; expected a number");
  CHECK(folder.names() == Words{"model"});
}

TEST_CASE("a file that holds no start noise is named with its flag") {
  const test::Folder folder;
  folder.write("n.safetensors", "no");
  CHECK(refusal(Words{"generate", "-p", "x", "--size", "32x32", "--device", "cpu", "-q", "-o",
                      folder.file("a.png"), "--noise", folder.file("n.safetensors")}) ==
        "--noise: " + folder.file("n.safetensors") +
            ": holds 2 bytes, too short for a safetensors file");
}

TEST_CASE("bad models") {
  const test::Folder folder;
  const std::string bagel = DIPTYCH_SOURCE_DIR "/stage_configs/bagel.yaml";
  CHECK(refusal(Words{"generate", "-c", bagel, "-p", "x", "-o", folder.file("a.png")}) ==
        "--model: not given; expected the folder of a checkpoint, or --load-format dummy");
  const std::string missing = folder.file("missing");
  CHECK(refusal(Words{"generate", "-m", missing, "-p", "x", "-o", folder.file("a.png"), "-q"})
            .find(missing) != std::string::npos);
  CHECK(folder.names().empty());
}

TEST_CASE("a stage config with a slip names the place") {
  const test::Folder folder;
  folder.write("f.yaml", "stages:\n  - stage_id: 0\n    default_sampling_params:\n      sed: 1\n");
  CHECK(refusal(Words{"generate", "-c", folder.file("f.yaml"), "--check-config"})
            .starts_with(folder.file("f.yaml") +
                         ":4:7: stages.0.default_sampling_params: unknown key 'sed' (did you mean "
                         "'seed'? known: "));
  folder.write("f.yaml", "pipeline: beagle\nstages:\n  - stage_id: 0\n");
  CHECK(refusal(Words{"generate", "-c", folder.file("f.yaml"), "--check-config"})
            .find("'beagle' (known: bagel") != std::string::npos);
}

TEST_CASE("a variable gives way to a flag, and to a request that it does not concern") {
  const test::Folder folder;
  test::Command command;
  command.arguments = {"generate", "-p",     "x",     "-q", "--steps",
                       "2",        "--size", "32x32", "-o", folder.file("a.png"),
                       "--device", "cpu"};
  command.environment = {
      {"DIPTYCH_VERBOSE", "1"},          {"DIPTYCH_LOG_LEVEL", "debug"},
      {"DIPTYCH_TRACE_FILTER", "kv.*"},  {"DIPTYCH_THINK_OUTPUT", "/nonexistent/plan.txt"},
      {"DIPTYCH_MAX_THINK_TOKENS", "3"}, {"DIPTYCH_TOP_K", "3"},
      {"DIPTYCH_CACHE_REPORT", "1"}};
  const Outcome outcome = run(command);
  CHECK(outcome.err.empty());
  CHECK(outcome.code == 0);
  CHECK(folder.names() == Words{"a.png"});
}

TEST_CASE("a bad variable is named") {
  const test::Folder folder;
  test::Command command;
  command.arguments = {"generate", "--check-config"};
  command.environment["DIPTYCH_STEPS"] = "many";
  CHECK(refusal(command) == "DIPTYCH_STEPS: 'many' is not a whole number");
  const auto said = [&](const Words& arguments, const std::string& name, const std::string& value) {
    command.arguments = arguments;
    command.environment = {{name, value}};
    return refusal(command);
  };
  const Words generate = {"generate", "-p", "x", "-o", folder.file("never.png")};
  CHECK(said(generate, "DIPTYCH_IMAGE", "no.png") == "DIPTYCH_IMAGE: no.png: no such file");
  CHECK(said(generate, "DIPTYCH_CONFIG", "no.yaml") == "DIPTYCH_CONFIG: no.yaml: no such file");
  CHECK(said(generate, "DIPTYCH_TRACE", "no/x.safetensors") ==
        "DIPTYCH_TRACE: no/x.safetensors: cannot be written: No such file or directory");
  CHECK(said({"generate", "--check-config"}, "DIPTYCH_PROMPT", "\xE9") ==
        "DIPTYCH_PROMPT: not valid UTF-8: byte 0xE9 at offset 0");
  // Those that the parser reads.
  CHECK(said({"verify", "x"}, "DIPTYCH_DTYPE", "zz") ==
        "DIPTYCH_DTYPE: unknown value 'zz' (known: auto, float32, bfloat16)");
  CHECK(said({"verify", "x", "--dtype", "zy"}, "DIPTYCH_DTYPE", "zz").starts_with("--dtype: "));
  CHECK(said({"check", "a.png"}, "DIPTYCH_TOLERANCE", "999") ==
        "DIPTYCH_TOLERANCE: found 999, expected 0 to 255");
  CHECK(said({"check", "a.png"}, "DIPTYCH_MAX_ABS", "a") ==
        "check: DIPTYCH_MAX_ABS: 'a' could not be read; expected a number");
  CHECK(said({"version"}, "DIPTYCH_LOG_LEVEL", "loud").starts_with("DIPTYCH_LOG_LEVEL: unknown"));
  command.arguments = {"version"};
  command.environment = {{"DIPTYCH_VERBOSE", "1"}, {"DIPTYCH_QUIET", "1"}};
  CHECK(refusal(command) == "DIPTYCH_VERBOSE: given together with DIPTYCH_QUIET; expected one");
  command.arguments = {"generate", "--check-config"};
  command.environment = {{"DIFFUSION_ATTENTION_BACKEND", "SAGE_ATTN"}};
  CHECK(
      refusal(command).starts_with("DIFFUSION_ATTENTION_BACKEND: unknown attention backend "
                                   "'SAGE_ATTN' (known: auto, math, sdpa, flash, cudnn, hopper)"));
}

}  // namespace
}  // namespace diptych
