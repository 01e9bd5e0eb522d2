// The demo: what runs without -c and -m. Every other test names the model it runs.
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/text_file.h"
#include "lib/media/png.h"
#include "tests/cli/process.h"
#include "tests/cli/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::run;
using test::Words;

constexpr int kSide = 192;  // pixels, without --size
constexpr const char* kNotice = "no -c or -m given: the demo of stage_configs ";
constexpr const char* kClipNotice = "no -c or -m given: the demo of stage_configs knows clips";

TEST_CASE("without -c and -m the demo paints, says so with -v, and is found again by --replay") {
  const test::Folder folder;
  const std::string file = folder.file("a.png"), again = folder.file("again.png");
  const Outcome outcome = run(Words{"generate", "-p", "a red circle on a gray background", "-o",
                                    file, "--steps", "3", "--device", "cpu", "-v"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.find(kNotice) != std::string::npos);
  const Image image = read_png(file);
  CHECK(image.rgb.size(0) == kSide);
  CHECK(image.rgb.size(1) == kSide);
  CHECK(run(Words{"inspect", file, "--replay", "-q", "-o", again}).code == 0);
  CHECK(read_text_file(again) == read_text_file(file));
}

TEST_CASE("the demo's drafter leaves plans, pictures and answers as they are") {
  const test::Folder folder;
  const Words drafter = {"--draft-model", DIPTYCH_SOURCE_DIR "/stage_configs/demo/drafter"};
  const auto output_of = [&](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome;
  };
  const auto paint = [&](const std::string& name, const Words& more) {
    const std::string picture = folder.file(name + ".png"), plan = folder.file(name + ".txt");
    return output_of({"generate", "-p", "a large red circle left of a small blue square", "--think",
                      "--think-output", plan, "-o", picture, "--steps", "3", "--device", "cpu"},
                     more)
        .err;
  };
  CHECK(paint("drafted", drafter).find(" tokens a verification of 8, accepted") !=
        std::string::npos);
  CHECK(paint("alone", {}).find("verification") == std::string::npos);
  const std::string plan = read_text_file(folder.file("drafted.txt"));
  CHECK(plan.find("circle") != std::string::npos);
  CHECK(read_text_file(folder.file("alone.txt")) == plan);
  CHECK(read_png(folder.file("drafted.png")).rgb.equal(read_png(folder.file("alone.png")).rgb));
  CHECK(run(Words{"inspect", folder.file("drafted.png"), "--replay", "-q"}).code == 0);
  const Words ask = {"generate",
                     "--task",
                     "understand",
                     "-i",
                     folder.file("alone.png"),
                     "-p",
                     "describe the picture",
                     "--device",
                     "cpu"};
  const Outcome answer = output_of(ask, drafter);
  CHECK(answer.out == output_of(ask, {}).out);
  CHECK(answer.err.find("verification of 8") != std::string::npos);
}

const fs::path kDemo = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs/demo/checkpoint";

// All of the demo's checkpoint but its config.json.
void link_demo_without_config(const test::Folder& folder) {
  for (const auto& entry : fs::directory_iterator(kDemo)) {
    const fs::path name = entry.path().filename();
    if (name != "config.json") fs::create_symlink(entry.path(), folder.path() / name);
  }
}

TEST_CASE("a checkpoint of other sizes without its config.json is told that it is missing") {
  const test::Folder folder;
  link_demo_without_config(folder);
  const Outcome outcome = run(Words{"generate", "-m", folder.path().string(), "-p", "x", "--device",
                                    "cpu", "--size", "32x32", "-q"});
  CHECK(outcome.code == 2);
  CHECK(
      outcome.err.find("\"vit_pos_embed.pos_embed\" has shape [361, 192], expected [4900, 192]") !=
      std::string::npos);
  CHECK(outcome.err.ends_with("; " + folder.file("config.json") +
                              " is missing, which may say other sizes than the released ones\n"));
}

TEST_CASE("a config.json of another autoencoder is told of as that") {
  const test::Folder folder;
  link_demo_without_config(folder);
  std::string config = read_text_file(kDemo / "config.json");
  const std::string channels = "\"z_channels\": 16";
  REQUIRE(config.find(channels) != std::string::npos);
  config.replace(config.find(channels), channels.size(), "\"z_channels\": 8");
  std::ofstream(folder.file("config.json")) << config;
  const Outcome outcome =
      run(Words{"generate", "-m", folder.path().string(), "-p", "x", "--device", "cpu", "-q"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err == "diptych: " + folder.path().string() +
                           ": the autoencoder has 16 channels at 1/8, config.json says 8 at 1/8\n");
}

// The model that would run, of the table of --print-config.
std::string model_of(const Words& words) {
  Words all = {"generate", "--print-config"};
  all.insert(all.end(), words.begin(), words.end());
  const Outcome outcome = run(all);
  const std::size_t at = outcome.out.find("\nmodel: ") + 8;
  return outcome.out.substr(at, outcome.out.find(' ', at) - at);
}

TEST_CASE("what is asked for chooses between the demo of pictures and that of clips") {
  const std::string demos = DIPTYCH_SOURCE_DIR "/stage_configs/demo/";
  CHECK(model_of({}) == demos + "checkpoint");
  CHECK(model_of({"-p", "a star", "-o", "a.png"}) == demos + "checkpoint");
  CHECK(model_of({"--task", "t2v"}) == demos + "clips");
  CHECK(model_of({"-p", "a star", "-o", "a.mp4"}) == demos + "clips");
  CHECK(model_of({"--video", "a.mp4", "-p", "what moves?"}) == demos + "clips");
  CHECK(model_of({"--noise-source", "cpu"}) == demos + "clips");
  const Outcome slip = run(Words{"generate", "--task", "t2vv", "-p", "a star"});
  CHECK(slip.code == 2);
  CHECK(slip.err ==
        "diptych: --task: unknown value 't2vv' (did you mean 't2v'? known: auto, t2i, edit, "
        "understand, chat, image_edit, video_edit, t2v, i2v, x2t_image, x2t_video)\n");
  const Outcome lora = run(Words{"generate", "-p", "a star", "--lora", "a.safetensors"});
  CHECK(lora.code == 2);
  CHECK(lora.err ==
        "diptych: --lora: is of wan, which has no demo; expected -c or -m, too, or --load-format "
        "dummy\n");
  const Outcome both =
      run(Words{"generate", "--video", "a.mp4", "-i", "a.png", "-p", "make it blue"});
  CHECK(both.code == 2);
  CHECK(both.err == "diptych: --video: no task of lance reads 1 picture and 1 video\n");
  const Outcome two =
      run(Words{"generate", "-i", "a.png", "-i", "b.png", "-p", "go", "-o", "a.mp4"});
  CHECK(two.code == 2);
  CHECK(two.err == "diptych: --image: no task of lance that makes videos reads 2 pictures\n");
}

TEST_CASE("without -c and -m the demo of clips makes a clip, and is found again by --replay") {
  const test::Folder folder;
  const std::string file = folder.file("a.gif"), again = folder.file("again.gif");
  const Outcome outcome =
      run(Words{"generate", "--task", "t2v", "-p", "a red circle moves up", "--video-frames", "5",
                "-o", file, "--steps", "2", "--device", "cpu", "-v"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.find(kClipNotice) != std::string::npos);
  CHECK(run(Words{"inspect", file, "--replay", "-q", "-o", again}).code == 0);
  CHECK(read_text_file(again) == read_text_file(file));
}

TEST_CASE("nothing else is written into a folder of frames") {
  const test::Folder folder;
  const std::string frames = folder.file("a.frames"), sheet = frames + "/sheet.png";
  std::filesystem::create_directory(frames);
  const Outcome outcome = run(Words{"generate", "--task", "t2v", "-p", "a red circle moves up",
                                    "-o", frames, "--contact-sheet", sheet, "--device", "cpu"});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.ends_with("diptych: --contact-sheet: " + sheet + ": lies in " + frames +
                              ", which is replaced; expected another place\n"));
}

TEST_CASE("batch says that it is the demo which runs") {
  const test::Folder folder;
  folder.write("p.txt", "a blue star\n");
  const Outcome outcome = run(Words{"batch", folder.file("p.txt"), "-o", folder.file("out"),
                                    "--size", "32x32", "--steps", "2", "--device", "cpu", "-v"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.find(kNotice) != std::string::npos);
}

TEST_CASE("calibrate leaves no file in the demo") {
  const Outcome outcome = run(Words{"calibrate", "--device", "cpu"});
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err == "diptych: --output: not given; expected a file, as the demo keeps none\n");
}

TEST_CASE("--print-config names the demo's file") {
  const Outcome outcome = run(Words{"generate", "--print-config"});
  CHECK(outcome.code == 0);
  const std::size_t at = outcome.out.find("\nwidth: " + std::to_string(kSide) + " ");
  REQUIRE(at != std::string::npos);
  const std::string line = outcome.out.substr(at + 1, outcome.out.find('\n', at + 1) - at - 1);
  CHECK(line.find("/stage_configs/demo/demo.yaml:") != std::string::npos);
}

TEST_CASE("an installed binary finds the demo in share/diptych") {
  const test::Folder folder;
  const fs::path demo = folder.path() / "share/diptych/stage_configs/demo";
  fs::create_directories(folder.path() / "bin");
  fs::create_directories(demo);
  fs::copy_file(DIPTYCH_SOURCE_DIR "/stage_configs/demo/demo.yaml", demo / "demo.yaml");
  test::Command command;
  command.binary = folder.file("bin/diptych");
  fs::copy_file(DIPTYCH_BINARY, command.binary);
  fs::create_directories(folder.path() / "libexec");
  fs::copy_file(DIPTYCH_PROGRAM, folder.path() / "libexec/diptych");
  command.environment["LIBTORCH_ROOT"] = DIPTYCH_LIBTORCH;
  command.arguments = {"generate", "--print-config"};
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("\nmodel: " + (demo / "checkpoint").string() + " ") != std::string::npos);
}

}  // namespace
}  // namespace diptych
