// `inspect --replay`: pictures that come out again, and those that cannot.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/text_file.h"
#include "lib/media/image_read.h"
#include "lib/media/picture_write.h"
#include "lib/media/png.h"
#include "lib/tensor/safetensors.h"
#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Folder;
using test::has;
using test::kTinyCheckpoint;
using test::kTinyConfig;
using test::Outcome;
using test::run;
using test::with;
using test::Words;

void generate(const Folder& folder, const std::string& name, const Words& more) {
  const Outcome outcome = run(with({"generate", "-c", kTinyConfig, "--steps", "3", "--device",
                                    "cpu", "-o", folder.file(name), "-q"},
                                   more));
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
}

Outcome replay(const Folder& folder, const std::string& name, const Words& more = {}) {
  return run(with({"inspect", folder.file(name), "--replay", "-q", "-m", kTinyCheckpoint}, more));
}

std::string last_line(const Outcome& outcome) {
  return outcome.err.substr(outcome.err.rfind("diptych: ") + 9);
}

// The same picture with its record changed, and one pixel raised by `levels`.
void rewrite(const Folder& folder, const std::string& from, const std::string& to, int levels,
             const std::function<void(json&)>& change) {
  Image image = read_png(folder.path() / from);
  for (auto& [keyword, text] : image.text) {
    if (keyword != "diptych") continue;
    auto record = nlohmann::ordered_json::parse(text);
    json plain = record;
    change(plain);
    if (plain != json(record)) text = plain.dump();
  }
  const auto pixel = image.rgb[3][4][1];
  pixel.fill_(pixel.item<int>() > 127 ? pixel.item<int>() - levels : pixel.item<int>() + levels);
  write_png(folder.path() / to, image.rgb, image.text);
}

void write_noise(const Folder& folder, const Tensor& noise) {
  const std::vector<std::pair<std::string, Tensor>> tensors = {{"init_noise", noise}};
  write_safetensors(folder.path() / "n.safetensors", tensors);
}

// The formats that lose something, as far as the build has them.
std::vector<std::pair<std::string, std::string>> lossy_files() {
  std::vector<std::pair<std::string, std::string>> files;  // names, qualities
  if (facts_of(PictureFormat::jpeg).built_in)
    files.insert(files.end(), {{"a.jpg", "95"}, {"b.jpeg", "30"}});
  if (facts_of(PictureFormat::webp).built_in)
    files.insert(files.end(), {{"c.webp", "80"}, {"d.webp", "100"}});
  return files;
}

TEST_CASE("JPEG and WebP pictures come out again byte by byte") {
  const Folder folder;
  for (const auto& [name, quality] : lossy_files()) {
    CAPTURE(name);
    generate(folder, name, {"-p", "a cat", "--size", "48x32", "--quality", quality});
    const std::string bytes = read_text_file(folder.path() / name);
    generate(folder, "again-" + name, {"-p", "a cat", "--size", "48x32", "--quality", quality});
    CHECK(read_text_file(folder.path() / ("again-" + name)) == bytes);
    const std::string kept = folder.file("kept" + fs::path(name).extension().string());
    const Outcome outcome = replay(folder, name, {"-o", kept});
    CAPTURE(outcome.out);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.out.starts_with(folder.file(name) + ": identical, "));
    CHECK(read_text_file(kept) == bytes);
    const json record = test::record_of(folder.path() / name);
    CHECK(record["encoding"]["quality"] == std::stoi(quality));
    CHECK(record["pixels_hash"].get<std::string>().size() == 16);
  }
}

TEST_CASE("a JPEG or WebP that was encoded otherwise is told from one that was painted otherwise") {
  const Folder folder;
  for (const auto& [name, quality] : lossy_files()) {
    CAPTURE(name);
    generate(folder, name, {"-p", "a cat", "--size", "48x32", "--quality", quality});
    ReadPicture picture = read_picture(folder.path() / name);
    const auto write = [&](const Tensor& rgb, const char* hash) {
      for (auto& [keyword, text] : picture.image.text) {
        if (keyword != "diptych" || hash == nullptr) continue;
        auto record = nlohmann::ordered_json::parse(text);
        record["pixels_hash"] = hash;
        text = record.dump();
      }
      const auto bytes = encode_picture(rgb, picture.image.text, {picture.format, 3});
      folder.write("x-" + name, {bytes.begin(), bytes.end()});
      return replay(folder, "x-" + name);
    };
    const Tensor darker = picture.image.rgb / 2;
    Outcome outcome = write(darker.to(at::kByte), nullptr);
    CHECK(outcome.code == 1);
    CHECK(has(outcome.out, ": the same picture before it was encoded, but "));
    outcome = write(darker.to(at::kByte), "0123456789abcdef");
    CHECK(outcome.code == 1);
    CHECK(has(outcome.out, ": differs: "));
  }
}

