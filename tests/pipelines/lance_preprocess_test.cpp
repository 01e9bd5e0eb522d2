// From pictures and clips to pixels, bit for bit as the official code.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/media/image_read.h"
#include "lib/pipelines/lance/preprocess.h"
#include "tests/pipelines/lance_cases.h"

namespace diptych {
namespace {

using Frames = std::vector<Tensor>;

TEST_CASE("golden case 09: crop boxes") {
  for (const auto& folder : test::lance_case_folders("09_preprocess")) {
    const auto golden = test::read_json(folder / "case.json");
    for (const auto& row : golden.at("crop_boxes")) {
      const ImageSize picture{row.at("height"), row.at("width")};
      const ImageSize bucket{row.at("bucket_hw")[0], row.at("bucket_hw")[1]};
      CAPTURE(picture.width);
      CAPTURE(picture.height);
      const CropBox box = crop_box(picture, bucket);
      const auto& boxes = row.at("boxes_i_j_h_w");
      CHECK(box.height == boxes[0][2].get<std::int64_t>());
      CHECK(box.width == boxes[0][3].get<std::int64_t>());
      // Where the official code draws one of several places, ours is in the middle of them.
      const auto top = (picture.height - box.height) / 2, left = (picture.width - box.width) / 2;
      CHECK(box == CropBox{top, left, box.height, box.width});
      if (boxes.size() > 1) continue;
      CHECK(box.top == boxes[0][0].get<std::int64_t>());
      CHECK(box.left == boxes[0][1].get<std::int64_t>());
    }
  }
}

TEST_CASE("extreme pictures have a crop box with pixels") {
  for (const ImageSize picture : {ImageSize{1, 1}, {1, 1000}, {1000, 1}, {2, 1}, {1, 2}, {1, 3}}) {
    CAPTURE(picture.width);
    CAPTURE(picture.height);
    const ImageSize bucket = nearest_bucket(lance_buckets(256), picture);
    const CropBox box = crop_box(picture, bucket);
    CHECK(box.height >= 1);
    CHECK(box.width >= 1);
    CHECK(box.top + box.height <= picture.height);
    CHECK(box.left + box.width <= picture.width);
  }
}

// The pixels behind normalised ones: uint8 [h, w, 3] of one frame.
Tensor levels(const Tensor& pixels, std::int64_t frame, at::ArrayRef<float> mean,
              at::ArrayRef<float> deviation) {
  const auto per_channel = [](at::ArrayRef<float> values) {
    return at::tensor(values, at::kFloat).view({3, 1, 1});
  };
  const Tensor unit = pixels.select(1, frame) * per_channel(deviation) + per_channel(mean);
  return (unit * 255).round().to(at::kByte).permute({1, 2, 0});
}
constexpr float kHalves[] = {0.5F, 0.5F, 0.5F};
constexpr float kVitMean[] = {0.48145466F, 0.4578275F, 0.40821073F};
constexpr float kVitDeviation[] = {0.26862954F, 0.26130258F, 0.27577711F};

// Frame `frame` of a strip of frames, one below the other.
Tensor of_strip(const Tensor& strip, std::int64_t frame, std::int64_t height) {
  return strip.slice(0, frame * height, (frame + 1) * height);
}

void check_strip(const Tensor& pixels, const Tensor& strip, bool vit) {
  const std::int64_t height = pixels.size(2);
  REQUIRE(strip.size(0) % height == 0);
  for (std::int64_t frame = 0; frame < strip.size(0) / height; ++frame) {
    const Tensor seen = vit ? levels(pixels, frame, kVitMean, kVitDeviation)
                            : levels(pixels, frame, kHalves, kHalves);
    CHECK(at::equal(seen, of_strip(strip, frame, height)));
  }
}

TEST_CASE("golden case 09: pictures of every kind become the recorded pixels") {
  for (const auto& folder : test::lance_case_folders("09_preprocess")) {
    const auto golden = test::read_json(folder / "case.json");
    std::size_t checked = 0;
    for (const auto& item : golden.at("items")) {
      if (!item.contains("stream")) continue;
      const std::filesystem::path file = item.at("input").get<std::string>();
      const bool vit = item.at("stream") == "vit";
      CAPTURE(file.string());
      const auto resolution =
          parse_choice<LanceResolution>(item.at("resolution").get<std::string>()).value();
      const Frames frames = {read_image(folder / file)};
      const Tensor pixels =
          vit ? lance_vit_pixels(frames, resolution) : lance_vae_pixels(frames, resolution);
      CHECK(pixels.sizes().vec() == item.at("shape_cthw").get<std::vector<std::int64_t>>());
      CHECK(pixels.is_contiguous());
      const auto expected = fmt::format("expected.{}.{}.png", file.stem().string(),
                                        item.at("stream").get<std::string>());
      check_strip(pixels, read_image(folder / expected), vit);
      ++checked;
    }
    CHECK(checked >= 2);
  }
}

TEST_CASE("golden case 09: normalised values, where they are recorded") {
  for (const auto& folder : test::lance_case_folders("09_preprocess")) {
    if (!std::filesystem::exists(folder / "expected.safetensors")) continue;
    const auto file = SafetensorsFile::open(folder / "expected.safetensors");
    const Frames frames = {read_image(folder / "edit_source.png")};
    const auto check = [&](const Tensor& pixels, const char* name) {
      CHECK(at::equal(pixels.select(1, 0).slice(1, 0, 8), file.view(name)));
    };
    check(lance_vae_pixels(frames, LanceResolution::image_256res),
          "edit_source.vae.normalized_rows0_8");
    check(lance_vit_pixels(frames, LanceResolution::image_256res),
          "edit_source.vit.normalized_rows0_8");
  }
}

// The pixels that a pipeline case recorded of its source.
void check_case(const std::filesystem::path& folder, const nlohmann::json& description) {
  const auto& strips = description.at("strips");
  const auto resolution =
      parse_choice<LanceResolution>(description.at("flags").at("--resolution").get<std::string>())
          .value();
  Frames frames;
  if (strips.contains("video_frames.png")) {
    const Tensor all = read_image(folder / "video_frames.png");
    const std::int64_t height = strips.at("video_frames.png").at("height");
    for (const std::int64_t index :
         sample_frames(all.size(0) / height, description.at("video_fps").get<double>()))
      frames.push_back(of_strip(all, index, height));
  } else {
    frames.push_back(read_image(folder / description.at("input_file").get<std::string>()));
  }
  if (strips.contains("vae_pixels.png"))
    check_strip(lance_vae_pixels(frames, resolution), read_image(folder / "vae_pixels.png"), false);
  if (!strips.contains("vit_pixels.png")) return;
  const Tensor pixels = lance_vit_pixels(frames, resolution);
  check_strip(pixels, read_image(folder / "vit_pixels.png"), true);
  CHECK(pixels.sizes().vec() ==
        description.at("vit_input_shapes")[0].get<std::vector<std::int64_t>>());
}

TEST_CASE("recorded cases: sources become the recorded pixels, where the full set is there") {
  for (const auto& goldens : test::lance_goldens()) {
    for (const auto& entry : std::filesystem::directory_iterator(goldens / "cases")) {
      if (!std::filesystem::exists(entry.path() / "case.json")) continue;
      const auto description = test::read_json(entry.path() / "case.json");
      if (!description.contains("strips")) continue;
      INFO(entry.path().string());
      check_case(entry.path(), description);
    }
  }
}

Tensor noise_frame(std::int64_t height, std::int64_t width, std::int64_t seed) {
  const Tensor count = at::arange(height * width * 3, at::kLong);
  return at::remainder(count * count * (2 * seed + 1) / 7 + seed, 256)
      .to(at::kByte)
      .view({height, width, 3});
}

TEST_CASE("clips: frames in order, an odd last one twice for the vision tower") {
  Frames frames;
  for (std::int64_t i = 0; i < 5; ++i) frames.push_back(noise_frame(48, 64, i));
  const auto resolution = LanceResolution::video_192p;
  const Tensor vae = lance_vae_pixels(frames, resolution),
               vit = lance_vit_pixels(frames, resolution);
  CHECK(vae.sizes() == at::IntArrayRef({3, 5, 224, 304}));
  CHECK(vit.sizes() == at::IntArrayRef({3, 6, 168, 252}));
  for (std::int64_t i = 0; i < 5; ++i) {
    const Frames one = {frames[static_cast<std::size_t>(i)]};
    CHECK(at::equal(vae.select(1, i), lance_vae_pixels(one, resolution).select(1, 0)));
    CHECK(at::equal(vit.select(1, i), lance_vit_pixels(one, resolution).select(1, 1)));
  }
  CHECK(at::equal(vit.select(1, 5), vit.select(1, 4)));
}

TEST_CASE("frames of any stride, of which the first chooses the bucket") {
  const Tensor wide = noise_frame(60, 120, 1);
  const Tensor tall = wide.permute({1, 0, 2});  // the same memory on its side
  const auto resolution = LanceResolution::image_256res;
  CHECK(at::equal(lance_vae_pixels(Frames{tall}, resolution),
                  lance_vae_pixels(Frames{tall.contiguous()}, resolution)));
  const Tensor mixed = lance_vae_pixels(Frames{wide, tall}, resolution);
  CHECK(mixed.sizes() == at::IntArrayRef({3, 2, 192, 336}));
}

TEST_CASE("anything but frames of uint8 [height, width, 3] is a programmer's error") {
  const auto resolution = LanceResolution::image_256res;
  CHECK_THROWS_AS(lance_vae_pixels({}, resolution), c10::Error);
  CHECK_THROWS_AS(lance_vae_pixels(Frames{at::zeros({4, 4, 4}, at::kByte)}, resolution),
                  c10::Error);
  CHECK_THROWS_AS(lance_vit_pixels(Frames{at::zeros({4, 4, 3})}, resolution), c10::Error);
}

}  // namespace
}  // namespace diptych
