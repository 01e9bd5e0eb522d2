// `diptych check`, `compare` and `inspect` as a user runs them.
#include <algorithm>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/png.h"
#include "lib/tensor/safetensors.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_model.h"

namespace {

namespace fs = std::filesystem;
using namespace diptych;
using diptych::test::Outcome;
using nlohmann::json;

// A folder with pictures and traces, removed at the end; commands run inside it.
class Bench {
 public:
  Bench() {
    fs::create_directory(path("a"));
    fs::create_directory(path("b"));
    const Tensor rgb = (at::arange(16 * 20 * 3, at::kInt) * 7).remainder(256).to(at::kByte);
    picture_ = rgb.reshape({16, 20, 3});
    Tensor other = picture_.clone();
    other[2][3].copy_(at::tensor({200, 100, 50}, at::kByte));  // pixel x 3, y 2
    const PictureTexts text = {{"parameters", "a fox\nSteps: 50"}, {"diptych", R"({"seed": 7})"}};
    write_png(path("a/one.png"), picture_, text);
    write_png(path("b/one.png"), other);
    write_png(path("small.png"), picture_.narrow(1, 0, 19));
    const std::vector<std::pair<std::string, Tensor>> trace = {
        {"step000.latent", at::ones({2, 3})}, {"step001.latent", at::ones({2, 3})}};
    auto changed = trace;
    changed[1].second = changed[1].second + 0.25;
    write_safetensors(path("a/t.safetensors"), trace);
    write_safetensors(path("b/t.safetensors"), changed);
  }
  const Tensor& picture() const { return picture_; }
  fs::path path(const char* name) const { return folder_.path() / name; }
  void write(const char* name, const std::string& text) const { folder_.write(name, text); }
  Outcome run(const std::string& arguments,
              const std::map<std::string, std::string>& environment = {}) const {
    return test::run_in(folder_.path(), arguments, environment);
  }