TEST_CASE("a record with an encoding that this version does not have is refused") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  const auto refused = [&](const json& encoding) {
    rewrite(folder, "a.png", "b.png", 0, [&](json& r) { r["encoding"] = encoding; });
    const Outcome outcome = replay(folder, "b.png");
    CHECK(outcome.code == 2);
    return last_line(outcome);
  };
  CHECK(has(refused({{"format", "tiff"}, {"quality", 9}}),
            "b.png: its record: encoding: found 'tiff', expected png, jpg, webp"));
  CHECK(has(refused({{"format", "png"}, {"quality", 0}}),
            "b.png: its record: quality: found 0, expected 1 to 100"));
  CHECK(has(refused({{"quality", 9}}), "b.png: its record is broken or not whole"));
}

TEST_CASE("pictures of every kind come out again byte by byte") {
  const Folder folder;
  generate(folder, "in.png", {"-p", "a cat", "--size", "48x32"});
  generate(folder, "many-%d.png",
           {"-p", "x\ny", "-b", "2", "--size", "32x32", "-n", "dull", "--think", "--temperature",
            "0.9", "--max-think-tokens", "5"});
  generate(folder, "edit.png", {"-p", "make it", "-i", folder.file("in.png"), "-p", "red"});
  write_noise(folder, at::linspace(-2, 2, 4 * 64).reshape({4, 64}));
  generate(folder, "noise.png",
           {"-p", "x", "--size", "32x32", "--noise", folder.file("n.safetensors")});
  for (const char* name : {"in.png", "many-0.png", "many-1.png", "edit.png", "noise.png"}) {
    CAPTURE(name);
    const Outcome outcome = replay(folder, name, {"-o", folder.file("again.png")});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    const std::string bytes = read_text_file(folder.path() / name);
    CHECK(outcome.out ==
          folder.file(name) + ": identical, " + std::to_string(bytes.size()) + " bytes\n");
    CHECK(read_text_file(folder.path() / "again.png") == bytes);
  }
  const auto report = json::parse(replay(folder, "in.png", {"--json"}).out);
  CHECK(report["identical"] == true);
  CHECK(report["changes"].empty());
}

TEST_CASE("pictures of a shared forward come out again with their neighbours") {
  const Folder folder;
  folder.write("p.txt", "a\na longer prompt than that\nc\n");
  REQUIRE(
      run(Words{"batch", folder.file("p.txt"), "-c", kTinyConfig, "-o", folder.file("out"),
                "--steps", "3", "--size", "32x48", "--device", "cpu", "--batch-size", "3", "-q"})
          .code == 0);
  for (const char* name : {"out/0000.png", "out/0001.png", "out/0002.png"}) {
    CAPTURE(name);
    CHECK(replay(folder, name).code == 0);
  }
}

TEST_CASE("what differs is said") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  const auto keep = [](json&) {};
  rewrite(folder, "a.png", "pixel.png", 5, keep);
  Outcome outcome = replay(folder, "pixel.png");
  CHECK(outcome.code == 1);
  CHECK(outcome.out ==
        folder.file("pixel.png") + ": differs: 1 of 1024 pixels, by at most 5 levels\n");
  const auto report = json::parse(replay(folder, "pixel.png", {"--json"}).out);
  CHECK(report["identical"] == false);
  CHECK(report["pixels_differ"] == 1);
  CHECK(report["max_level"] == 5);

  rewrite(folder, "a.png", "text.png", 0, [](json& record) {
    record["device"] = "abacus";
    record["version"] = "0.0.9";
  });
  outcome = replay(folder, "text.png");
  CHECK(outcome.code == 1);
  CHECK(has(outcome.out, "the same pixels, but not the same file: its texts differ (version "));
  CHECK(has(outcome.out, ", recorded 0.0.9; device "));
  CHECK(has(outcome.out, ", recorded abacus)"));

  rewrite(folder, "a.png", "tuned.png", 0,
          [](json& record) { record["tuning"] = "0123456789abcdef"; });
  outcome = replay(folder, "tuned.png");
  CHECK(outcome.code == 1);
  CHECK(has(outcome.out, "(tuning default, recorded 0123456789abcdef)"));
}

