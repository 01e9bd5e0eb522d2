#include "lib/verify/probes.h"

#include <cstdio>

#include <doctest/doctest.h>
#include <unistd.h>

#include "lib/base/error.h"

namespace {

using namespace diptych;

std::string parse_error(std::string_view text) {
  try {
    parse_probe(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

class YamlFile {
 public:
  explicit YamlFile(std::string_view text)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("diptych-probes-{}.yaml", ::getpid())) {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    REQUIRE(file != nullptr);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
  ~YamlFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The message behind the file's name.
std::string yaml_error_of(std::string_view text) {
  const YamlFile file(text);
  try {
    load_probes(file.path());
  } catch (const InputError& error) {
    const std::string message = error.what();
    const auto place = message.find(".yaml:");
    return place == std::string::npos ? message : message.substr(place + 6);
  }
  return "no error";
}

TEST_CASE("the ways to write a probe") {
  for (const char* text : {"400,700=130,96,77+-8", "(400,700)=(130,96,77)+-8",
                           "400,700=130,96,77\u00b18", " ( 400 , 700 ) = 130, 96, 77 +- 8 "}) {
    CAPTURE(text);
    const Probe probe = parse_probe(text);
    CHECK(probe.x == 400);
    CHECK(probe.y == 700);
    CHECK(probe.rgb == Rgb{130, 96, 77});
    CHECK(probe.tolerance == 8);
  }
  CHECK(parse_probe("0,0=0,255,0").tolerance == 5);
  CHECK(parse_probe("0,0=0,255,0", 12).tolerance == 12);
  CHECK(parse_probe("0,0=0,255,0+-0", 12).tolerance == 0);
}

TEST_CASE("a probe's text is read strictly") {
  CHECK(parse_error("400,700=130,96,256") ==
        "probe '400,700=130,96,256': expected a colour level from 0 to 255 at character 16; a "
        "probe is [FRAME:]X,Y=R,G,B or [FRAME:]X,Y=R,G,B+-TOL");
  for (const char* text : {"",
                           "400",
                           "400,700",
                           "400,700=",
                           "400,700=1,2",
                           "400,700=1,2,3,4",
                           "400,700=1,2,3+5",
                           "400,700=1,2,3+-",
                           "400,700=1,2,3+-256",
                           "400,700=1,2,3+-5x",
                           "-1,700=1,2,3",
                           "400,700=1,-2,3",
                           "1.5,2=1,2,3",
                           "(400,700=1,2,3",
                           "400,700=(1,2,3",
                           "400 700=1,2,3",
                           "99999999999999999999,0=1,2,3",
                           "1:2:3,4=1,2,3",
                           ":3,4=1,2,3",
                           "-1:3,4=1,2,3",
                           "1.5:3,4=1,2,3",
                           "3,4:1=1,2,3",
                           "(1:3,4)=1,2,3"}) {
    CAPTURE(text);
    CHECK(parse_error(text) != "no error");
  }
}

TEST_CASE("probes from YAML") {
  const YamlFile file(
      "tolerance: 7\n"
      "probes:\n"
      "  - {x: 400, y: 700, rgb: [130, 96, 77], tolerance: 8}\n"
      "  - {x: 1, y: 2, rgb: [3, 4, 5]}\n"
      "  - \"512,100=201,220,240+-5\"\n"
      "  - 10,20=30,40,50\n");
  const auto probes = load_probes(file.path());
  REQUIRE(probes.size() == 4);
  CHECK(probes[0].x == 400);
  CHECK(probes[0].rgb == Rgb{130, 96, 77});
  CHECK(probes[0].tolerance == 8);
  CHECK(probes[1].tolerance == 7);
  CHECK(probes[2].y == 100);
  CHECK(probes[2].tolerance == 5);
  CHECK(probes[3].rgb == Rgb{30, 40, 50});
  CHECK(probes[3].tolerance == 7);
  CHECK(load_probes(file.path(), 20)[1].tolerance == 20);
  CHECK(load_probes(file.path(), 20)[0].tolerance == 8);
}

TEST_CASE("YAML without a tolerance takes the default") {
  const YamlFile file("probes: [\"1,2=3,4,5\"]\n");
  CHECK(load_probes(file.path())[0].tolerance == kDefaultProbeTolerance);
}

TEST_CASE("broken YAML names line and column") {
  const auto starts = [](const std::string& message, std::string_view place) {
    CAPTURE(message);
    CHECK(message.starts_with(place));
  };
  starts(yaml_error_of("probes:\n  - {x: 1, y: 2, rgb: [1, 2, 3], tol: 5}\n"), "2:34: ");
  starts(yaml_error_of("probes:\n  - {x: 1, x: 2, y: 2, rgb: [1, 2, 3]}\n"), "2:12: ");
  starts(yaml_error_of("probes:\n  - {x: 1, rgb: [1, 2, 3]}\n"), "2:5: ");
  starts(yaml_error_of("probes:\n  - {x: 1, y: 2, rgb: [1, 2]}\n"), "2:23: ");
  starts(yaml_error_of("probes:\n  - {x: 1, y: 2, rgb: [1, 2, 300]}\n"), "2:30: ");
  starts(yaml_error_of("probes:\n  - {x: one, y: 2, rgb: [1, 2, 3]}\n"), "2:9: ");
  starts(yaml_error_of("probes:\n  - \"1,2=3,4\"\n"), "2:5: ");
  starts(yaml_error_of("tolerance: -1\nprobes: [\"1,2=3,4,5\"]\n"), "1:12: ");
  starts(yaml_error_of("probs: []\n"), "1:1: ");
  starts(yaml_error_of("probes: []\n"), "1:9: ");
  starts(yaml_error_of("tolerance: 5\n"), "1:1: ");
  starts(yaml_error_of("probes: [\n"), "");
  CHECK(yaml_error_of("probes: [\n") != "no error");
  CHECK(yaml_error_of("") != "no error");
  CHECK_THROWS_AS(load_probes("/nonexistent/probes.yaml"), InputError);
}

TEST_CASE("probes look at column x of row y") {
  Tensor rgb = at::zeros({3, 5, 3}, at::kByte);
  rgb[2][4][0] = 130;
  rgb[2][4][1] = 96;
  rgb[2][4][2] = 77;
  const auto look = [&](std::string_view text) {
    const Probe probe = parse_probe(text);
    return evaluate_probes(std::span(&probe, 1), rgb).front();
  };
  CHECK(look("4,2=130,96,77+-0").pass);
  CHECK(look("4,2=135,91,72").pass);
  const ProbeResult off = look("4,2=136,96,77");
  CHECK_FALSE(off.pass);
  CHECK(off.difference == 6);
  CHECK(describe(off) == "probe (4,2): found (130,96,77), expected (136,96,77) +-5, off by 6");
  CHECK_FALSE(look("4,2=130,96,83").pass);
  CHECK_THROWS_WITH_AS(look("5,2=0,0,0"),
                       "probe (5,2): outside the picture, expected X below 5 and Y below 3",
                       InputError);
  CHECK_THROWS_AS(look("2,3=0,0,0"), InputError);
}

TEST_CASE("a probe may name a frame") {
  for (const char* text : {"12:400,700=130,96,77+-5", " 12 : (400,700)=(130,96,77) +- 5"}) {
    CAPTURE(text);
    const Probe probe = parse_probe(text);
    CHECK(probe.frame == 12);
    CHECK(probe.x == 400);
    CHECK(probe.rgb == Rgb{130, 96, 77});
    CHECK(probe.tolerance == 5);
  }
  CHECK_FALSE(parse_probe("0,0=1,2,3").frame.has_value());
  const YamlFile file("probes:\n  - {x: 1, y: 2, rgb: [3, 4, 5], frame: 7}\n  - \"8:1,2=3,4,5\"\n");
  const std::vector<Probe> probes = load_probes(file.path());
  CHECK(probes.at(0).frame == 7);
  CHECK(probes.at(1).frame == 8);
  CHECK(yaml_error_of("probes:\n  - {x: 1, y: 2, rgb: [3, 4, 5], frame: -1}\n")
            .find("expected a whole number from 0") != std::string::npos);
}

TEST_CASE("probes of a clip") {
  const auto frame = [](int level) { return at::full({4, 6, 3}, level, at::kByte); };
  const auto seen = [&](std::vector<Probe> probes) {
    ClipProbes clip(std::move(probes));
    for (const int level : {10, 20, 30, 20}) clip.see(frame(level));
    return clip.finish();
  };
  const auto results = seen({parse_probe("1:5,3=20,20,20+-0"), parse_probe("0:0,0=13,10,10+-2"),
                             parse_probe("2,2=20,20,20+-9"), parse_probe("2,2=20,20,20+-10")});
  CHECK(results.at(0).pass);
  CHECK(describe(results.at(1)) ==
        "probe (0,0) of frame 0: found (10,10,10), expected (13,10,10) +-2, off by 3");
  CHECK_FALSE(results.at(2).pass);
  CHECK(results.at(2).frame == 0);  // frame 2 is as far off
  CHECK(results.at(3).pass);
  const auto error_of = [&](const char* text) {
    try {
      seen({parse_probe(text)});
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(error_of("4:1,1=0,0,0") == "probe 4:1,1: behind the last of 4 frames");
  CHECK(error_of("1:6,1=0,0,0") ==
        "probe (6,1): outside the picture, expected X below 6 and Y below 4");
  const std::vector<Probe> of_a_frame = {parse_probe("0:1,1=0,0,0")};
  CHECK_THROWS_AS(evaluate_probes(of_a_frame, frame(0)), InputError);
}

}  // namespace
