// What people try who know other programs: it works, or one line says what to do.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

using nlohmann::json;
using test::Folder;
using test::has;
using test::Outcome;
using test::run;
using test::run_in;
using test::Words;

std::string refusal(Words arguments) {
  return test::refusal_in_one_line(run(std::move(arguments)));
}

// The value of a field in --print-config, "" where there is no such line.
std::string printed(Words flags, const std::string& field) {
  flags.insert(flags.begin(), "generate");
  flags.emplace_back("--print-config");
  const Outcome outcome = run(std::move(flags));
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const std::size_t line = ("\n" + outcome.out).find("\n" + field + ": ");
  if (line == std::string::npos) return {};
  const std::size_t begin = line + field.size() + 2;
  return outcome.out.substr(begin, outcome.out.find_first_of(" \n", begin) - begin);
}

TEST_CASE("flags of other programs that mean the same are taken") {
  const std::string model = DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/checkpoint";
  const std::vector<std::pair<Words, std::pair<std::string, std::string>>> cases = {
      {{"--num-inference-steps", "9"}, {"steps", "9"}},
      {{"--sampling-steps=9"}, {"steps", "9"}},
      {{"--guidance-scale", "3.5"}, {"cfg_text_scale", "3.5"}},
      {{"--cfg", "3.5"}, {"cfg_text_scale", "3.5"}},
      {{"--image-guidance-scale", "1.5"}, {"cfg_img_scale", "1.5"}},
      {{"--n-images", "3"}, {"batch_count", "3"}},
      {{"--num-images", "3"}, {"batch_count", "3"}},
      {{"--negative", "blurry"}, {"negative_prompt", "blurry"}},
      {{"--max-new-tokens", "7"}, {"max_tokens", "7"}},
      {{"--temp", "0.5"}, {"temperature", "0.5"}},
      {{"--shift", "2.5"}, {"timestep_shift", "2.5"}},
      {{"--model-path", model}, {"model", model}},
      {{"--dtype", "bf16"}, {"dtype", "bfloat16"}},
      {{"--device", "gpu"}, {"device", "cuda"}},
      {{"--size", "512"}, {"width", "512"}},
      {{"--resolution", "512"}, {"height", "512"}},
      {{"--seed", "random"}, {"seed", "random"}},
      {{"-s", "-1"}, {"seed", "random"}},
  };
  for (const auto& [flags, expected] : cases) {
    CAPTURE(flags.front());
    CHECK(printed(flags, expected.first) == expected.second);
  }
  const Outcome help = run(Words{"generate", "--help"});
  CHECK(help.out.find("--num-inference-steps") != std::string::npos);
  CHECK(refusal(Words{"generate", "-p", "x", "--steps", "4", "--num-steps", "5"}) ==
        "diptych: --steps: given 2 times ('4' and '5'); expected once\n");
}

