// Recorded values: golden cases of Lance, run with the official code (tests/goldens/lance).
#include "lib/models/qwen/vision.h"

#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/media/image_read.h"
#include "lib/tensor/safetensors.h"
#include "lib/verify/trace_compare.h"
#include "tests/models/vision_inputs.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using vision_inputs::kChoice;
using vision_inputs::normalised;
using vision_inputs::relative_norm;

using Seen = std::map<std::string, Tensor, std::less<>>;

Seen run(const QwenVision& model, const Tensor& patches, const VisionGrid& grid,
         const char* attention = "auto") {
  Seen seen;
  const Tensor out = model.forward(
      patches, grid, *make_attention(attention, patches.device()), KernelPolicy::automatic,
      [&](std::string_view name, const Tensor& value) { seen.emplace(name, value); });
  CHECK(out.equal(seen.at("vit.output")));
  return seen;
}

double worst(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.sizes() == expected.sizes());
  return (found - expected).abs().max().item<double>();
}

// The recorded weights. Their patch embedding is not among them: an identity takes its place, so
// that what is given as patches is what they are embedded to, and zeros behind it.
QwenVision load_choice(at::ScalarType dtype) {
  const QwenVisionConfig config = QwenVisionConfig::load(kChoice / "config.json");
  NamedTensors named = read_trace(kChoice / "weights.safetensors");
  named["patch_embed.proj.weight"] =
      at::eye(config.hidden_size, config.patch_width()).view({config.hidden_size, 3, 2, 14, 14});
  const test::Folder folder;
  write_safetensors(folder / "vit.safetensors",
                    std::vector<std::pair<std::string, Tensor>>(named.begin(), named.end()));
  const Weights weights = Weights::open(folder / "vit.safetensors", at::kCPU, dtype);
  const QwenVision model = QwenVision::load(weights, config);
  weights.require_all_read();
  return model;
}

// Of lengths: 0 and the running sum.
std::vector<std::int64_t> boundaries(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums = {0};
  for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

std::vector<std::int64_t> numbers(const Tensor& tensor) {
  const Tensor whole = tensor.to(at::kLong).contiguous();
  const auto* const first = whole.const_data_ptr<std::int64_t>();
  return {first, first + whole.numel()};
}

// The order by the official rule: an index padded to whole windows, of which there is an empty row
// or column more where the side is already a multiple.
VisionWindows official_windows(const VisionGrid& grid, const QwenVisionConfig& c) {
  const std::int64_t h = grid.h / c.spatial_merge_size, w = grid.w / c.spatial_merge_size,
                     side = c.window_groups();
  const std::int64_t rows = h + side - h % side, columns = w + side - w % side;
  Tensor index = at::full({grid.t, rows, columns}, -100, at::kLong);
  index.narrow(1, 0, h).narrow(2, 0, w).copy_(at::arange(grid.t * h * w).view({grid.t, h, w}));
  index = index.view({grid.t, rows / side, side, columns / side, side})
              .permute({0, 1, 3, 2, 4})
              .reshape({-1, side * side});
  VisionWindows windows;
  windows.order = index.masked_select(index != -100);
  for (const std::int64_t length : numbers((index != -100).sum(1))) {
    if (length > 0) windows.lengths.push_back(length * c.merged_patches());
  }
  return windows;
}

}  // namespace

