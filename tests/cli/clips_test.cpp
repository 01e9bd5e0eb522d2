// `diptych check`, `compare` and `inspect` of clips, as a user runs them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/clip_formats.h"
#include "lib/base/text_file.h"
#include "lib/media/png.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_write.h"
#include "tests/cli/process.h"
#include "tests/support/skip.h"

namespace {

namespace fs = std::filesystem;
using namespace diptych;
using diptych::test::Outcome;
using nlohmann::json;

const PictureTexts kTexts = {{"parameters", "a fox\nSteps: 50"},
                             {"diptych", R"({"schema": "diptych.generate", "seed": 7})"}};

// A folder with clips, removed at the end; commands run inside it. Frame N of `a` is filled with
// 10 N; in `b` a pixel of frame 2 differs.
class Bench {
 public:
  Bench() {
    Tensor frames = at::empty({5, 24, 32, 3}, at::kByte);
    for (std::int64_t i = 0; i < 5; ++i) frames[i].fill_(10 * i);
    write("a", frames);
    write("short", frames.narrow(0, 0, 4));
    write("small", frames.narrow(1, 0, 22).contiguous());
    frames[2][3][4].copy_(at::tensor({200, 100, 50}, at::kByte));
    write("b", frames);
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const Tensor& frames) const {
    ClipWriter writer(path(name), {.format = clip_format_of_name(name).value_or(ClipFormat::png)},
                      {frames.size(1), frames.size(2)});
    writer.add(frames);
    writer.finish(kTexts);
  }
  Outcome run(const std::string& arguments) const {
    return test::run_in(folder_.path(), arguments);
  }

 private:
  test::Folder folder_;
};

TEST_CASE("probes name a frame, or hold in every one") {
  const Bench bench;
  CHECK(bench.run("check a --probe 3:1,2=30,30,30+-0 --probe 0:0,0=0,0,0+-0").out ==
        "a: 2 checks passed\n");
  const Outcome failed = bench.run("check a --probe 1,2=0,0,0+-39");
  CHECK(failed.code == 1);
  CHECK(failed.out ==
        "a: probe (1,2) of frame 4: found (40,40,40), expected (0,0,0) +-39, off by 40\n"
        "a: 1 of 1 check failed\n");
  const Outcome behind = bench.run("check a --probe 5:1,2=0,0,0");
  CHECK(behind.code == 2);
  CHECK(behind.err == "diptych: probe 5:1,2: behind the last of 5 frames\n");
  const json report = json::parse(bench.run("check a --probe 3:1,2=30,30,30 --json").out);
  CHECK(report["frames"] == 5);
  CHECK(report["width"] == 32);
  CHECK(report["probes"][0]["frame"] == 3);
  const Outcome picture = bench.run("check a/frame_00001.png --probe 0:1,2=10,10,10");
  CHECK(picture.code == 2);
  CHECK(picture.err == "diptych: probe 0:1,2: names a frame, but this is a picture\n");
}

TEST_CASE("a clip against a reference: every frame must hold") {
  const Bench bench;
  CHECK(bench.run("check a --against a --min-ssim 1 --min-ms-ssim 1 --max-abs 0").out ==
        "a: 3 checks passed\n");
  const Outcome failed = bench.run("check b --against a --max-abs 3 --json");
  CHECK(failed.code == 1);
  const json report = json::parse(failed.out);
  CHECK(report["gates"][0]["frame"] == 2);
  CHECK(report["gates"][0]["found"] == 180);
  CHECK(report["metrics"]["per_frame"].size() == 5);
  CHECK(report["metrics"]["per_frame"][1]["max_abs"] == 0);
  CHECK(bench.run("check a --against short --max-abs 3").out ==
        "a: has 5 frames, but short has 4; expected the same number\na: 1 of 1 check failed\n");
  CHECK(bench.run("check a --against small --max-abs 3").out ==
        "a: is 32x24, but small is 32x22; expected the same size\na: 1 of 1 check failed\n");
  CHECK(bench.run("check a --against a/frame_00000.png --max-abs 3").err ==
        "diptych: a/frame_00000.png: a PNG picture, expected a clip\n");
}

TEST_SUITE("needs libav") {
  TEST_CASE("inspect says that a clip is damaged or cut off, and nothing else") {
    if (!facts_of(ClipFormat::mp4).built_in) return test::skip("this build has no libav");
    const Bench bench;
    at::Generator generator = at::detail::createCPUGenerator(7);
    bench.write("noise.mp4",
                at::randint(0, 256, {12, 96, 96, 3}, generator, at::TensorOptions(at::kByte)));
    CHECK(bench.run("inspect noise.mp4")
              .out.starts_with("noise.mp4: h264 yuv420p, 96x96, 12 frames"));
    const std::string whole = read_text_file(bench.path("noise.mp4"));
    const auto refused = [&](const std::string& bytes) {
      std::ofstream(bench.path("bad.mp4"), std::ios::binary) << bytes;
      const Outcome outcome = bench.run("inspect bad.mp4");
      CAPTURE(outcome.err);
      CHECK(outcome.code == 2);
      CHECK(outcome.out.empty());
      CHECK(std::ranges::count(outcome.err, '\n') == 1);
      return outcome.err;
    };
    std::string damaged = whole;
    std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2), whole.size() / 4,
                '\xFF');
    CHECK(refused(damaged).starts_with("diptych: bad.mp4: the file is damaged after "));
    CHECK(refused(whole.substr(0, whole.size() * 3 / 4))
              .starts_with("diptych: bad.mp4: the file is cut off: it ends after "));
  }
}