TEST_CASE("flags of other programs that are not there say what to do") {
  const std::string videos =
      "videos are made by lance (--task video_edit or t2v or i2v), wan (--task t2v or i2v), "
      "cosmos (--task i2v or v2v)";
  const std::string bagel = DIPTYCH_SOURCE_DIR "/stage_configs/demo/checkpoint";
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--list-devices"}, "unknown flag '--list-devices': `diptych devices` lists them"},
      {{"generate", "-p", "x", "--threads", "8"},
       "generate: unknown flag '--threads': the variable OMP_NUM_THREADS sets the number of CPU "
       "threads"},
      {{"generate", "-t8", "-p", "x"},
       "generate: unknown flag '-t8': the variable OMP_NUM_THREADS sets the number of CPU threads"},
      {{"generate", "-y", "-p", "x"},
       "generate: unknown flag '-y': not needed: existing output files are replaced"},
      {{"generate", "-p", "x", "--fp16"},
       "generate: unknown flag '--fp16': float16 is not supported; --dtype bfloat16 takes as much "
       "memory"},
      {{"generate", "-p", "x", "--fps", "24"}, "--fps: the family bagel has no use for it"},
      {{"generate", "-p", "x", "--frames=81"},
       "--video-frames: the family bagel has no use for it"},
      {{"generate", "-p", "x", "--duration", "5"},
       "generate: unknown flag '--duration': use --video-frames N; they last N seconds divided by "
       "--fps"},
      {{"generate", "-m", bagel, "-p", "x", "--video", "a.mp4"},
       "--video: no task of bagel reads videos"},
      {{"generate", "-m", bagel, "-p", "x", "--task", "t2v"}, "--task: 't2v': " + videos},
      {{"generate", "-m", bagel, "-p", "x", "-o", "a.mp4"}, "--output: a.mp4: " + videos},
      {{"-m", "model", "-p", "x"},
       "unknown flag '-m': it stands behind the verb: diptych generate -m"},
      {{"--steps", "4", "generate", "-p", "x"},
       "generate: unknown flag '--steps': it stands behind the verb: diptych generate --steps"},
      {{"generate", "-n", "2", "-p", "x"},
       "--negative-prompt: found 2, expected what to lead away from; -b 2 makes 2 pictures, and "
       "DIPTYCH_NEGATIVE_PROMPT=2 is the negative prompt \"2\""},
      {{"generate", "-p", "x", "-m", "no-org/no-model"},
       "--model: no-org/no-model: no such folder, and not in the Hugging Face cache (HF_HOME and "
       "HOME are not set); to get it: hf download no-org/no-model"},
  };
  for (const auto& [words, message] : cases) CHECK(refusal(words) == "diptych: " + message + "\n");
  for (const char* flag : {"--init-img", "--strength", "--sampling-method", "--scheduler",
                           "--lora-path", "--cpu", "--flash-attn", "--offload-to-cpu"}) {
    const std::string line = refusal(Words{"generate", "-p", "x", flag, "1"});
    CAPTURE(line);
    CHECK(line.find(std::string("unknown flag '") + flag + "': ") != std::string::npos);
    CHECK(line.find("--help") == std::string::npos);
  }
  test::Command alias;
  alias.arguments = {"generate", "--print-config"};
  alias.environment["DIPTYCH_NUM_INFERENCE_STEPS"] = "9";
  CHECK(run(alias).err ==
        "[WARN ] DIPTYCH_NUM_INFERENCE_STEPS has no effect; did you mean DIPTYCH_STEPS?\n");
  test::Command really;
  really.arguments = {"generate", "-p", "x", "--print-config"};
  really.environment["DIPTYCH_NEGATIVE_PROMPT"] = "2";
  CHECK(run(really).out.find("\nnegative_prompt: 2 ") != std::string::npos);
}

TEST_CASE("a misspelt flag is not hidden by what is missing or cannot be read") {
  const test::Folder folder;
  folder.write("l.txt", "a\n");
  CHECK(refusal(Words{"batch", folder.file("l.txt"), "--output-dri", "x"})
            .find("unknown flag '--output-dri' (did you mean --output-dir?") != std::string::npos);
  CHECK(refusal(Words{"compare", "a.png", "--min-sim", "1"})
            .find("unknown flag '--min-sim' (did you mean --min-ssim?") != std::string::npos);
  CHECK(refusal(Words{"inspect", "a.png", "-m", "x", "--repaly"})
            .find("unknown flag '--repaly' (did you mean --replay?") != std::string::npos);
  CHECK(refusal(Words{"batch", folder.file("l.txt")}) ==
        "diptych: batch: --output-dir: not given; expected DIR\n");
}

TEST_CASE("a flag without a value takes true and false, and nothing else") {
  for (const char* flag : {"--quiet=5", "--verbose=loud"}) {
    const std::string name(flag, std::string_view(flag).find('='));
    CHECK(refusal(Words{"version", flag}) == "diptych: version: " + name + ": '" +
                                                 std::string(flag).substr(name.size() + 1) +
                                                 "' could not be read; expected true or false\n");
  }
  CHECK(refusal(Words{"inspect", "a.png", "--json=2"}) ==
        "diptych: inspect: --json: '2' could not be read; expected true or false\n");
  CHECK(run(Words{"version", "--quiet=true"}).code == 0);
  CHECK(run(Words{"version", "--quiet=0", "-v"}).code == 0);
}

TEST_CASE("a prompt may stand in a file") {
  const test::Folder folder;
  folder.write("p.txt", "caf\xE9\n");
  folder.write("empty.txt", "\n");
  const auto said = [&](const Words& flags) {
    Words words = {"generate", "-o", folder.file("a.png")};
    words.insert(words.end(), flags.begin(), flags.end());
    return refusal(words);
  };
  const std::string file = folder.file("p.txt"), none = folder.file("none.txt");
  for (const Words& flags :
       {Words{"-p", "@" + file}, Words{"-f", file}, Words{"--prompt-file", file}})
    CHECK(said(flags) == std::string("diptych: --prompt") + (flags[0] == "-p" ? "" : "-file") +
                             ": " + file + ": not valid UTF-8: byte 0xE9 at offset 3\n");
  CHECK(said({"-f", none}) == "diptych: --prompt-file: '" + none + "': no such file\n");
  CHECK(said({"-p", "@" + none}) == "diptych: --prompt: '" + none + "': no such file\n");
  CHECK(said({"-p", "@none"}) ==
        "diptych: --prompt: 'none': no such file; @@ begins a prompt that begins with @\n");
  CHECK(test::run({"generate", "-f", none, "--print-config"}).code == 0);  // reads no prompt
  test::Command of_stdin;
  of_stdin.arguments = {"generate", "-f", "-", "-o", folder.file("a.png")};
  of_stdin.input = "\n";
  CHECK(run(of_stdin).err ==
        "diptych: --prompt-file: stdin holds no text (an empty one is --prompt \"\")\n");
  CHECK(said({"-f", folder.file("empty.txt")}) ==
        "diptych: --prompt-file: " + folder.file("empty.txt") +
            " holds no text (an empty one is --prompt \"\")\n");
}