TEST_CASE("qwen vision: config.json") {
  const QwenVisionConfig config = QwenVisionConfig::load(kChoice / "config.json");
  CHECK(config.depth == 4);
  CHECK(config.head_dim() == 16);
  CHECK(config.out_hidden_size == 64);
  CHECK(config.patch_width() == 1176);
  CHECK(config.window_groups() == 4);
  CHECK(config.fullatt_block_indexes == std::vector<std::int64_t>{1, 3});
  CHECK(config.attends_fully(3));
  CHECK_FALSE(config.attends_fully(2));

  const test::Folder folder;
  const auto message = [&](const char* key, nlohmann::json value) {
    nlohmann::json json;
    std::ifstream(kChoice / "config.json") >> json;
    json[key] = std::move(value);
    const fs::path path = folder.write("config.json", json.dump());
    const std::string text = test::message_of([&] { QwenVisionConfig::load(path); });
    CHECK(text.starts_with(path.string() + ": "));
    return text.substr(path.string().size() + 2);
  };
  CHECK(message("depth", nullptr) == "depth: not given; expected a number");
  CHECK(message("depth", 4.5) == "depth: found 4.5, expected a whole number");
  CHECK(message("num_heads", 0) == "num_heads: 0 is out of range, expected 1 to 1024");
  CHECK(message("num_heads", 3) ==
        "hidden_size 32 does not divide into 3 heads whose size is a multiple of 4");
  CHECK(message("num_heads", 16) ==
        "hidden_size 32 does not divide into 16 heads whose size is a multiple of 4");
  CHECK(message("hidden_act", "gelu") == "hidden_act: found \"gelu\", expected \"silu\"");
  CHECK(message("window_size", 27) ==
        "window_size: found 27, expected at least 28, patch_size times spatial_merge_size");
  for (const nlohmann::json& list : {nlohmann::json{4}, nlohmann::json{-1}, nlohmann::json{"1"},
                                     nlohmann::json(1), nlohmann::json{1.5}}) {
    CHECK(message("fullatt_block_indexes", list) == "fullatt_block_indexes: found " + list.dump() +
                                                        ", expected a list of blocks from 0 to 3");
  }
  CHECK(message("fullatt_block_indexes", nullptr).find("found none") != std::string::npos);
}

TEST_CASE("qwen vision: patches of groups, a temporal patch filled with the last frame") {
  QwenVisionConfig config;
  config.in_channels = 2;
  config.patch_size = 2;
  // 2 channels, 3 frames of 4 x 8 pixels: value = channel * 1000 + frame * 100 + y * 10 + x.
  const Tensor frames = at::arange(2, at::kFloat).view({2, 1, 1, 1}) * 1000 +
                        at::arange(3, at::kFloat).view({1, 3, 1, 1}) * 100 +
                        at::arange(4, at::kFloat).view({1, 1, 4, 1}) * 10 +
                        at::arange(8, at::kFloat).view({1, 1, 1, 8});
  const Tensor rows = vision_patches(frames, config);
  REQUIRE(rows.sizes() == at::IntArrayRef({16, 16}));
  CHECK(numbers(rows[0]) == std::vector<std::int64_t>{0, 1, 10, 11, 100, 101, 110, 111, 1000, 1001,
                                                      1010, 1011, 1100, 1101, 1110, 1111});
  // The first pixel of each: first the four of a group, then the group to the right, then time.
  CHECK(numbers(rows.select(1, 0)) == std::vector<std::int64_t>{0, 2, 20, 22, 4, 6, 24, 26, 200,
                                                                202, 220, 222, 204, 206, 224, 226});
  CHECK(rows.select(1, 4).narrow(0, 8, 8).equal(rows.select(1, 0).narrow(0, 8, 8)));
  const VisionGrid grid = vision_grid(3, 4, 8, config);
  CHECK(grid.t == 2);
  CHECK(grid.h == 2);
  CHECK(grid.w == 4);
  CHECK_THROWS_AS(vision_grid(3, 4, 6, config), c10::Error);
  CHECK_THROWS_AS(vision_grid(0, 4, 8, config), c10::Error);
  CHECK_THROWS_AS(vision_patches(frames.narrow(0, 0, 1), config), c10::Error);
}

TEST_CASE("qwen vision: windows of many sizes") {
  const QwenVisionConfig config;
  for (const VisionGrid grid :
       {VisionGrid{1, 2, 2}, VisionGrid{1, 8, 8}, VisionGrid{1, 16, 8}, VisionGrid{2, 8, 10},
        VisionGrid{1, 10, 8}, VisionGrid{3, 6, 4}, VisionGrid{1, 12, 18}, VisionGrid{2, 32, 58},
        VisionGrid{1, 2, 72}, VisionGrid{4, 18, 12}, VisionGrid{1, 48, 48}}) {
    CAPTURE(grid.t);
    CAPTURE(grid.h);
    CAPTURE(grid.w);
    const VisionWindows found = vision_windows(grid, config),
                        expected = official_windows(grid, config);
    CHECK(found.order.equal(expected.order));
    CHECK(found.lengths == expected.lengths);
    CHECK(boundaries(found.lengths).back() == grid.patches());
  }
  const VisionWindows two = vision_windows({2, 4, 10}, config);
  CHECK(two.lengths == std::vector<std::int64_t>{32, 8, 32, 8});
  CHECK(numbers(two.order) == std::vector<std::int64_t>{0,  1,  2,  3,  5,  6,  7,  8,  4,  9,
                                                        10, 11, 12, 13, 15, 16, 17, 18, 14, 19});
}

