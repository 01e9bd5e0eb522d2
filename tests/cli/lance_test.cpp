// Lance as a user runs it, on random weights with the widths of the recorded checkpoint: a clip of
// each task that makes one, what reads it, and what a list and a trace are good for.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/clip_formats.h"
#include "lib/base/text_file.h"
#include "tests/cli/lance_folder.h"
#include "tests/cli/words.h"
#include "tests/support/skip.h"

namespace {

namespace fs = std::filesystem;
using diptych::test::Outcome;
using diptych::test::Words;

// Every stage has a name, begins once and ends once.
void check_stages(const std::string& err) {
  std::map<std::string, int> begun, ended;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{\"stage\"")) continue;
    const nlohmann::json record = nlohmann::json::parse(line);
    const bool last = record["progress"] == "end";
    if (last) ++ended[record["stage"]];
    if (!last && record["done"] == 0) ++begun[record["stage"]];
  }
  CHECK(!ended.contains(""));
  CHECK(ended.contains("encode"));
  CHECK(begun == ended);
  for (const auto& [stage, count] : ended) CHECK_MESSAGE(count == 1, stage);
}

// A folder laid out as the released checkpoint, without weights, and what is made there.
class Lance {
 public:
  Lance() { diptych::test::link_lance(model()); }
  fs::path model() const { return folder_.path() / "model"; }
  std::string file(const std::string& name) const { return folder_.file(name); }
  Outcome run(const std::string& verb, const Words& arguments) const {
    const Words common = {verb,       "-m",  model().string(), "--load-format", "dummy",
                          "--device", "cpu", "--progress",     "jsonl"};
    return diptych::test::run(diptych::test::with(common, arguments));
  }
  // Of two updates. Returns the file, which is there.
  std::string made(const std::string& name, const Words& arguments) const {
    const Outcome outcome =
        run("generate", diptych::test::with(arguments, {"--steps", "2", "-o", file(name)}));
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    REQUIRE(fs::exists(file(name)));
    check_stages(outcome.err);
    return file(name);
  }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }

 private:
  diptych::test::Folder folder_;
};

// What ffprobe says of a clip's stream; null where it is not there.
nlohmann::json ffprobe(const std::string& file) {
  diptych::test::Command command;
  command.binary = "/usr/bin/env";
  command.arguments = {"ffprobe",       "-v",  "error", "-count_frames",
                       "-show_streams", "-of", "json",  file};
  const Outcome outcome = diptych::test::run(command);
  if (outcome.code == 127) return nullptr;
  return nlohmann::json::parse(outcome.out)["streams"].at(0);
}

void check_clip(const std::string& file, const char* codec, int width, int height, int frames) {
  const nlohmann::json stream = ffprobe(file);
  CHECK(stream["codec_name"] == codec);
  CHECK(stream["width"] == width);
  CHECK(stream["height"] == height);
  CHECK(stream["nb_read_frames"] == std::to_string(frames));
}

const Words kSmallClip = {"--task",         "t2v", "-p", "a boat", "--size", "64x48",
                          "--video-frames", "5"};