 private:
  test::Folder folder_;
  Tensor picture_;
};

bool one_line(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') == 1 && text.ends_with('\n');
}

TEST_CASE("check names each probe that fails") {
  const Bench bench;
  const Outcome failed =
      bench.run("check b/one.png --probe 3,2=200,100,44 --probe (3,2)=(200,100,55)");
  CHECK(failed.code == 1);
  CHECK(failed.out ==
        "b/one.png: probe (3,2): found (200,100,50), expected (200,100,44) +-5, off by 6\n"
        "b/one.png: 1 of 2 checks failed\n");
  const Outcome passed = bench.run("check b/one.png --probe 3,2=200,100,44 --tolerance 6");
  CHECK(passed.code == 0);
  CHECK(passed.out == "b/one.png: 1 check passed\n");
}

TEST_CASE("check reads probes from YAML") {
  const Bench bench;
  bench.write(
      "probes.yaml",
      "tolerance: 0\nprobes:\n  - {x: 3, y: 2, rgb: [200, 100, 50]}\n  - \"3,2=199,100,50\"\n");
  const Outcome strict = bench.run("check b/one.png --probes probes.yaml --json");
  CHECK(strict.code == 1);
  const json report = json::parse(strict.out);
  CHECK(report["pass"] == false);
  CHECK(report["width"] == 20);
  CHECK(report["probes"][0]["pass"] == true);
  CHECK(report["probes"][1]["difference"] == 1);
  CHECK(report["probes"][1]["found"] == json({200, 100, 50}));
  CHECK(bench.run("check b/one.png --probes probes.yaml --tolerance 1").code == 0);
  bench.write("probes.yaml", "probes:\n  - {x: 3, y: 2, colour: [1, 2, 3]}\n");
  const Outcome broken = bench.run("check b/one.png --probes probes.yaml");
  CHECK(broken.code == 2);
  CHECK(broken.err.find("probes.yaml:2:") != std::string::npos);
  CHECK(one_line(broken.err));
}

TEST_CASE("check against a reference") {
  const Bench bench;
  CHECK(
      bench.run("check a/one.png --against a/one.png --min-ssim 1 --max-abs 0 --min-psnr 90").out ==
      "a/one.png: 3 checks passed\n");
  const Outcome failed =
      bench.run("check b/one.png --against a/one.png --max-abs 3 --min-ssim 0.1");
  CHECK(failed.code == 1);
  CHECK(failed.out.find("b/one.png: max_abs ") == 0);
  const Outcome size = bench.run("check small.png --against a/one.png --max-abs 3");
  CHECK(size.code == 1);
  CHECK(size.out.find("small.png: is 19x16, but a/one.png is 20x16; expected the same size\n") ==
        0);
}

TEST_CASE("check and compare refuse gates that nothing could meet, with the range") {
  const Bench bench;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--min-ssim 5", "--min-ssim: 5 is out of range; expected -1 to 1"},
      {"--min-ssim nan", "--min-ssim: nan is out of range; expected -1 to 1"},
      {"--min-psnr -1", "--min-psnr: -1 is out of range; expected at least 0"},
      {"--max-abs -0.5", "--max-abs: -0.5 is out of range; expected 0 to 255"},
      {"--max-abs 256", "--max-abs: 256 is out of range; expected 0 to 255"},
      {"--min-cosine 1.01", "--min-cosine: 1.01 is out of range; expected -1 to 1"},
  };
  for (const auto& [gate, message] : cases) {
    CAPTURE(gate);
    const Outcome ran = bench.run("check a/one.png --against a/one.png " + gate);
    CHECK(ran.code == 2);
    CHECK(ran.err == "diptych: " + message + "\n");
    CHECK(ran.out.empty());
  }
  for (const char* compared : {"a/one.png a/one.png", "a b"}) {
    const Outcome ran = bench.run(std::string("compare --max-abs 256 ") + compared);
    CHECK(ran.code == 2);
    CHECK(ran.err == "diptych: --max-abs: 256 is out of range; expected 0 to 255\n");
    CHECK(ran.out.empty());
  }
  CHECK(bench.run("check a/one.png --against a/one.png --max-abs 1 --tolerance 3").err ==
        "diptych: --tolerance: needs --probe or --probes\n");
}

TEST_CASE("several values in one text are separated by ; in flags and variables") {
  const Bench bench;
  const auto with = [&](const char* name, const char* value, const std::string& arguments) {
    return bench.run(arguments, {{name, value}});
  };
  const char* probes = "3,2=200,100,50;;3,2=200,100,49;";
  const std::string passed = "b/one.png: 2 checks passed\n";
  CHECK(with("DIPTYCH_PROBE", probes, "check b/one.png").out == passed);
  CHECK(bench.run(std::string("check b/one.png --probe ") + probes).out == passed);
  // The flag wins over the variable.
  CHECK(with("DIPTYCH_PROBE", probes, "check b/one.png --probe 3,2=200,100,50").out ==
        "b/one.png: 1 check passed\n");
  const std::string traces = "compare b/t.safetensors a/t.safetensors";
  CHECK(with("DIPTYCH_TOLERANCE", "0;*001*=1", traces).code == 0);
  CHECK(with("DIPTYCH_TOLERANCE", "0;*000*=1", traces).code == 1);
  CHECK(bench.run(traces + " --tolerance 0;*001*=1").code == 0);
  const Outcome filters =
      with("DIPTYCH_TRACE_FILTER", "*.latent;;vae.*", "generate --print-config");
  CHECK(filters.out.find("\ntrace_filter: [\"*.latent\",\"vae.*\"]") != std::string::npos);
  CHECK(bench.run("--help").out.find("; separates several values") != std::string::npos);
}