TEST_CASE("a folder that only has the checkpoint's name is passed over") {
  const Folder folder;
  test::Command command;
  command.arguments = {"generate", "-p", "a red circle",       "--steps",
                       "2",        "-o", folder.file("a.png"), "-q"};
  REQUIRE(run(command).code == 0);
  fs::create_directory(folder.path() / "checkpoint");
  command.arguments = {"inspect", folder.file("a.png"), "--replay", "-q"};
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, ": identical, "));
}

TEST_CASE("limits of the machine a picture was made on do not bind another") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  // As if it had been made on a GPU under a limit.
  const auto elsewhere = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    Image image = read_png(folder.path() / "a.png");
    for (auto& [keyword, text] : image.text) {
      if (keyword != "diptych") continue;
      auto record = nlohmann::ordered_json::parse(text);
      record["requested"]["max_vram"] = 80.5;
      record["requested"]["offload"] = "layers";
      record["requested"]["device"] = "auto";
      change(record);
      text = record.dump();
    }
    write_png(folder.path() / "b.png", image.rgb, image.text);
    return replay(folder, "b.png", {"--device", "cpu"});
  };
  const Outcome same = elsewhere([](auto&) {});
  CAPTURE(same.err);
  CHECK(same.code == 0);
  CHECK(has(same.out, ": identical, "));
  const Outcome other = elsewhere([](auto& record) { record["offload"] = "all"; });
  CHECK(other.code == 1);
  CHECK(has(other.out, "(offload none, recorded all)"));
}

TEST_CASE("a record that names a file to write is refused, and nothing is written") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  for (const std::string key : {"trace", "output", "think_output"}) {
    const std::string victim = folder.file("victim");
    rewrite(folder, "a.png", "b.png", 0, [&](json& r) { r["requested"][key] = victim; });
    const Outcome outcome = replay(folder, "b.png");
    CHECK(outcome.code == 2);
    CHECK(
        has(outcome.err, ": its record has '" + key + "', which no record holds; was it edited?"));
    CHECK_FALSE(fs::exists(victim));
  }
}

TEST_CASE("a record that names files by their folders is refused, and none is opened") {
  const Folder folder;
  fs::create_directory(folder.path() / "here");
  generate(folder, "in.png", {"-p", "x", "--size", "32x32"});
  generate(folder, "here/a.png", {"-p", "x", "-i", folder.file("in.png")});
  const auto refused = [&](const std::string& key, const std::string& text,
                           const std::function<void(json&)>& change) {
    rewrite(folder, "here/a.png", "here/b.png", 0, change);
    const Outcome outcome = replay(folder, "here/b.png");
    CHECK(outcome.code == 2);
    CHECK(last_line(outcome) ==
          fmt::format("{}: its record: {}: found '{}', expected a name without a folder\n",
                      folder.file("here/b.png"), key, text));
  };
  const std::string outside = folder.file("in.png");  // it is there, with the recorded pixels
  for (const std::string& name : {outside, std::string("../in.png"), std::string("..")}) {
    refused("image", name, [&](json& r) {
      for (json& input : r["inputs"])
        if (input.contains("image")) input["image"] = name;
    });
    for (const char* key : {"noise", "cache_calibration", "model"})
      refused(key, name, [&](json& r) { r["requested"][key] = name; });
  }
  const std::string cached = "/models--..--../snapshots/main";  // reads as the model ../..
  refused("model", cached, [&](json& r) { r["requested"]["model"] = cached; });
}

TEST_CASE("strips that were used are used again") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "64x64", "--vae-tiling", "on"});
  generate(folder, "plain.png", {"-p", "x", "--size", "64x64"});
  const auto record = [&](const char* name) { return test::record_of(folder.path() / name); };
  CHECK(record("a.png")["vae_tiling"] == "on");
  CHECK_FALSE(record("plain.png").contains("vae_tiling"));
  CHECK_FALSE(record("plain.png").contains("offload"));
  CHECK(replay(folder, "a.png").code == 0);
  // Chosen by the machine, as `auto` may.
  rewrite(folder, "a.png", "auto.png", 0, [](json& r) { r["requested"]["vae_tiling"] = "auto"; });
  const auto report = json::parse(replay(folder, "auto.png", {"--json"}).out);
  CHECK(report["pixels_differ"] == 0);
  CHECK(report["changes"].empty());
}

TEST_CASE("a record of what `auto` took on a GPU can be run") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  rewrite(folder, "a.png", "b.png", 0,
          [](json& r) { r["attention"] = "cudnn_fp8, cudnn, splitkv"; });
  const auto report = json::parse(replay(folder, "b.png", {"--json"}).out);
  CHECK(report["pixels_differ"] == 0);
  REQUIRE(report["changes"].size() == 1);
  CHECK(has(report["changes"][0].get<std::string>(), ", recorded cudnn_fp8, cudnn, splitkv"));
}