TEST_SUITE("needs libav") {
  TEST_CASE("an answer of Lance is the same with a drafter, whatever that drafts") {
    if (!diptych::facts_of(diptych::ClipFormat::mp4).built_in)
      return diptych::test::skip("this build has no libav");
    const std::string source = DIPTYCH_SOURCE_DIR, demo = source + "/stage_configs/demo";
    if (!diptych::facts_of(diptych::ClipFormat::webp).built_in)
      return diptych::test::skip("this build has no libwebp");
    std::string config = diptych::read_text_file(demo + "/drafter/config.json");
    const auto set = [&](const std::string& found, const std::string& value) {
      REQUIRE(config.find(found) != std::string::npos);
      config.replace(config.find(found), found.size(), value);
    };
    set(R"("hidden_size": 192)", R"("hidden_size": 160)");
    set(R"("num_target_layers": 6)", R"("num_target_layers": 5)");
    set(R"("mask_token_id": 831)", R"("mask_token_id": 703)");
    const diptych::test::Folder drafter;
    drafter.write("config.json", config);
    const std::vector<std::string> ask = {"generate",
                                          "-m",
                                          demo + "/clips",
                                          "--load-format",
                                          "dummy",
                                          "--task",
                                          "x2t_video",
                                          "--video",
                                          source + "/docs/clip.webp",
                                          "-p",
                                          "what moves?",
                                          "--max-tokens",
                                          "12",
                                          "--device",
                                          "cpu"};
    std::vector<std::string> drafted = ask;
    drafted.insert(drafted.end(), {"--draft-model", drafter.path().string()});
    const Outcome alone = diptych::test::run(ask), together = diptych::test::run(drafted);
    CAPTURE(together.err);
    REQUIRE(together.code == 0);
    CHECK(alone.out.size() > 1);
    CHECK(together.out == alone.out);
    CHECK(together.err.find(" tokens a verification of 8") != std::string::npos);
  }

  TEST_CASE("Lance: a clip of each task, as ffprobe sees it; answers about them; a replay") {
    if (!diptych::facts_of(diptych::ClipFormat::mp4).built_in)
      return diptych::test::skip("this build has no libav");
    const Lance lance;
    const std::string boat = lance.made("boat.mp4", kSmallClip);
    if (ffprobe(boat).is_null()) return diptych::test::skip("ffprobe is not here");
    check_clip(boat, "h264", 64, 48, 5);
    CHECK(ffprobe(boat)["r_frame_rate"] == "12/1");
    const Words small = {"--resolution", "video_192p"};
    const std::string cup = lance.made("cup.png", {"-p", "a cup", "--size", "64x64"});
    const std::string moved = lance.made(
        "moved.webm", diptych::test::with(small, {"--task", "i2v", "-i", cup, "-p", "it turns",
                                                  "--video-frames", "5", "--fps", "24"}));
    const nlohmann::json webm = ffprobe(moved);
    CHECK(webm["codec_name"] == "vp9");
    CHECK(webm["r_frame_rate"] == "24/1");
    CHECK(webm["nb_read_frames"] == "5");
    CHECK(webm["width"] == 256);  // the bucket of 64x64, and below that of 64x48
    CHECK(webm["height"] == 256);
    const std::string red =
        lance.made("red.mp4", diptych::test::with(small, {"--video", boat, "-p", "make it red"}));
    check_clip(red, "h264", 304, 224, 5);
    // Of a clip that lasts longer than the official frames do all is taken, and it gets faster.
    const std::string slow = lance.made("slow.mp4", {"--task", "t2v", "-p", "a boat", "--size",
                                                     "64x48", "--video-frames", "9", "--fps", "1"});
    const Outcome faster = lance.run(
        "generate", diptych::test::with(small, {"--video", slow, "-p", "make it red", "-o",
                                                lance.file("fast.mp4"), "--check-config"}));
    CHECK(faster.err.find("slow.mp4: 9.0 s of video become 5.8 s: 69 frames are taken") !=
          std::string::npos);
    const Outcome huge =
        lance.run("generate", {"--task", "t2v", "-p", "a boat", "--size", "16384", "--video-frames",
                               "121", "-o", lance.file("x.mp4")});
    CHECK(huge.code == 2);
    CHECK(huge.err ==
          "diptych: --size 16384x16384: makes 31 x 1024 x 1024 rows of latents, expected at most "
          "4194304 of them\n");
    for (const Words& asked :
         {Words{"--task", "x2t_video", "--video", red}, Words{"--task", "x2t_image", "-i", cup}}) {
      const Outcome answer = lance.run(
          "generate", diptych::test::with(asked, {"-p", "what is it?", "--max-tokens", "3"}));
      CAPTURE(answer.err);
      CHECK(answer.code == 0);
      CHECK(!answer.out.empty());
      const std::string kept = lance.file("answer.json");
      const Outcome recorded = lance.run(
          "generate",
          diptych::test::with(asked, {"-p", "what is it?", "--max-tokens", "3", "-o", kept}));
      CAPTURE(recorded.err);
      REQUIRE(recorded.code == 0);
      const auto json = nlohmann::json::parse(diptych::read_text_file(kept));
      CHECK(json["text"].get<std::string>() + "\n" == answer.out);
      const Outcome same = diptych::test::run(
          {"inspect", kept, "--replay", "-m", lance.model().string(), asked[2], asked[3]});
      CAPTURE(same.err);
      CHECK(same.code == 0);
      CHECK(same.out.find(": the same text, ") != std::string::npos);
    }
    const Outcome again = diptych::test::run(
        {"inspect", boat, "--replay", "-m", lance.model().string(), "--device", "cpu"});
    CAPTURE(again.err);
    CHECK(again.code == 0);
    CHECK(again.out.find("identical") != std::string::npos);
  }
}