TEST_CASE("a variable is read by the verbs that have its flag, and by no other") {
  const Bench bench;
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"DIPTYCH_TOLERANCE", "*001*=1"}, {"DIPTYCH_MIN_SSIM", "much"}}) {
    CAPTURE(name);
    CHECK(bench.run("check b/one.png --probe 3,2=200,100,50", {{name, value}}).code == 2);
    CHECK(bench.run("inspect a/one.png", {{name, value}}).code == 0);
    CHECK(bench.run("version", {{name, value}}).code == 0);
  }
  for (const char* verb : {"compare a b", "check a/one.png", "inspect a", "devices", "verify a"})
    CHECK(bench.run(verb, {{"DIPTYCH_MINSSIM", "1"}})
              .err.starts_with("[WARN ] DIPTYCH_MINSSIM has no effect; did you mean DIPTYCH_MIN_"));
}

TEST_CASE("check refuses what it cannot do with one line") {
  const Bench bench;
  bench.write("broken.png", "\x89PNG\r\n\x1a\n rest");
  for (const char* arguments :
       {"check a/one.png", "check missing.png --probe 1,2=3,4,5",
        "check broken.png --probe 1,2=3,4,5", "check a/one.png --probe 20,2=3,4,5",
        "check a/one.png --probe 1,2=3,4", "check a/one.png --against b/one.png",
        "check a/one.png --max-abs 3", "check a/one.png --probe 1,2=3,4,5 --tolerance 256", "check",
        "check a/one.png --max-abs abc", "check a/t.safetensors --probe 1,2=3,4,5"}) {
    CAPTURE(arguments);
    const Outcome ran = bench.run(arguments);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(one_line(ran.err));
  }
}

TEST_CASE("compare pictures") {
  const Bench bench;
  CHECK(bench.run("compare a/one.png a/one.png").out == "a/one.png a/one.png: equal\n");
  const Outcome report = bench.run("compare a/one.png b/one.png --diff diff.png --json");
  CHECK(report.code == 0);
  const Tensor gap = (bench.picture()[2][3].to(at::kInt) - at::tensor({200, 100, 50})).abs();
  CHECK(json::parse(report.out)["max_abs"] == gap.max().item<int>());
  const Tensor picture = read_png(bench.path("diff.png")).rgb;
  CHECK(at::equal(picture[2][3].to(at::kInt), (gap * 8).clamp_max(255)));
  CHECK(picture.count_nonzero().item<std::int64_t>() == gap.count_nonzero().item<std::int64_t>());
  const Outcome gate = bench.run("compare a/one.png b/one.png --min-psnr 90");
  CHECK(gate.code == 1);
  CHECK(gate.out.find("is below 90") != std::string::npos);
  const Outcome sizes = bench.run("compare a/one.png small.png");
  CHECK(sizes.code == 1);
  CHECK(
      sizes.out ==
      "a/one.png small.png: a/one.png is 20x16, but small.png is 19x16; expected the same size\n");
  // A picture of an earlier run stays, and is not taken for this one's.
  const Outcome no_difference = bench.run("compare a/one.png small.png --diff diff.png");
  CHECK(no_difference.code == 1);
  CHECK(no_difference.out.ends_with("; expected the same size; diff.png is not written\n"));
  CHECK(at::equal(read_png(bench.path("diff.png")).rgb, picture));
  for (const char* other : {"small.png", "b/one.png"}) {
    const Outcome nowhere = bench.run(std::string("compare a/one.png --diff no/diff.png ") + other);
    CHECK(nowhere.code == 2);
    CHECK(nowhere.err.starts_with("diptych: --diff: no/diff.png: cannot be written"));
  }
}

