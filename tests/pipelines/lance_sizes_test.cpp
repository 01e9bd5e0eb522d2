// Lance's buckets, grids and sampled frames against the official tables.
#include <cmath>
#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/pipelines/lance/sizes.h"
#include "tests/pipelines/lance_cases.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using Sides = std::pair<std::int64_t, std::int64_t>;  // height, width
using Indices = std::vector<std::int64_t>;

Sides sides(ImageSize size) {
  return {size.height, size.width};
}
std::vector<Sides> buckets_of(std::int64_t side) {
  std::vector<Sides> buckets;
  for (const ImageSize bucket : lance_buckets(side)) buckets.push_back(sides(bucket));
  return buckets;
}

TEST_CASE("golden case 09: buckets of every side") {
  for (const auto& folder : test::lance_case_folders("09_preprocess")) {
    const auto golden = test::read_json(folder / "case.json");
    std::size_t checked = 0;
    for (const auto& [side, sizes] : golden.at("buckets_h_w").items()) {
      CAPTURE(side);
      CHECK(buckets_of(std::stoll(side)) == sizes.get<std::vector<Sides>>());
      ++checked;
    }
    CHECK(checked == 10);
  }
}

TEST_CASE("the sides of each resolution have the buckets of the official table") {
  const auto vae = [](LanceResolution resolution) { return buckets_of(sides_of(resolution).vae); };
  const auto vit = [](LanceResolution resolution) { return buckets_of(sides_of(resolution).vit); };
  using enum LanceResolution;
  CHECK(vae(image_256res) == vae(video_192p));
  CHECK(vae(video_192p)[2] == Sides{224, 304});
  CHECK(vit(video_192p)[2] == Sides{192, 256});
  CHECK(vae(image_512res)[0] == Sides{336, 784});
  CHECK(vit(image_512res)[0] == Sides{288, 672});
  CHECK(vae(image_768res)[1] == Sides{576, 1024});
  CHECK(vit(image_768res)[1] == Sides{512, 912});
  CHECK(vae(video_360p)[4] == Sides{560, 416});
  CHECK(vit(video_360p)[4] == Sides{560, 416});
  CHECK(vae(video_480p)[5] == Sides{848, 480});
  CHECK(vit(video_480p)[5] == Sides{832, 464});
}

TEST_CASE("a source's sizes, the vision tower's cropped to 28") {
  const auto check = [](LanceResolution resolution, ImageSize picture, Sides vae, Sides vit) {
    CAPTURE(picture.width);
    CAPTURE(picture.height);
    const LanceSourceSizes sizes = LanceSourceSizes::of(picture, resolution);
    CHECK(sides(sizes.vae) == vae);
    CHECK(sides(sizes.vit) == vit);
  };
  using enum LanceResolution;
  check(image_256res, {200, 300}, {224, 304}, {168, 252});
  check(image_256res, {500, 500}, {256, 256}, {224, 224});
  check(image_256res, {1, 1000}, {160, 368}, {140, 336});
  check(image_256res, {1000, 1}, {336, 192}, {280, 140});
  check(image_768res, {1080, 1920}, {576, 1024}, {504, 896});
  check(video_480p, {720, 720}, {640, 640}, {588, 588});
  check(video_360p, {1024, 768}, {560, 416}, {560, 392});
}

TEST_CASE("the nearest ratio, the first of equals") {
  const std::vector<ImageSize> buckets = {{100, 200}, {100, 100}};
  CHECK(nearest_bucket(buckets, {100, 151}).width == buckets[0].width);
  CHECK(nearest_bucket(buckets, {100, 150}).width == buckets[0].width);
  CHECK(nearest_bucket(buckets, {100, 149}).width == buckets[1].width);
  CHECK_THROWS_AS(nearest_bucket(buckets, {0, 10}), c10::Error);
}

TEST_CASE("grids of pictures and clips") {
  CHECK(latent_grid(1, {768, 768}) == LanceGrid{1, 48, 48});
  CHECK(latent_grid(50, {64, 79}) == LanceGrid{13, 4, 4});
  CHECK(latent_grid(121, {480, 848}) == LanceGrid{31, 30, 53});
  CHECK(decoded_frames(latent_grid(50, {64, 64})) == 49);
  CHECK(decoded_frames(latent_grid(1, {64, 64})) == 1);
  CHECK(sides(decoded_size(latent_grid(1, {65, 79}))) == Sides{64, 64});
  CHECK(vit_grid(1, {168, 252}) == LanceGrid{1, 6, 9});
  CHECK(vit_grid(5, {168, 252}) == LanceGrid{3, 6, 9});
  CHECK(vit_grid(6, {168, 252}) == LanceGrid{3, 6, 9});
}

TEST_CASE("golden case 09: the frames that are taken of a clip") {
  for (const auto& folder : test::lance_case_folders("09_preprocess")) {
    const auto golden = test::read_json(folder / "case.json");
    std::size_t checked = 0, refused = 0;
    for (const auto& row : golden.at("frame_sampler_table")) {
      const std::int64_t frames = row.at("frames"), fps = row.at("fps");
      CAPTURE(frames);
      CAPTURE(fps);
      if (row.at("indices").is_string()) {
        CHECK_THROWS_AS(sample_frames(frames, static_cast<double>(fps)), InputError);
        ++refused;
      } else {
        CHECK(sample_frames(frames, static_cast<double>(fps)) == row.at("indices").get<Indices>());
      }
      ++checked;
    }
    CHECK(refused >= 4);
    CHECK(checked >= 50);
  }
}

TEST_CASE("frame rates are rounded, and a clip never has more than 69 frames") {
  CHECK(sample_frames(93, 23.976) == sample_frames(93, 24));
  CHECK(sample_frames(93, 24).size() == 45);
  CHECK(sample_frames(121, 24).size() == 57);
  CHECK(sample_frames(17, 24.5) == sample_frames(17, 24));  // halves to even
  const Indices most = sample_frames(1'000'000, 30);
  CHECK(most.size() == 69);
  CHECK(most.front() == 0);
  CHECK(most.back() == 999'999);
}

TEST_CASE("clips without frames or a rate are refused") {
  CHECK(test::message_of([] { sample_frames(1, 24); }) ==
        "1 frame at 24 a second, expected a clip of more than 0.042 seconds");
  CHECK(test::message_of([] { sample_frames(0, 24); }).starts_with("0 frames at 24 a second"));
  for (const double rate : {0.0, 0.4, -24.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK(test::message_of([&] {
            sample_frames(100, rate);
          }).ends_with("frames a second, expected 1 to 1000000"));
}

}  // namespace
}  // namespace diptych