TEST_CASE("Lance: clips of a list, alone and together, have the same frames") {
  const Lance lance;
  lance.write("list.txt", "a boat\na tree\n");
  Words arguments = kSmallClip;
  arguments.erase(arguments.begin() + 2, arguments.begin() + 4);  // the prompt
  arguments =
      diptych::test::with({lance.file("list.txt"), "--steps", "2", "--format", "png"}, arguments);
  for (const char* size : {"1", "2"}) {
    const Outcome outcome = lance.run(
        "batch", diptych::test::with(arguments, {"-o", lance.file(size), "--batch-size", size}));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
  }
  const std::string alone = lance.made("boat.frames", kSmallClip);
  for (const char* size : {"1", "2"}) {
    const Outcome compared = diptych::test::run(
        {"compare", alone, lance.file(std::string(size) + "/0000.frames"), "--max-abs", "1"});
    CAPTURE(compared.out);
    CHECK(compared.code == 0);
  }
  const Outcome pictures = lance.run("batch", {lance.file("list.txt"), "-o", lance.file("pictures"),
                                               "--size", "64", "--steps", "2"});
  CAPTURE(pictures.err);
  CHECK(pictures.code == 0);
  CHECK(fs::exists(lance.file("pictures/0001.png")));
}

TEST_CASE("Lance: two settings of clips, frame by frame") {
  const Lance lance;
  lance.write("list.txt", "a boat\n");
  const Outcome made = lance.run("compare", {"--prompts",
                                             lance.file("list.txt"),
                                             "-o",
                                             lance.file("ab"),
                                             "--task",
                                             "t2v",
                                             "--size",
                                             "64x48",
                                             "--video-frames",
                                             "5",
                                             "--steps",
                                             "2",
                                             "--format",
                                             "png",
                                             "--warmup",
                                             "0",
                                             "--a",
                                             "--cfg-mode sequential",
                                             "--b",
                                             "--cfg-mode batched",
                                             "--min-ssim",
                                             "0.99",
                                             "--json"});
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  const auto report = nlohmann::json::parse(made.out);
  CHECK(report["pairs"][0]["name"] == "0000.frames");
  CHECK(report["pairs"][0]["frames"] == 5);
  CHECK(report["total"]["ssim"]["mean"] > 0.99);
  CHECK(fs::exists(lance.file("ab/side-by-side/0000.frames/frame_00004.png")));
  // A clip that cannot be read.
  lance.write("ab/b/0000.frames/frame_00003.png", "no picture");
  const Outcome broken = diptych::test::run({"compare", lance.file("ab/a"), lance.file("ab/b")});
  CHECK(broken.code == 2);
  CHECK(broken.out.find("0 compared, 0 missing, 1 not comparable") != std::string::npos);
}

TEST_CASE("Lance: a bundled vision tower wins over its own file, and that is logged") {
  const fs::path model = fs::path(DIPTYCH_SOURCE_DIR) / "../shared/goldens/lance/checkpoint";
  if (!fs::exists(model)) return diptych::test::skip("the full goldens are not here");
  const diptych::test::Folder folder;
  const Outcome video =
      diptych::test::run({"generate", "-m", model.string(), "--device", "cpu", "--task", "t2v",
                          "-p", "a boat", "-o", folder.file("a.frames"), "--check-config"});
  CAPTURE(video.err);
  CHECK(video.code == 0);
  CHECK(video.err.find("Lance_3B_Video/model.safetensors: its vit_model.* replaces ") !=
        std::string::npos);
}