TEST_CASE("compare traces") {
  const Bench bench;
  const Outcome report = bench.run("compare b/t.safetensors a/t.safetensors");
  CHECK(report.code == 0);
  CHECK(report.out.find("2 tensors, 1 not equal") != std::string::npos);
  CHECK(report.out.find("first divergence: step001.latent: max abs 0.25") != std::string::npos);
  CHECK(bench.run("compare b/t.safetensors a/t.safetensors --tolerance 0.25").code == 0);
  CHECK(bench.run("compare b/t.safetensors a/t.safetensors --tolerance 0.2").code == 1);
  CHECK(
      bench.run("compare b/t.safetensors a/t.safetensors --tolerance 0 --tolerance *001*=1").code ==
      0);
  bench.write("case.json", R"({"tolerance": {"suggested": {"step*.latent": 0.1}}})");
  bench.write("half.json", R"({"tolerance": {)");
  CHECK(bench.run("compare b/t.safetensors a/t.safetensors --case half.json").err ==
        "diptych: half.json:1:16: ends within its JSON: truncated?\n");
  const Outcome by_case =
      bench.run("compare b/t.safetensors a/t.safetensors --case case.json --json");
  CHECK(by_case.code == 1);
  CHECK(json::parse(by_case.out)["first_divergence"] == "step001.latent");
  CHECK(bench.run("compare a/t.safetensors a/t.safetensors --min-cosine 1").code == 0);
  const std::vector<std::pair<std::string, Tensor>> other = {{"other", at::ones(2)}};
  write_safetensors(bench.path("other.safetensors"), other);
  const Outcome missing = bench.run("compare other.safetensors a/t.safetensors --min-cosine -1");
  CHECK(missing.code == 1);
  CHECK(missing.out.find("smallest cosine: not every tensor could be compared") !=
        std::string::npos);
}

TEST_CASE("compare folders") {
  const Bench bench;
  const Outcome report = bench.run("compare a b");
  CHECK(report.code == 0);
  CHECK(report.out.find("one.png: ssim ") == 0);
  CHECK(report.out.find("a b: 2 compared, 0 missing\n") != std::string::npos);
  for (const char* name : {"a/two.png", "b/two.png"})
    fs::copy_file(bench.path("small.png"), bench.path(name));
  const Outcome both = bench.run("compare a b -o side");
  CHECK(both.out.find("\n  ssim: mean ") != std::string::npos);
  CHECK(both.out.find(" of one.png\n") != std::string::npos);
  CHECK(fs::exists(bench.path("side/two.png")));
  CHECK(bench.run("compare a b -o b").code == 2);
  CHECK(bench.run("compare a b -o side.png").code == 2);
  fs::copy_file(bench.path("small.png"), bench.path("a/extra.png"));
  const Outcome alone = bench.run("compare a b");
  CHECK(alone.code == 2);
  CHECK(alone.err == "diptych: compare: 1 pair could not be compared\n");
  const json list = json::parse(bench.run("compare a b --json").out);
  CHECK(list["pass"] == false);
  CHECK(list.at("pairs").at(3).at("psnr").is_null());
  CHECK(list.at("pairs").at(3).at("equal") == true);
  CHECK(list.at("total").at("compared") == 3);
  CHECK(list.at("total").at("equal") == 1);
  CHECK(list.at("total").at("failed") == 0);
  for (const char* copy : {"e/1.png", "e/2.png", "f/1.png", "f/2.png", "f/3.png"}) {
    fs::create_directory(fs::path(bench.path(copy)).parent_path());
    fs::copy_file(bench.path("small.png"), bench.path(copy));
  }
  CHECK(bench.run("compare e f")
            .out.ends_with("\n  all pictures and videos of one size are equal\n"));
  fs::remove(bench.path("f/3.png"));
  CHECK(bench.run("compare e f").out.ends_with("\n  all equal\n"));
  const Outcome missing = bench.run("compare a b --max-abs 255");
  CHECK(missing.code == 1);
  CHECK(missing.out.find("extra.png: missing in b\n") == 0);
}