TEST_CASE("qwen vision: angles of rows and columns, rounded as the official code's") {
  QwenVisionConfig config;  // heads of 80: 20 frequencies
  const VisionGrid grid{2, 4, 100};
  const Tensor angles = vision_angles(grid, config, at::kFloat);
  REQUIRE(angles.sizes() == at::IntArrayRef({800, 40}));
  CHECK(angles.narrow(0, 0, 400).equal(angles.narrow(0, 400, 400)));
  // Group (1, 49), its last patch: row 3, column 99.
  const Tensor last = angles[399];
  CHECK(last[0].item<float>() == 3);
  CHECK(last[20].item<float>() == 99);
  CHECK(last[21].item<double>() == doctest::Approx(99 * std::pow(10000, -4.0 / 80)).epsilon(1e-6));
  CHECK(last[19].item<double>() == doctest::Approx(3 * std::pow(10000, -76.0 / 80)).epsilon(1e-6));
  // The patches of the first group: (0, 0), (0, 1), (1, 0), (1, 1).
  CHECK(numbers(angles.narrow(0, 0, 4).select(1, 0)) == std::vector<std::int64_t>{0, 0, 1, 1});
  CHECK(numbers(angles.narrow(0, 0, 4).select(1, 20)) == std::vector<std::int64_t>{0, 1, 0, 1});
  // 10000^(-4 / 80) = 0.6309573 is 0.6328125 in bfloat16; 99 times that, 62.65, is 62.75.
  CHECK(vision_angles(grid, config, at::kBFloat16)[399][21].item<float>() == 62.75F);
}

TEST_CASE("qwen vision: a part of the recorded case 06_x2t_image") {
  const auto expected = read_trace(kChoice / "expected.safetensors");
  const QwenVision model = load_choice(at::kFloat);
  const QwenVisionConfig& config = model.config;

  const Tensor frames = normalised(read_image(kChoice / "vit_pixels.png"), 1);
  const VisionGrid grid = vision_grid(1, frames.size(2), frames.size(3), config);
  CHECK(numbers(expected.at("vit.grid_thw")) == std::vector<std::int64_t>{grid.t, grid.h, grid.w});
  const VisionWindows windows = vision_windows(grid, config);
  CHECK(windows.order.equal(expected.at("vit.window_index")));
  CHECK(boundaries(windows.lengths) == numbers(expected.at("vit.cu_window_seqlens")));

  // The first and the last of vit.patches_first8, some of their columns.
  const Tensor patches = vision_patches(frames, config);
  const Tensor columns = at::tensor({0, 1, 13, 14, 196, 392, 588, 1175}, at::kLong);
  const Tensor some =
      patches.index_select(0, at::tensor({0, 7}, at::kLong)).index_select(1, columns);
  CHECK(worst(some[0], at::tensor({-0.887160062789917, -0.9017584919929504, -0.4346088469028473,
                                   -0.887160062789917, -0.887160062789917, -0.4013979434967041,
                                   -0.4013979434967041, 0.5390297174453735},
                                  at::kFloat)) < 3.4e-6);
  CHECK(worst(some[1], at::tensor({-0.4638057053089142, -0.4638057053089142, -0.4346088469028473,
                                   1.083627462387085, -0.4638057053089142, 0.7391924858093262,
                                   0.7391924858093262, 1.5770944356918335},
                                  at::kFloat)) < 3.4e-6);

  const Tensor embedded = expected.at("vit.patch_embed");
  const Tensor rest = at::zeros({grid.patches(), config.patch_width() - config.hidden_size});
  const Seen seen = run(model, at::cat({embedded, rest}, 1), grid);
  CHECK(worst(seen.at("vit.patch_embed"), embedded) == 0);
  for (const char* name : {"vit.block00", "vit.block01"}) {
    CAPTURE(name);
    CHECK(worst(seen.at(name), expected.at(name)) < 0.00014186750895817113);
  }
  CHECK(worst(seen.at("vit.output"), expected.at("vit.output")) < 4.881053430416671e-05);
}