TEST_CASE("an autoencoder in TF32 is not had on the CPU, which is said") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  CHECK_FALSE(test::record_of(folder.path() / "a.png").contains("vae_dtype"));
  rewrite(folder, "a.png", "b.png", 0, [](json& r) { r["vae_dtype"] = "tf32"; });
  const auto report = json::parse(replay(folder, "b.png", {"--json"}).out);
  CHECK(report["pixels_differ"] == 0);
  CHECK(report["changes"] == json::array({"VAE dtype float32, recorded tf32"}));
}

TEST_CASE("a backend that is not here is replaced, which is said") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  rewrite(folder, "a.png", "b.png", 0,
          [](json& r) { r["attention"] = r["requested"]["paint_attention"] = "cudnn"; });
  const Outcome outcome =
      run(Words{"inspect", folder.file("b.png"), "--replay", "-m", kTinyCheckpoint, "--json"});
  CHECK(outcome.code == 1);
  CHECK(has(outcome.err,
            "[WARN ] attention cudnn: needs a CUDA device, not cpu; auto takes its place\n"));
  const auto report = json::parse(outcome.out);
  CHECK(report["pixels_differ"] == 0);
  CHECK(report["changes"] == json::array({"attention sdpa, recorded cudnn"}));
}

TEST_CASE("a record that cannot be run is refused") {
  const Folder folder;
  generate(folder, "a.png", {"-p", "x", "--size", "32x32"});
  const auto refused = [&](const std::function<void(json&)>& change, const Words& more = {}) {
    rewrite(folder, "a.png", "b.png", 0, change);
    const Outcome outcome = replay(folder, "b.png", more);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    return last_line(outcome);
  };
  CHECK(has(refused([](json& r) { r["schema_version"] = 2; }),
            "its record has schema version 2 (of diptych "));
  CHECK(has(refused([](json& r) { r["schema"] = "other"; }), "holds no record by diptych"));
  for (const std::int64_t threads : {std::int64_t{-1}, std::int64_t{1} << 40})
    CHECK(has(refused([&](json& r) { r["threads"] = threads; }),
              fmt::format("its record: threads: found {}, expected 0 to 1024", threads)));
  CHECK(has(refused([](json& r) { r["seed"] = -1; }),
            "b.png: its record: seed: found -1, expected a whole number from 0"));
  CHECK(has(refused([](json& r) { r["requested"]["warp"] = 9; }),
            "its record has 'warp', which this version ("));
  CHECK(has(refused([](json& r) { r["requested"]["steps"] = 1; }),
            "b.png: steps: 1 makes 0 updates"));
  CHECK(has(refused([](json& r) { r["dtype"] = "float16"; }),
            "b.png: its record: dtype: 'float16' is not supported"));
  CHECK(has(refused([](json& r) { r["vae_dtype"] = "auto"; }),
            "its record: vae_dtype: found 'auto', expected float32, tf32 or bfloat16"));
  CHECK(has(refused([](json& r) { r["attention"] = "math, zz"; }),
            "b.png: its record: attention: unknown attention backend 'zz'"));
  for (const char* mode : {"", "auto", "zz"})
    CHECK(has(refused([&](json& r) { r["cfg_mode"] = mode; }),
              fmt::format("b.png: its record: cfg_mode: found '{}', expected batched or sequential",
                          mode)));
  CHECK(has(refused([](json& r) { r.erase("inputs"); }), "its record is broken or not whole"));
  CHECK(has(refused([](json& r) { r["weights_hash"] = "0123-4567"; }),
            "was made with weights 0123-4567, but those of "));
  CHECK(has(refused([](json& r) {
              r["together"] = {{"place", 7}, {"others", json::array()}};
            }),
            "its record is broken"));
  CHECK(has(refused([](json& r) { r["requested"]["task"] = "edit"; }),
            "b.png: its record: --task edit: needs a picture"));
  CHECK(has(refused([](json&) {}, {"--filter", "x"}), "--filter"));
  CHECK(has(refused([](json&) {}, {"-o", folder.file("b.png")}), "is the picture itself"));
  CHECK(has(refused([](json&) {}, {"-o", folder.file("b.jpg")}),
            "b.jpg: is named as a JPEG file; expected .png"));
  rewrite(folder, "a.png", "b.png", 0, [](json& r) { r["requested"]["model"] = "unheard-of"; });
  CHECK(has(last_line(run(Words{"inspect", folder.file("b.png"), "--replay", "-q"})),
            "was made by the model 'unheard-of', which is neither beside it nor here"));
  test::Command by_variable;
  by_variable.arguments = {"inspect", folder.file("a.png"), "--replay", "-q"};
  by_variable.environment = {{"DIPTYCH_MODEL", "nowhere"}};
  CHECK(last_line(run(by_variable)) == "DIPTYCH_MODEL: nowhere: not found; expected a folder\n");
  by_variable.environment = {{"DIPTYCH_MODEL", folder.file("b.png")}};
  CHECK(last_line(run(by_variable)) ==
        "DIPTYCH_MODEL: " + folder.file("b.png") + ": found a file, expected a folder\n");
  by_variable.environment = {{"DIPTYCH_DEVICE", "cuda:99"}};
  CHECK(last_line(run(by_variable)).starts_with("DIPTYCH_DEVICE cuda:99: "));
  write_png(folder.path() / "plain.png", at::zeros({8, 8, 3}, at::kByte));
  CHECK(has(last_line(replay(folder, "plain.png")), "holds no record of diptych"));
  CHECK(run(Words{"inspect", folder.file("a.png"), "-m", "x"}).code == 2);
}