TEST_CASE("compare folders goes on after a file that cannot be read") {
  const Bench bench;
  bench.write("a/broken.png", "\x89PNG\r\n\x1a\n rest");
  fs::copy_file(bench.path("small.png"), bench.path("b/broken.png"));
  for (const char* gate : {"", " --max-abs 255 --tolerance 1"}) {
    const Outcome ran = bench.run(std::string("compare a b") + gate);
    CAPTURE(ran.out);
    CHECK(ran.code == 2);
    CHECK(ran.out.starts_with("broken.png: a/broken.png: broken PNG"));
    CHECK(ran.out.find("\none.png: ssim ") != std::string::npos);
    CHECK(ran.out.find("a b: 2 compared, 0 missing, 1 not comparable") != std::string::npos);
    CHECK(ran.out.find(", 1 failed") == std::string::npos);
    CHECK(ran.err == "diptych: compare: 1 pair could not be compared\n");
  }
  const Outcome as_json = bench.run("compare a b --json");
  CHECK(as_json.code == 2);
  const json report = json::parse(as_json.out);
  CHECK(report["pass"] == false);
  CHECK(report["pairs"].size() == 3);
  CHECK(report["pairs"][0]["name"] == "broken.png");
  CHECK(report["pairs"][0]["problem"].get<std::string>().find("broken PNG") != std::string::npos);
}

TEST_CASE("compare of two batches judges listed texts, and counts what is missing") {
  const Bench bench;
  for (const std::string side : {"a/", "b/"}) {
    bench.write((side + "manifest.jsonl").c_str(),
                R"({"id":"0","number":0,"status":"ok","seconds":2,"seed":1,"request":"","files":[)"
                R"({"file":"one.png","sha256":""},{"file":"0.txt","sha256":""},)"
                R"({"file":"1.json","sha256":""}]})"
                "\n");
    bench.write((side + "0.txt").c_str(), "Hello\nyou");
    bench.write((side + "1.json").c_str(), R"({"text": "Yes", "record": ")" + side + "\"}");
  }
  const std::string gated = "compare a b --max-abs 255";
  const auto said = [&](const std::string& arguments, int code) {
    const Outcome ran = bench.run(arguments);
    CAPTURE(ran.out);
    CHECK(ran.code == code);
    return ran.out + ran.err;
  };
  CHECK(said(gated, 0).ends_with("\na b: 4 compared, 0 missing, 0 failed\n"));
  CHECK(json::parse(said("compare a b --json", 0))["total"]["compared"] == 4);
  bench.write("b/0.txt", "Hello\nthere");
  CHECK(said(gated, 1).find("  line 2: found 'you', expected 'there'\n") != std::string::npos);
  CHECK(said("compare a b", 0).ends_with("\na b: 4 compared, 0 missing\n"));
  const std::string same(300, 'w');
  bench.write("a/0.txt", ("Hello\n" + same + " a red fox").c_str());
  bench.write("b/0.txt", ("Hello\n" + same + " a rare one").c_str());
  // Also where one of them is of shards, and where one has no manifest.
  for (const char* name : {"b/manifest.jsonl", "b/manifest-0-of-2.jsonl", "b/other"}) {
    CAPTURE(std::string(name));
    fs::rename(bench.path("b/manifest.jsonl"), bench.path(name));
    CHECK(said(gated, 1).find("line 2: found 'a red fox', expected 'a rare one'\n") !=
          std::string::npos);
    fs::rename(bench.path(name), bench.path("b/manifest.jsonl"));
  }
  bench.write("b/1.json", R"({"text": "No"})");
  CHECK(said(gated, 1).ends_with("\na b: 4 compared, 0 missing, 2 failed\n"));
  fs::remove(bench.path("b/0.txt"));
  fs::remove(bench.path("b/one.png"));
  const std::string missing = said(gated, 1);
  CHECK(missing.find("  missing in b\n") != std::string::npos);
  CHECK(missing.ends_with("\na b: 2 compared, 2 missing, 3 failed\n"));
  CHECK(said("compare a b", 2)
            .ends_with(
                "\na b: 2 compared, 2 missing\ndiptych: compare: 2 pairs could not be compared\n"));
  fs::remove(bench.path("a/one.png"));
  CHECK(said("compare a b", 2).find("  missing in a and b\n") != std::string::npos);
}