TEST_CASE("compare clips: mean and worst, and every frame in JSON") {
  const Bench bench;
  CHECK(bench.run("compare a a").out == "a a: 5 frames, all equal\n");
  const Outcome report = bench.run("compare b a");
  CHECK(report.code == 0);
  CHECK(report.out.starts_with("b a: 5 frames, 1 not equal\n  ssim: mean "));
  CHECK(report.out.find(" of frame 2\n  ms-ssim: mean ") != std::string::npos);
  CHECK(report.out.find("\n  max abs: mean 36, worst 180 of frame 2\n") != std::string::npos);
  const json found = json::parse(bench.run("compare b a --json").out);
  CHECK(found["per_frame"].size() == 5);
  CHECK(found["worst"]["max_abs"] == json({{"value", 180}, {"frame", 2}}));
  CHECK(found["fps"] == json({"24", "24"}));
  const Outcome gate = bench.run("compare b a --max-abs 179");
  CHECK(gate.code == 1);
  CHECK(gate.out.find("\n  max_abs 180 of frame 2 is above 179\n") != std::string::npos);
  const Outcome shorter = bench.run("compare a short -o side.gif");
  CHECK(shorter.code == 1);
  CHECK(shorter.out ==
        "a short: a has 5 frames, but short has 4; expected the same number; side.gif is not "
        "written\n");
  CHECK_FALSE(fs::exists(bench.path("side.gif")));
  CHECK(bench.run("compare a small").code == 1);
  CHECK(bench.run("compare a a/frame_00000.png").code == 2);
}

TEST_CASE("two clips side by side, as a sheet") {
  const Bench bench;
  CHECK(bench.run("compare b a -o sheet.png").code == 0);
  const Tensor sheet = read_png(bench.path("sheet.png")).rgb;
  CHECK(sheet.sizes() == at::IntArrayRef({5 * 28 + 4, 3 * 36 + 4, 3}));
  CHECK(at::equal(sheet.narrow(0, 4, 24).narrow(1, 40, 32),
                  read_png(bench.path("a/frame_00000.png")).rgb));
  const Outcome traces = bench.run("compare a b --diff x.png");
  CHECK(traces.err == "diptych: --diff: needs two pictures; --output shows how clips differ\n");
  CHECK(bench.run("compare a/frame_00002.png b/frame_00002.png -o both.png").code == 0);
  const std::string sheet_error = bench.run("compare a b -o sheet.txt").err;
  CHECK(sheet_error.find("unknown extension '.txt'") != std::string::npos);
  CHECK(sheet_error.find(".webp") == sheet_error.rfind(".webp"));
  CHECK(read_png(bench.path("both.png")).rgb.sizes() == at::IntArrayRef({24, 3 * 32 + 8, 3}));
}

TEST_CASE("inspect shows what a clip is and says") {
  const Bench bench;
  CHECK(bench.run("inspect a").out ==
        "a: png rgb24, 32x24, 5 frames, 24 fps, 0.208 s, 2 text entries\n"
        "parameters:\na fox\nSteps: 50\n"
        "diptych:\n{\n  \"schema\": \"diptych.generate\",\n  \"seed\": 7\n}\n");
  const json found = json::parse(bench.run("inspect a --json --filter diptych").out);
  CHECK(found["frames"] == 5);
  CHECK(found["fps"] == "24");
  CHECK(found["text"] == json({{"diptych", {{"schema", "diptych.generate"}, {"seed", 7}}}}));
  fs::resize_file(bench.path("a/frame_00003.png"), 60);
  const Outcome cut = bench.run("inspect a");
  CHECK(cut.code == 2);
  CHECK(cut.out.empty());
  CHECK(cut.err == "diptych: a/frame_00003.png: broken PNG: the file ends early\n");
  fs::remove(bench.path("a/frame_00003.png"));
  const Outcome without = bench.run("inspect a");
  CHECK(without.code == 2);
  CHECK(without.err ==
        "diptych: a/frame_00003.png: is missing; the next frame there is frame_00004.png\n");
  fs::rename(bench.path("a/frame_00004.png"), bench.path("a/cover.png"));
  fs::copy_file(bench.path("a/cover.png"), bench.path("a/.hidden.png"));
  CHECK(bench.run("inspect a").out.starts_with("a: png rgb24, 32x24, 4 frames"));
}

TEST_SUITE_BEGIN("needs libav");

TEST_CASE("an MP4 is checked, compared and inspected") {
  if (!facts_of(ClipFormat::mp4).built_in) return test::skip("this build has no libav");
  const Bench bench;
  bench.write("a.mp4", read_clip(bench.path("a")));
  CHECK(bench.run("check a.mp4 --probe 3:1,2=30,30,30+-3 --against a --min-psnr 35").out ==
        "a.mp4: 2 checks passed\n");
  CHECK(bench.run("compare a.mp4 a --min-psnr 35").code == 0);
  CHECK(bench.run("compare a.mp4 b -o side.mp4").code == 0);
  CHECK(ClipReader(bench.path("side.mp4")).facts().size.width == 3 * 32 + 8);
  CHECK(count_clip_frames(bench.path("side.mp4")) == 5);
  CHECK(bench.run("inspect a.mp4 --filter diptych").out ==
        "a.mp4: h264 yuv420p, 32x24, 5 frames, 24 fps, 0.208 s, 1 text entry\n"
        "diptych:\n{\n  \"schema\": \"diptych.generate\",\n  \"seed\": 7\n}\n");
  fs::resize_file(bench.path("a.mp4"), fs::file_size(bench.path("a.mp4")) - 100);
  const Outcome cut = bench.run("check a.mp4 --probe 0:1,2=0,0,0");
  CHECK(cut.code == 2);
  CHECK(cut.err.starts_with("diptych: a.mp4: the file is cut off: it ends after "));
}

TEST_SUITE_END();

}  // namespace