namespace {

constexpr std::string_view kInOrder[] = {"patches_first8", "patch_embed", "block", "merger",
                                         "output"};
constexpr TraceNames kNames = {{}, kInOrder, {}, {}};

Weights weights_of(const fs::path& lance, const std::string& checkpoint) {
  if (checkpoint == "Lance_3B_Video") {
    return Weights::open(lance / "checkpoint/Lance_3B_Video/model.safetensors", at::kCPU,
                         at::kFloat)
        .scope("vit_model");
  }
  return Weights::open(lance / "checkpoint/Qwen2.5-VL-ViT/vit.safetensors", at::kCPU, at::kFloat);
}

void check_recorded_case(const fs::path& lance, const char* name) {
  const fs::path folder = lance / "cases" / name;
  const nlohmann::json json = test::case_json(folder);
  const QwenVisionConfig config =
      QwenVisionConfig::load(lance / "checkpoint/Qwen2.5-VL-ViT/config.json");
  const Weights weights = weights_of(lance, json["checkpoint"]);
  const QwenVision model = QwenVision::load(weights, config);
  weights.require_all_read();
  const auto frames_in_strip = json["strips"]["vit_pixels.png"]["frames"].get<std::int64_t>();
  const Tensor frames = normalised(read_image(folder / "vit_pixels.png"), frames_in_strip);
  const VisionGrid grid = vision_grid(frames.size(1), frames.size(2), frames.size(3), config);
  const Tensor patches = vision_patches(frames, config);
  NamedTensors expected;
  for (auto& [key, value] : read_trace(folder / "expected.safetensors")) {
    if (key.starts_with("vit.")) expected.emplace(key, value);
  }
  const Seen seen = run(model, patches, grid);
  NamedTensors found(seen.begin(), seen.end());
  const VisionWindows windows = vision_windows(grid, config);
  found["vit.patches_first8"] = patches.narrow(0, 0, 8);
  found["vit.window_index"] = windows.order;
  found["vit.cu_window_seqlens"] = at::tensor(boundaries(windows.lengths), at::kLong);
  found["vit.grid_thw"] = at::tensor({grid.t, grid.h, grid.w}, at::kLong).unsqueeze(0);
  CHECK(expected.size() >= 10);
  const auto comparison =
      compare_traces(found, expected, Tolerances::from_case(json, kNames), kNames);
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  CHECK(comparison.pass());
}

}  // namespace

TEST_CASE("qwen vision: the recorded cases, where the full recordings are" *
          doctest::test_suite("needs goldens")) {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const fs::path beside = fs::path(DIPTYCH_SOURCE_DIR).parent_path() / "shared/goldens";
  const fs::path lance = (named != nullptr ? fs::path(named) : beside) / "lance";
  if (!fs::exists(lance)) return test::skip("the full recordings are not here");
  for (const char* name : {"04_image_edit", "05_video_edit", "06_x2t_image", "07_x2t_video"}) {
    CAPTURE(name);
    check_recorded_case(lance, name);
  }
  const fs::path folder = lance / "cases/09_preprocess";
  const auto expected = read_trace(folder / "expected.safetensors");
  const Tensor frames = normalised(read_image(folder / "expected.edit_source.vit.png"), 1);
  const Tensor patches = vision_patches(frames, {});
  CHECK(worst(patches.narrow(0, 0, 8), expected.at("edit_source.vit.patches_first8")) < 3.9e-6);
  CHECK(worst(patches.sum(1), expected.at("edit_source.vit.patches_colsum")) <
        0.0018731380615234375);
}