TEST_CASE("compare folders without a common name") {
  const Bench bench;
  for (const char* name : {"c", "d"}) fs::create_directory(bench.path(name));
  fs::copy_file(bench.path("small.png"), bench.path("c/only.png"));
  CHECK(bench.run("compare a c").err == "diptych: compare: 3 pairs could not be compared\n");
  for (const char* gate : {" --min-ssim 0.5", " --tolerance *.latent=1"}) {
    const Outcome gated = bench.run(std::string("compare a c") + gate);
    CHECK(gated.code == 1);
    CHECK(gated.out.ends_with("\na c: 0 compared, 3 missing, 3 failed\n"));
    const Outcome empty = bench.run(std::string("compare d d") + gate);
    CHECK(empty.code == 2);
    CHECK(empty.err == "diptych: d and d: hold no picture, clip or .safetensors\n");
  }
}

TEST_CASE("compare folders passes over links that lead nowhere, and names those of its own names") {
  const Bench bench;
  fs::create_symlink("loop", bench.path("a/loop"));
  CHECK(bench.run("compare a b --max-abs 255").code == 0);
  fs::create_symlink("loop.png", bench.path("a/loop.png"));
  fs::create_symlink("gone", bench.path("a/gone.png"));
  for (const char* name : {"b/loop.png", "b/gone.png"})
    fs::copy_file(bench.path("small.png"), bench.path(name));
  const Outcome ran = bench.run("compare a b");
  CHECK(ran.code == 2);
  CHECK(ran.out.starts_with(
      "gone.png: a/gone.png: is a link to gone, which is not there\n"
      "loop.png: a/loop.png: cannot be read: Too many levels of symbolic links\n"));
  CHECK(ran.out.find("\na b: 2 compared, 0 missing, 2 not comparable\n") != std::string::npos);
  for (const char* name : {"c", "d"}) {  // clips
    fs::create_directory(bench.path(name));
    write_png(bench.path(name) / "frame_00000.png", bench.picture());
    fs::create_symlink("loop", bench.path(name) / "loop");
  }
  CHECK(bench.run("compare c d --max-abs 0").code == 0);
  fs::create_symlink("frame_00001.png", bench.path("d/frame_00001.png"));
  CHECK(bench.run("compare c d").err ==
        "diptych: d/frame_00001.png: cannot be read: Too many levels of symbolic links\n");
}

TEST_CASE("errors of compare and check name the variable that a value came from") {
  const Bench bench;
  const std::string pictures = "compare a/one.png b/one.png",
                    traces = "compare a/t.safetensors b/t.safetensors";
  struct Case {
    const char *name, *value;
    std::string arguments, message;
  };
  const std::vector<Case> cases = {
      {"DIPTYCH_TOLERANCE", "1", pictures, ": is for traces, not pictures"},
      {"DIPTYCH_CASE", "c.json", pictures, ": is for traces, not pictures"},
      {"DIPTYCH_TOLERANCE", "x", "compare a b",
       " 'x': expected a number of at least 0, or GLOB=NUMBER"},
      {"DIPTYCH_MIN_SSIM", "0.5", traces, ": is for pictures and clips, not traces"},
      {"DIPTYCH_DIFF", "d.png", traces, ": is for pictures and clips, not traces"},
      {"DIPTYCH_DIFF", "d.png", "compare a b",
       ": needs two files, not folders; --output DIR writes all pairs"},
      {"DIPTYCH_MIN_SSIM", "0.5", "check a/one.png --probe 3,2=1,1,1", ": needs --against REF"},
      {"DIPTYCH_CASE", "c.json", "compare --b x --prompts p -o o", ": is not for --a and --b"}};
  for (const auto& [name, value, arguments, message] : cases) {
    CAPTURE(arguments);
    const Outcome ran = bench.run(arguments, {{name, value}});
    CHECK(ran.code == 2);
    CHECK(ran.err == std::string("diptych: ") + name + message + "\n");
  }
  CHECK(bench.run(traces, {{"DIPTYCH_CASE", "c.json"}, {"DIPTYCH_TOLERANCE", "1"}}).err ==
        "diptych: DIPTYCH_CASE: c.json: not found\n");
  bench.write("c.json", R"({"tolerance": {}})");
  CHECK(bench.run(traces, {{"DIPTYCH_CASE", "c.json"}, {"DIPTYCH_TOLERANCE", "1"}}).err ==
        "diptych: DIPTYCH_TOLERANCE '1': with DIPTYCH_CASE only GLOB=NUMBER is possible\n");
}