TEST_CASE("input pictures are known by their pixels, noise by its hash") {
  const Folder folder;
  fs::create_directory(folder.path() / "elsewhere");
  generate(folder, "in.png", {"-p", "a cat", "--size", "48x32"});
  generate(folder, "elsewhere/edit.png", {"-p", "red", "-i", folder.file("in.png")});
  const Outcome missing = replay(folder, "elsewhere/edit.png");
  CHECK(missing.code == 2);
  CHECK(has(last_line(missing), "was made from 'in.png', 48x32, sha256 "));
  CHECK(has(last_line(missing), "which is not there; give it with --image"));
  CHECK(replay(folder, "elsewhere/edit.png", {"-i", folder.file("in.png")}).code == 0);
  const Outcome other =
      replay(folder, "elsewhere/edit.png", {"-i", folder.file("elsewhere/edit.png")});
  CHECK(other.code == 2);
  CHECK(has(last_line(other), "edit.png: has the pixels of none of the 1 picture that "));
  fs::copy_file(folder.path() / "elsewhere/edit.png", folder.path() / "elsewhere/in.png");
  CHECK(has(last_line(replay(folder, "elsewhere/edit.png")), "elsewhere/in.png has other pixels"));
  CHECK(has(last_line(replay(folder, "elsewhere/edit.png",
                             {"-i", folder.file("in.png"), "-i", folder.file("elsewhere/in.png")})),
            "elsewhere/in.png: has the pixels of none of the 1 picture that "));
  generate(folder, "elsewhere/both.png",
           {"-p", "red", "-i", folder.file("in.png"), "-i", folder.file("elsewhere/edit.png")});
  fs::rename(folder.path() / "elsewhere/edit.png", folder.path() / "moved.png");
  CHECK(has(last_line(replay(folder, "elsewhere/both.png", {"-i", folder.file("in.png")})),
            "was made from 'edit.png', "));
  CHECK(replay(folder, "elsewhere/both.png",
               {"-i", folder.file("in.png"), "-i", folder.file("moved.png")})
            .code == 0);

  write_noise(folder, at::full({4, 64}, 0.5));
  generate(folder, "noise.png",
           {"-p", "x", "--size", "32x32", "--noise", folder.file("n.safetensors")});
  write_noise(folder, at::full({4, 64}, 0.25));
  CHECK(has(last_line(replay(folder, "noise.png")), "began with noise "));
  fs::remove(folder.path() / "n.safetensors");
  CHECK(has(last_line(replay(folder, "noise.png")),
            "began with the noise 'n.safetensors', which is neither beside it nor here"));
}

TEST_CASE("what --cfg-mode auto chose is what is replayed") {
  const Folder folder;
  generate(folder, "auto.png", {"-p", "a red fox", "--cfg-mode", "auto"});
  CHECK(replay(folder, "auto.png")
            .out.ends_with("auto.png: identical, " +
                           std::to_string(fs::file_size(folder.file("auto.png"))) + " bytes\n"));
  for (const char* mode : {"batched", "sequential"}) {
    rewrite(folder, "auto.png", "other.png", 0, [&](json& record) {
      CHECK(record["requested"]["cfg_mode"] == "auto");
      record["cfg_mode"] = mode;
    });
    replay(folder, "other.png", {"-o", folder.file("again.png")});
    CHECK(test::record_of(folder.file("again.png"))["cfg_mode"] == mode);
  }
}

}  // namespace
}  // namespace diptych