TEST_CASE("qwen vision: slices do not see each other, nor do windows before the first full block") {
  QwenVisionConfig config = vision_inputs::small_config();
  const QwenVision model = QwenVision::load(Weights::dummy(at::kCPU, at::kFloat), config);
  const VisionGrid grid{2, 10, 12};  // 5 x 6 groups: windows of 4 x 4, 4 x 2, 1 x 4 and 1 x 2
  const Tensor patches = vision_inputs::noise_patches(grid, config);
  const Seen before = run(model, patches, grid);
  Tensor changed = patches.clone();
  changed[3] += 1;  // in the first group: the first window of the first slice
  const Seen after = run(model, changed, grid);
  const auto rows_that_differ = [&](const char* name) {
    return numbers((after.at(name) != before.at(name)).any(1));
  };
  const auto first_rows = [](std::int64_t count, std::int64_t of) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(of), 0);
    std::fill_n(rows.begin(), count, 1);
    return rows;
  };
  CHECK(rows_that_differ("vit.block00") == first_rows(64, 240));
  CHECK(rows_that_differ("vit.block01") == first_rows(120, 240));
  CHECK(rows_that_differ("vit.output") == first_rows(30, 60));
}

TEST_CASE("qwen vision: a clip of one slice twice gives each slice's rows") {
  const QwenVisionConfig config = vision_inputs::small_config();
  const QwenVision model = QwenVision::load(Weights::dummy(at::kCPU, at::kFloat), config);
  for (const VisionGrid grid : {VisionGrid{1, 6, 10}, VisionGrid{1, 8, 16}, VisionGrid{1, 2, 2}}) {
    const Tensor patches = vision_inputs::noise_patches(grid, config);
    const Tensor once = run(model, patches, grid).at("vit.output");
    const Tensor twice = run(model, patches.repeat({2, 1}), {2, grid.h, grid.w}).at("vit.output");
    CHECK(relative_norm(twice, once.repeat({2, 1})) < 1e-6);
    CHECK(once.sizes() == at::IntArrayRef({grid.patches() / 4, 96}));
  }
}

TEST_CASE("qwen vision: every attention backend of the CPU") {
  const QwenVisionConfig config = vision_inputs::small_config();
  const VisionGrid grid{2, 6, 10};
  const Tensor patches = vision_inputs::noise_patches(grid, config);
  const QwenVision model = QwenVision::load(Weights::dummy(at::kCPU, at::kFloat), config);
  const Tensor math = run(model, patches, grid, "math").at("vit.output");
  CHECK(math.std().item<double>() > 0.05);
  CHECK(relative_norm(run(model, patches, grid, "sdpa").at("vit.output"), math) < 1e-5);
  CHECK_THROWS_AS(run(model, patches, {1, 6, 10}), c10::Error);
}

TEST_CASE("qwen vision: bfloat16 stays near float32, and comes back in bfloat16") {
  const VisionGrid grid{1, 18, 12};
  const QwenVision model = load_choice(at::kFloat);
  const Tensor patches = vision_inputs::noise_patches(grid, model.config);
  const Seen wide = run(model, patches, grid),
             narrow = run(load_choice(at::kBFloat16), patches.to(at::kBFloat16), grid);
  for (const auto& [name, value] : narrow) CHECK((value.scalar_type() == at::kBFloat16));
  const double difference = relative_norm(narrow.at("vit.output"), wide.at("vit.output"));
  MESSAGE("bfloat16 against float32: ", difference);
  CHECK(difference > 0);
  CHECK(difference < 0.03);
}

TEST_CASE("qwen vision: the bytes of a pass") {
  const QwenVisionConfig config;
  const VisionGrid equal{1, 48, 48};
  // 2304 patches of the released size: x and patches, qkv or the gated rows, the tables.
  const std::int64_t bytes = qwen_vision_bytes(config, equal, at::kBFloat16);
  CHECK(bytes == 2304 * ((1176 + 1280) * 2 + 80 * 4 + 3 * 1280 * 2 + 2 * 1280 * 3 * 4));
  CHECK(qwen_vision_bytes(config, {2, 48, 48}, at::kBFloat16) == 2 * bytes);
  // Windows that differ are put into buffers of whole ones: 4 x 4, 4 x 1 groups and so on.
  CHECK(qwen_vision_bytes(config, {1, 10, 10}, at::kFloat) -
            100 * ((1176 + 1280) * 4 + 80 * 4 + 3 * 1280 * 4 + 2 * 1280 * 3 * 4) ==
        4 * 64 * 2 * 1280 * 4);
  // From kRotatedRows on the gated rows are the most.
  CHECK(qwen_vision_bytes(config, {35, 32, 58}, at::kBFloat16) < std::int64_t{2'500'000'000});
}

}  // namespace diptych