TEST_CASE("compare folders names both files of a pair of two kinds") {
  const Bench bench;
  bench.write("a/clip.mp4", "by its name a clip");
  fs::copy_file(bench.path("small.png"), bench.path("b/clip.mp4"));
  CHECK(bench.run("compare a b")
            .out.starts_with("clip.mp4: a/clip.mp4 and b/clip.mp4: are of different kinds; "
                             "expected two pictures, "));
}

TEST_CASE("compare refuses gates that judge nothing") {
  const Bench bench;
  bench.write("x.json", R"({"a": 1})");
  const std::string traces = "compare a/t.safetensors a/t.safetensors";
  const auto said = [&](const std::string& arguments) {
    const Outcome ran = bench.run(arguments);
    CHECK(ran.code == 2);
    return ran.err;
  };
  CHECK(said(traces + " --tolerance zzz=1") ==
        "diptych: --tolerance: 'zzz=1': 'zzz' matches no tensor of a/t.safetensors\n");
  CHECK(bench.run(traces + " --tolerance *.latent=1").code == 0);
  CHECK(said("compare a b --tolerance 1 --tolerance zzz=1").ends_with("matches no tensor of b\n"));
  CHECK(said(traces + " --case x.json") ==
        "diptych: --case: x.json: has neither task nor tolerance; expected a case.json\n");
  CHECK(said(traces + " --case no.json") == "diptych: --case: no.json: not found\n");
  write_safetensors(bench.path("none.safetensors"), {});
  CHECK(said("compare a/t.safetensors none.safetensors") ==
        "diptych: none.safetensors: holds no tensor; expected some to compare with\n");
  fs::remove(bench.path("a/t.safetensors"));
  fs::remove(bench.path("b/t.safetensors"));
  CHECK(said("compare a b --tolerance 1") == "diptych: --tolerance: no traces were compared\n");
  CHECK(json::parse(bench.run("compare a b --tolerance 1 --json").out)["pass"] == false);
}

TEST_CASE("compare refuses what it cannot do with one line") {
  const Bench bench;
  for (const char* arguments :
       {"compare a/one.png", "compare a/one.png missing.png", "compare a/one.png a/t.safetensors",
        "compare a/one.png b/one.png --tolerance 1",
        "compare a/t.safetensors b/t.safetensors --min-ssim 1", "compare a b --diff x.png",
        "compare a/t.safetensors b/t.safetensors --tolerance x",
        "compare a/t.safetensors b/t.safetensors --case missing.json"}) {
    CAPTURE(arguments);
    const Outcome ran = bench.run(arguments);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(one_line(ran.err));
  }
}

