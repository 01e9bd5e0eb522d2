// Size rule, resampling and normalisation, against values recorded with Pillow 13 and with the
// official code (golden case 10).
#include "lib/media/image_transform.h"

#include <doctest/doctest.h>

#include "lib/media/image_read.h"
#include "lib/media/resize.h"
#include "lib/tensor/safetensors.h"
#include "tests/media/support.h"
#include "tests/verify/goldens.h"

namespace {

using namespace diptych;
using test::levels;
using Sides = std::pair<std::int64_t, std::int64_t>;  // height, width

constexpr ImageTransform kVae{1024, 512, 16}, kVit{980, 224, 14};

Tensor pattern(std::int64_t height, std::int64_t width) {  // uint8 [height, width, 3]
  const Tensor y = at::arange(height, at::kLong).view({-1, 1, 1});
  const Tensor x = at::arange(width, at::kLong).view({1, -1, 1});
  const Tensor c = at::arange(3, at::kLong);
  return (x * 37 + y * 91 + c * 53 + (x * y).remainder(17) * 11).remainder(256).to(at::kByte);
}

TEST_CASE("resampled pixels are Pillow's") {
  struct Case {
    std::int64_t from_height, from_width, height, width;
    const char* sha256;  // first 16 digits
  };
  const Case cases[] = {
      {47, 33, 96, 64, "dca106efef6d1d07"},   {130, 200, 80, 128, "12f0ad11f3a63786"},
      {5, 7, 5, 13, "678f06f4d80411bc"},      {9, 5, 4, 5, "a4c9917825304cd4"},
      {64, 5, 2, 2, "2ea651abfd0f66ff"},       // the height first
      {219, 5, 152, 140, "5ed5aff9a0f18081"},  // likewise
      {1, 40, 3, 7, "7ac94b9c648e471c"},      {40, 1, 7, 3, "b6a02e9cc17e2592"},
      {1, 1, 16, 16, "078eef00903a781f"},     {300, 16, 16, 16, "1ffd1d360b887858"},
      {31, 31, 31, 31, "1eae671dbe67ddff"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.from_height);
    CAPTURE(c.from_width);
    const Tensor out = resize_bicubic(pattern(c.from_height, c.from_width), c.height, c.width);
    CHECK(out.sizes() == at::IntArrayRef({c.height, c.width, 3}));
    CHECK(test::pixel_hash(out).substr(0, 16) == c.sha256);
  }
}

TEST_CASE("a row by hand: antialiased where it shrinks, overshoot clipped where it grows") {
  const Tensor row = at::tensor({0, 255, 10, 200}, at::kByte).view({1, 4, 1}).expand({1, 4, 3});
  CHECK(levels(resize_bicubic(row, 1, 2).select(2, 1)) == std::vector<int>{111, 127});
  CHECK(levels(resize_bicubic(row, 1, 7).select(2, 2)) ==
        std::vector<int>{0, 86, 251, 137, 11, 133, 215});
  CHECK(levels(resize_bicubic(row.transpose(0, 1), 3, 1).select(2, 0)) ==
        std::vector<int>{77, 135, 139});
}

TEST_CASE("the same size gives a copy") {
  const Tensor image = pattern(4, 5);
  const Tensor out = resize_bicubic(image, 4, 5);
  CHECK(at::equal(out, image));
  CHECK(out.data_ptr() != image.data_ptr());
}

TEST_CASE("anything but uint8 [height, width, 3] is a programmer's error") {
  CHECK_THROWS_AS(resize_bicubic(at::zeros({2, 2, 3}), 1, 1), c10::Error);
  CHECK_THROWS_AS(resize_bicubic(at::zeros({2, 2, 4}, at::kByte), 1, 1), c10::Error);
  CHECK_THROWS_AS(resize_bicubic(at::zeros({0, 2, 3}, at::kByte), 1, 1), c10::Error);
  CHECK_THROWS_AS(resize_bicubic(at::zeros({2, 2, 3}, at::kByte), 0, 1), c10::Error);
  CHECK_THROWS_AS(to_model_input(at::zeros({2, 2, 3})), c10::Error);
  CHECK_THROWS_AS(kVae.size(0, 1), c10::Error);
}

TEST_CASE("the size rule, on rows of the official code") {
  CHECK(kVae.size(300, 400) == Sides{512, 688});
  CHECK(kVit.size(512, 688) == Sides{518, 686});
  CHECK(kVae.size(900, 1500) == Sides{608, 1024});
  CHECK(kVit.size(608, 1024) == Sides{588, 980});
  CHECK(kVae.size(160, 1280) == Sides{128, 1024});  // the long side wins over the short one
  CHECK(kVit.size(128, 1024) == Sides{126, 980});
  CHECK(kVae.size(1, 1) == Sides{512, 512});
  CHECK(kVit.size(1, 1) == Sides{224, 224});
  CHECK(kVae.size(300, 1) == Sides{1024, 16});
  CHECK(kVae.size(1024, 520) == Sides{1024, 512});  // 32.5 rounds to 32
  CHECK(kVit.size(1024, 520) == Sides{980, 504});
  constexpr ImageTransform kFewPixels{1024, 512, 16, 400'000};
  CHECK(kFewPixels.size(504, 1) == Sides{784, 16});
  CHECK(kFewPixels.size(1726, 1234) == Sides{544, 384});
  CHECK(kFewPixels.size(1780, 2090) == Sides{384, 464});
}

TEST_CASE("extreme pictures do not overflow") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  CHECK(kVae.size(1, 65'536) == Sides{16, 1024});
  CHECK(kVae.size(65'536, 1) == Sides{1024, 16});
  CHECK(kVae.size(kHuge, 1) == Sides{1024, 16});
  CHECK(kVae.size(kHuge, kHuge) == Sides{1024, 1024});
  CHECK(kVae.resize(at::zeros({1, 65'536, 3}, at::kByte)).sizes() ==
        at::IntArrayRef({16, 1024, 3}));
}

TEST_CASE("model input: planes of float in -1 .. 1") {
  const Tensor image = at::tensor({0, 51, 255, 128, 1, 254}, at::kByte).view({1, 2, 3});
  const Tensor input = to_model_input(image);
  CHECK(input.sizes() == at::IntArrayRef({1, 3, 1, 2}));
  CHECK((input.scalar_type() == at::kFloat));
  CHECK(input.is_contiguous());
  const auto expected = [](int level) {
    return (static_cast<float>(level) / 255.0f - 0.5f) / 0.5f;
  };
  const int planes[] = {0, 128, 51, 1, 255, 254};
  for (std::size_t i = 0; i < std::size(planes); ++i) {
    CHECK(input.const_data_ptr<float>()[i] == expected(planes[i]));
  }
}

// --- golden case 10 ----------------------------------------------------------------------------

struct Golden {
  std::filesystem::path folder;
  nlohmann::json description;
  SafetensorsFile expected;

  Tensor tensor(const std::string& name) const { return expected.view(name); }
  bool has(const std::string& name) const { return expected.entries().contains(name); }
  Tensor picture(const nlohmann::json& file) const {
    return read_image(folder / file.get<std::string>());
  }
  ImageTransform transform(const char* group, const char* name) const {
    const auto& values = description.at("groups").at(group).at(name);
    return {values.at("max_image_size"), values.at("min_image_size"), values.at("image_stride"),
            values.at("max_pixels")};
  }
};

Golden golden_case() {
  const auto folder =
      std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/cases/10_preprocess";
  return {folder, test::own_case("10_preprocess"),
          SafetensorsFile::open(folder / "expected.safetensors")};
}

TEST_CASE("golden case 10: every row of the size tables") {
  const Golden golden = golden_case();
  const auto check = [](const ImageTransform& transform, const std::int64_t* from,
                        const std::int64_t* to) {  // both as width, height
    CAPTURE(from[0]);
    CAPTURE(from[1]);
    CHECK(transform.size(from[1], from[0]) == Sides{to[1], to[0]});
  };
  for (const char* group : {"official", "tiny"}) {
    const ImageTransform vae = golden.transform(group, "vae"), vit = golden.transform(group, "vit");
    const Tensor table = golden.tensor(fmt::format("{}.size_table", group));
    REQUIRE(table.size(0) == 320);
    for (std::int64_t i = 0; i < table.size(0); ++i) {
      const std::int64_t* row = table.const_data_ptr<std::int64_t>() + i * table.size(1);
      check(vae, row, row + 2);
      check(vae, row + 2, row + 4);
      check(vit, row + 2, row + 6);
      if (table.size(1) == 10) check(vit, row, row + 8);
    }
  }
  const Tensor table = golden.tensor("max_pixels.size_table");
  REQUIRE(table.sizes() == at::IntArrayRef({320, 8}));
  for (std::int64_t i = 0; i < table.size(0); ++i) {
    const std::int64_t* row = table.const_data_ptr<std::int64_t>() + i * 8;
    check({row[0], row[1], row[2], row[3]}, row + 4, row + 6);
  }
}

TEST_CASE("golden case 10: pixels and tensors, bit for bit") {
  const Golden golden = golden_case();
  std::size_t compared = 0;
  const auto check = [&](const std::string& name, const Tensor& value) {
    if (!golden.has(name)) return;  // not every tensor of every picture is recorded
    CAPTURE(name);
    CHECK(at::equal(value, golden.tensor(name)));
    ++compared;
  };
  for (const auto& mode : golden.description.at("groups").at("modes")) {
    check(mode.at("expected"), golden.picture(mode.at("file")));
  }
  const ImageTransform vae = golden.transform("tiny", "vae"), vit = golden.transform("tiny", "vit");
  for (const auto& image : golden.description.at("groups").at("tiny").at("images")) {
    const std::string prefix = fmt::format("tiny.{}.", image.at("index").get<int>());
    const Tensor rgb = golden.picture(image.at("file"));
    const Tensor resized = vae.resize(rgb), vit_resized = vit.resize(resized);
    check(prefix + "rgb", rgb);
    check(prefix + "resized", resized);
    check(prefix + "vit_resized", vit_resized);
    check(prefix + "vae_tensor", to_model_input(vae.resize(resized)).squeeze(0));
    check(prefix + "vit_tensor", to_model_input(vit_resized).squeeze(0));
  }
  CHECK(compared == golden.expected.entries().size() - 3);  // all but the size tables
  CHECK(compared == 23);
}

TEST_CASE("pictures are truncated to 8 bits, never rounded") {
  const Tensor image = at::tensor({-1.5F, -1.0F, 0.0F, 0.999F, 1.0F, 7.0F})
                           .reshape({1, 1, 1, 6})
                           .expand({1, 3, 1, 6});
  const Tensor levels = to_uint8(image);
  CHECK(levels.sizes() == at::IntArrayRef({1, 6, 3}));
  CHECK(levels.select(2, 1).flatten().equal(at::tensor({0, 0, 127, 254, 255, 255}, at::kByte)));
}

TEST_CASE("golden case 10: pictures at the released sizes") {
  const Golden golden = golden_case();
  const ImageTransform vae = golden.transform("official", "vae"),
                       vit = golden.transform("official", "vit");
  CHECK(vae.max_pixels == kVae.max_pixels);
  REQUIRE(golden.description.at("groups").at("official").at("images").size() == 3);
  for (const auto& image : golden.description.at("groups").at("official").at("images")) {
    CAPTURE(image.at("file").get<std::string>());
    const Tensor resized = vae.resize(golden.picture(image.at("file")));
    CHECK(at::equal(resized, golden.picture(image.at("expected_resized"))));
    CHECK(at::equal(vit.resize(resized), golden.picture(image.at("expected_vit"))));
  }
}

}  // namespace