TEST_CASE("Lance: inspect tells all that a folder lacks") {
  const diptych::test::Folder folder;
  const fs::path model = folder.path() / "clips";
  fs::copy(fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs/demo/clips", model,
           fs::copy_options::recursive);
  CHECK(
      diptych::test::run({"inspect", model.string()}).out.starts_with("lance layout: complete\n"));
  const std::string file = (model / "Lance_3B_Video/llm_config.json").string();
  nlohmann::json config = nlohmann::json::parse(diptych::read_text_file(file));
  config["num_hidden_layers"] = 6;
  config["vocab_size"] = 705;
  folder.write("clips/Lance_3B_Video/llm_config.json", config.dump());
  fs::remove(model / "Qwen2.5-VL-ViT/vit.safetensors");
  const Outcome seen = diptych::test::run({"inspect", model.string()});
  CAPTURE(seen.out);
  CHECK(seen.code == 1);
  // A layer's own tensors; those of its generation expert may be missing.
  CHECK(seen.out.starts_with("lance layout: 17 problems\n"));
  const std::string of_model = "  Lance_3B_Video/model.safetensors: ";
  CHECK(seen.out.find(of_model + "missing: language_model.model.layers.5.") != std::string::npos);
  CHECK(seen.out.find(of_model +
                      "wrong shape: language_model.lm_head.weight: found [704, 160], expected "
                      "[705, 160]\n") != std::string::npos);
  CHECK(seen.out.find("vit.safetensors not found") != std::string::npos);
}

TEST_CASE("Lance: a token that the model has no embedding of is refused") {
  const Lance lance;
  const Outcome seen = diptych::test::run({"inspect", lance.model().string()});
  CAPTURE(seen.out);
  // Two files of the model, and the vision tower of both.
  CHECK(seen.out.starts_with("lance layout: 3 problems\n"));
  CHECK(seen.out.find("/Wan2.2_VAE.pth: ") != std::string::npos);
  const fs::path part = lance.model() / "Lance_3B", recorded = fs::canonical(part);
  fs::remove(part);
  fs::copy(recorded, part);
  std::ifstream file(recorded / "llm_config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["vocab_size"] = 300;
  lance.write("model/Lance_3B/llm_config.json", config.dump());
  const std::string said = diptych::test::refusal(
      lance.run("generate", {"-p", "a cup", "--size", "64x64", "-o", lance.file("a.png")}));
  CHECK(said.starts_with("--prompt: token id "));
  CHECK(said.ends_with(" is beyond the model's vocabulary of 300\n"));
}

TEST_CASE("Lance: the first tensor in which two runs part is named") {
  const Lance lance;
  const Words picture = {"-p", "a cup", "--size", "64x64"};
  lance.made("a.png", diptych::test::with(picture, {"--trace", lance.file("a.safetensors")}));
  // The scale is used after the first step's velocities.
  lance.made("b.png", diptych::test::with(
                          picture, {"--cfg-scale", "9", "--trace", lance.file("b.safetensors")}));
  const Outcome compared =
      diptych::test::run({"compare", lance.file("a.safetensors"), lance.file("b.safetensors")});
  CHECK(compared.code == 0);
  CAPTURE(compared.out);
  CHECK(compared.out.find("first divergence: step000.v_guided_raw: ") != std::string::npos);
}

TEST_CASE("Lance: calibrate measures on clips, and TeaCache takes the file") {
  const Lance lance;
  const std::string file = lance.file("tea.json");
  const Words clip = {"--task", "t2v", "--size", "64x48", "--video-frames", "5", "--steps", "12"};
  const Outcome measured = lance.run("calibrate", diptych::test::with(clip, {"-o", file}));
  CAPTURE(measured.err);
  CHECK(measured.code == 0);
  const Outcome painted = lance.run(
      "generate",
      diptych::test::with(clip, {"-p", "a boat", "-o", lance.file("t.frames"), "--cache-mode",
                                 "teacache", "--cache-calibration", file}));
  CAPTURE(painted.err);
  CHECK(painted.code == 0);
  CHECK(lance.run("calibrate", {"--task", "x2t_image", "-o", file})
            .err.find("--task x2t_image: paints nothing") != std::string::npos);
}

}  // namespace
