// Recorded values: golden case i2v_wan21 of Wan, run with transformers (tests/goldens/wan).
#include "lib/models/clip_vision/clip_vision.h"

#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/media/clip_image.h"
#include "lib/media/image_read.h"
#include "tests/models/wan_cases.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using wan_cases::full_goldens;
using wan_cases::own_goldens;
using wan_cases::relative_norm;
using wan_cases::worst;

ClipVision load_tiny(at::ScalarType dtype = at::kFloat) {
  const fs::path folder = own_goldens() / "checkpoint_i2v/image_encoder";
  const Weights weights = Weights::open(folder, at::kCPU, dtype);
  ClipVision model = ClipVision::load(weights, ClipVisionConfig::load(folder / "config.json"));
  weights.require_all_read();
  return model;
}

NamedTensors recorded() {
  return read_trace(own_goldens() / "transformer/i2v_wan21/expected.safetensors");
}

Tensor forward(const ClipVision& model, const Tensor& pixels) {
  return model.forward(pixels, *make_attention("auto", at::kCPU));
}

// What an InputError says of a file behind its name, after one change to it.
std::string message_of_change(const fs::path& known, const char* key, nlohmann::json value,
                              void (*load)(const fs::path&)) {
  nlohmann::json json;
  std::ifstream(known) >> json;
  json[key] = std::move(value);
  const test::Folder folder;
  const fs::path path = folder.write("config.json", json.dump());
  const std::string text = test::message_of([&] { load(path); });
  return text.starts_with(path.string()) ? text.substr(path.string().size() + 2) : text;
}

}  // namespace

TEST_CASE("clip vision: config.json") {
  const fs::path known = own_goldens() / "checkpoint_i2v/image_encoder/config.json";
  const ClipVisionConfig config = ClipVisionConfig::load(known);
  CHECK(config.hidden_size == 20);
  CHECK(config.rows() == 17);
  CHECK((config.hidden_act == VisionGelu::exact));
  const auto message = [&](const char* key, nlohmann::json value) {
    return message_of_change(known, key, std::move(value),
                             [](const fs::path& path) { ClipVisionConfig::load(path); });
  };
  CHECK(message("hidden_act", "quick_gelu") == "no error");
  CHECK(message("hidden_act", "relu") ==
        "hidden_act: found \"relu\", expected \"gelu\" or \"quick_gelu\"");
  CHECK(message("hidden_size", nullptr) == "hidden_size: not given; expected a number");
  CHECK(message("num_hidden_layers", 1) ==
        "num_hidden_layers: 1 is out of range, expected 2 to 1000");
  CHECK(message("num_attention_heads", 3) == "hidden_size 20 does not divide into 3 heads");
  CHECK(message("patch_size", 57) == "patch_size: found 57, expected at most image_size, 56");
}

TEST_CASE("clip vision: the recorded case i2v_wan21") {
  const fs::path folder = own_goldens() / "transformer/i2v_wan21";
  const NamedTensors expected = recorded();
  const double tolerance = test::case_json(folder)["tolerance"]["step_tensors"];
  const auto processor = ClipImageProcessor::load(
      own_goldens() / "checkpoint_i2v/image_processor/preprocessor_config.json");
  const Tensor pixels = processor.pixels(read_image(folder / "input_image.png"));
  CHECK(worst(pixels, expected.at("image.clip_pixels")) < 1e-6);

  std::size_t seen = 0;
  const Tensor out = load_tiny().forward(
      pixels, *make_attention("auto", at::kCPU), [&](std::string_view name, const Tensor& value) {
        CHECK(worst(value, expected.at("image." + std::string(name))) < tolerance);
        ++seen;
      });
  CHECK(seen == 3);
  CHECK(worst(out, expected.at("image.embeds")) < tolerance);
}

TEST_CASE("clip vision: the layout is what a checkpoint holds, and what is loaded") {
  const fs::path folder = own_goldens() / "checkpoint_i2v/image_encoder";
  const Weights weights = Weights::open(folder, at::kCPU, at::kFloat);
  for (const TensorShape& tensor :
       clip_vision_layout(ClipVisionConfig::load(folder / "config.json"))) {
    weights.check(tensor.name, tensor.shape);
  }
  CHECK(weights.unread().empty());
}

TEST_CASE("clip vision: the layout of the released model is what its checkpoint holds") {
  const fs::path shapes = full_goldens() / "real_shapes/i2v_image_encoder_clip_vit_h14.tsv";
  if (!fs::exists(shapes)) return test::skip("the full recordings are not here");
  std::set<std::string> expected, found;
  std::ifstream lines(shapes);
  std::string line;
  std::getline(lines, line);  // the heading
  while (std::getline(lines, line)) expected.insert(line);
  for (const TensorShape& tensor : clip_vision_layout({}))
    found.insert(fmt::format("{}\t{}", tensor.name, fmt::join(tensor.shape, "x")));
  CHECK(found == expected);
}