TEST_CASE("inspect shows metadata and tensors") {
  const Bench bench;
  bench.write("a.txt", "Yes");
  CHECK(bench.run("inspect a.txt --replay").err ==
        "diptych: --replay: a.txt: holds no record; expected a picture, a video or an answer as "
        ".json\n");
  CHECK(bench.run("inspect a/one.png").out ==
        "a/one.png: PNG, 20x16, 2 text entries\n"
        "parameters:\na fox\nSteps: 50\n"
        "diptych:\n{\n  \"seed\": 7\n}\n");
  const json picture = json::parse(bench.run("inspect a/one.png --json").out);
  CHECK(picture["text"]["diptych"]["seed"] == 7);
  CHECK(picture["text"]["parameters"] == "a fox\nSteps: 50");
  CHECK(bench.run("inspect a/t.safetensors --filter *001*").out ==
        "a/t.safetensors: 1 tensor, 24 bytes\n  step001.latent  F32   [2,3]  24 bytes\n");
  const json folder = json::parse(bench.run("inspect a --json").out);
  CHECK(folder["tensors"] == 2);
  CHECK(folder["bytes"] == 48);
  CHECK(folder["files"][0]["tensors"][0]["shape"] == json({2, 3}));
  bench.write("note.txt", "hello");
  for (const char* json_flag : {"", " --json"}) {
    const Outcome picture_miss =
        bench.run(std::string("inspect a/one.png --filter seed") + json_flag);
    CHECK(picture_miss.code == 2);
    CHECK(picture_miss.out.empty());
    CHECK(picture_miss.err ==
          "diptych: --filter: 'seed' matches none of the text entries of a/one.png\n");
    const Outcome tensor_miss = bench.run(std::string("inspect a --filter *002*") + json_flag);
    CHECK(tensor_miss.code == 2);
    CHECK(tensor_miss.out.empty());
    CHECK(tensor_miss.err == "diptych: --filter: '*002*' matches none of the tensors of a\n");
  }
  for (const char* arguments : {"inspect missing.png", "inspect note.txt", "inspect"}) {
    CAPTURE(arguments);
    const Outcome ran = bench.run(arguments);
    CHECK(ran.code == 2);
    CHECK(one_line(ran.err));
  }
}

TEST_CASE("a checkpoint without a tokenizer is not complete") {
  const Bench bench;
  fs::copy(test::kTinyCheckpoint, bench.path("model"));
  const Outcome whole = bench.run("inspect model");
  CHECK(whole.out.starts_with("bagel layout: complete\nmodel/ae.safetensors: "));
  CHECK(whole.out.find("lm_head") == std::string::npos);
  CHECK(whole.out.find("\ntotal: 2 files, ") != std::string::npos);
  for (const char* listed : {"inspect model --tensors", "inspect model --filter *lm_head*"}) {
    const std::string text = bench.run(listed).out;
    CHECK(text.starts_with("bagel layout: complete\n"));
    CHECK(text.find("\n  language_model.lm_head.weight  ") != std::string::npos);
  }
  fs::remove(bench.path("model/merges.txt"));  // tokenizer.json does
  CHECK(bench.run("inspect model").code == 0);
  fs::remove(bench.path("model/tokenizer.json"));
  const Outcome outcome = bench.run("inspect model");
  CHECK(outcome.code == 1);
  CHECK(
      outcome.out.starts_with("bagel layout: 1 problem\n  model: merges.txt not found, nor "
                              "tokenizer.json; expected a tokenizer\n"));
}

TEST_CASE("inspect --tensors is for what holds tensors; its variable may be for other calls") {
  const Bench bench;
  bench.write("answer.json", R"({"text": "", "record": {}})");
  const std::string what = ": expected a checkpoint folder, a .safetensors or a .pth";
  for (const std::string file : {"a/one.png", "answer.json"}) {
    const Outcome refused = bench.run("inspect --tensors " + file);
    CHECK(refused.code == 2);
    CHECK(refused.out.empty());
    CHECK(refused.err == "diptych: --tensors: " + file + what + "\n");
  }
  CHECK(bench.run("inspect a/one.png --replay --tensors").err ==
        "diptych: --tensors: a/one.png" + what + ", without --replay\n");
  CHECK(bench.run("inspect a/one.png", {{"DIPTYCH_TENSORS", "1"}}).code == 0);
  CHECK(bench.run("inspect a/t.safetensors --tensors").code == 0);
}

TEST_CASE("a picture's text cannot drive the terminal") {
  const Bench bench;
  write_png(bench.path("evil.png"), bench.picture(), PictureTexts{{"k", "a\x1b[2Jb\x07"}});
  CHECK(bench.run("inspect evil.png").out.find("a\\x1B[2Jb\\x07") != std::string::npos);
}

}  // namespace