TEST_CASE("help is a verb") {
  const Outcome all = run(Words{"help"});
  CHECK(all.code == 0);
  CHECK(all.err.empty());
  CHECK(all.out == run(Words{"--help"}).out);
  for (const char* verb : {"generate", "inspect", "help"}) {
    CAPTURE(verb);
    CHECK(run(Words{"help", verb}).out == run(Words{verb, "--help"}).out);
  }
  CHECK(refusal(Words{"help", "genrate"})
            .starts_with("diptych: help: unknown verb 'genrate' (did you mean 'generate'? "));
  CHECK(run(Words{"-V"}).out == run(Words{"--version"}).out);
}

// Keys are a promise to programs: a change of them is made on purpose.
Words keys(const json& object) {
  Words all;
  for (const auto& [key, value] : object.items()) all.push_back(key);
  return all;
}

TEST_CASE("version and devices as JSON") {
  const json version = json::parse(run(Words{"version", "--json"}).out);
  CHECK(keys(version) == Words{"cuda", "cuda_architectures", "cudnn_attention", "diptych", "libav",
                               "libjpeg", "libtorch", "libwebp", "stb_image", "utf8proc"});
  CHECK("diptych " + version["diptych"].get<std::string>() + "\n" == run(Words{"--version"}).out);
  CHECK(version["cuda"].is_boolean());
  CHECK(version["cuda"].get<bool>() != version["cuda_architectures"].get<std::string>().empty());
  const json report = json::parse(run(Words{"devices", "--json"}).out);
  CHECK(keys(report) == Words{"devices", "no_cuda"});
  const json& cpu = report["devices"][0];
  CHECK(keys(cpu) == Words{"attention", "device", "name"});
  CHECK(cpu["device"] == "cpu");
  CHECK(keys(cpu["attention"][0]) == Words{"name", "reason", "usable"});
  CHECK(report["no_cuda"].is_string() == (report["devices"].size() == 1));
  for (const json& device : report["devices"]) {
    for (const json& backend : device["attention"])
      CHECK(backend["reason"].is_null() == backend["usable"].get<bool>());
    if (device == cpu) continue;
    CHECK(keys(device) == Words{"attention", "compute_capability", "device", "free_bytes",
                                "multiprocessors", "name", "total_bytes"});
  }
}

TEST_CASE("the negative prompt is read from a file by its flag and by its variable") {
  const Folder folder;
  folder.write("dull.txt", "dull\n");
  const auto shown = [&](const std::string& flags, const std::string& variable) {
    return run_in(folder.path(), "generate -p x --print-config" + flags,
                  {{"DIPTYCH_NEGATIVE_PROMPT", variable}});
  };
  CHECK(has(shown(" -n @dull.txt", "").out, "negative_prompt: dull "));
  CHECK(has(shown("", "@dull.txt").out, "negative_prompt: dull "));
  CHECK(has(shown(" -n blur", "@absent.txt").out, "negative_prompt: blur "));  // the flag counts
  const Outcome absent = shown("", "@absent.txt");
  CHECK(absent.code == 2);
  CHECK(has(absent.err, "'absent.txt': no such file"));
}

TEST_CASE("a folder for the output is not made for a request that is refused") {
  const test::Folder folder;
  const std::string output = folder.file("new/");
  CHECK(
      refusal(Words{"generate", "-p", "x", "-o", output, "-m", folder.file("none")}).find("none") !=
      std::string::npos);
  const Outcome checked = run(Words{"generate", "-c", test::kTinyConfig, "-p", "x", "-o", output,
                                    "--device", "cpu", "--check-config"});
  CHECK(checked.code == 0);
  CHECK(folder.names().empty());
}

}  // namespace
}  // namespace diptych