TEST_CASE("clip vision: pictures of one pass do not see each other") {
  const ClipVision model = load_tiny();
  const Tensor one = recorded().at("image.clip_pixels"), other = one.flip({3});
  const Tensor both = forward(model, at::cat({one, other}));
  CHECK(relative_norm(both[0], both[1]) > 0.01);
  CHECK(relative_norm(both[0], forward(model, one)[0]) < 1e-6);
  CHECK(relative_norm(both[1], forward(model, other)[0]) < 1e-6);
  CHECK_THROWS_AS(forward(model, one.narrow(2, 0, 42)), c10::Error);
}

TEST_CASE("clip vision: bfloat16 stays near float32") {
  const Tensor pixels = recorded().at("image.clip_pixels");
  const Tensor narrow = forward(load_tiny(at::kBFloat16), pixels);
  CHECK((narrow.scalar_type() == at::kBFloat16));
  CHECK(relative_norm(narrow, forward(load_tiny(), pixels)) < 0.03);
}

TEST_CASE("clip vision: bytes of a pass and of the weights") {
  for (const VisionGelu gelu : {VisionGelu::exact, VisionGelu::quick}) {
    ClipVisionConfig config;
    config.hidden_size = 64;
    config.intermediate_size = 256;
    config.num_attention_heads = 4;
    config.num_hidden_layers = 3;
    config.hidden_act = gelu;
    ClipVision model;
    const std::int64_t weights =
        peak_bytes([&] { model = ClipVision::load(Weights::dummy(at::kCPU, at::kFloat), config); });
    CHECK(weights >= clip_vision_weight_bytes(config, at::kFloat));
    CHECK(weights < clip_vision_weight_bytes(config, at::kFloat) * 3 / 2);
    const Tensor pixels = at::ones({2, 3, 224, 224});
    const auto attention = make_attention("sdpa", at::kCPU);
    const std::int64_t found = peak_bytes([&] { model.forward(pixels, *attention); });
    const std::int64_t planned =
        clip_vision_bytes(config, 2, at::kFloat) + pixels.numel() * 4 * 2;  // cut into patches
    MESSAGE("found ", found, ", planned ", planned);
    CHECK(found <= planned);
    CHECK(found > planned / 2);
  }
}

TEST_CASE("clip image processor: sizes, crops and what is refused") {
  const fs::path known = own_goldens() / "checkpoint_i2v/image_processor/preprocessor_config.json";
  const auto message = [&](const char* key, nlohmann::json value) {
    return message_of_change(known, key, std::move(value),
                             [](const fs::path& path) { ClipImageProcessor::load(path); });
  };
  CHECK(message("resample", 1) == "resample: found 1, expected 3 (bicubic)");
  CHECK(message("size", "large") == "size: found \"large\", expected an object of sides");
  CHECK(message("size", {{"shortest_edge", 0}}) ==
        "shortest_edge: 0 is out of range, expected 1 to 16384");
  CHECK(message("size", {{"height", 8}}) == "width: not given; expected a number");
  CHECK(message("image_mean", {1, 2}) == "image_mean: found [1,2], expected three numbers");
  CHECK(message("image_std", {1, 0, 1}) == "image_std: expected numbers above 0");
  CHECK(message("do_resize", 1) == "do_resize: found 1, expected true or false");

  const Tensor picture = at::full({30, 50, 3}, 255, at::kByte);
  ClipImageProcessor processor = ClipImageProcessor::load(known);
  CHECK(processor.pixels(picture).sizes() == at::IntArrayRef({1, 3, 56, 56}));
  processor.crop_size.reset();
  CHECK(processor.pixels(picture).sizes() == at::IntArrayRef({1, 3, 56, 93}));  // 56 * 50 / 30
  processor.exact_size = {{20, 40}};
  CHECK(processor.pixels(picture).sizes() == at::IntArrayRef({1, 3, 20, 40}));
  processor.do_resize = false;
  processor.crop_size = {{10, 53}};  // wider than the picture
  const Tensor cut = processor.pixels(picture);
  CHECK(cut.sizes() == at::IntArrayRef({1, 3, 10, 53}));
  const double black = -0.48145466 / 0.26862954, white = (1 - 0.48145466) / 0.26862954;
  CHECK(cut[0][0][0][1].item<double>() == doctest::Approx(black));
  CHECK(cut[0][0][0][2].item<double>() == doctest::Approx(white));
  CHECK(cut[0][0][0][51].item<double>() == doctest::Approx(white));
  CHECK(cut[0][0][0][52].item<double>() == doctest::Approx(black));
}

}  // namespace diptych
