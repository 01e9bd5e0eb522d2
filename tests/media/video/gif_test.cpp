// GIF, which is written and walked through without a library; libav and stb_image read it.
#include <random>

#include "lib/media/file_bytes.h"
#include "lib/media/gif_blocks.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/gif_write.h"
#include "lib/media/video/palette.h"
#include "tests/media/video/support.h"

namespace {

using namespace diptych;
using namespace diptych::test;
namespace fs = std::filesystem;

std::span<const std::uint8_t> bytes_of(const Tensor& rgb) {
  return {rgb.const_data_ptr<std::uint8_t>(), rgb.nbytes()};
}

// Colours are those of a photograph rather than a test card: many, smooth, with grain.
Tensor photograph(std::int64_t height, std::int64_t width) {
  const Tensor y = at::arange(height).reshape({height, 1, 1}),
               x = at::arange(width).reshape({1, width, 1}), c = at::arange(3).reshape({1, 1, 3});
  Tensor rgb = 128 + 60 * at::sin(x * 0.05 + c) + 50 * at::cos(y * 0.07 - c * 2);
  std::mt19937 random(1);
  const Tensor noise = at::empty({height, width, 3}, at::kFloat);
  auto* values = noise.data_ptr<float>();
  for (std::int64_t i = 0; i < noise.numel(); ++i) values[i] = static_cast<float>(random() % 9) - 4;
  return (rgb + noise).clamp(0, 255).to(at::kByte).contiguous();
}

Tensor few_colors() {
  const Tensor frames = moving_frames(25, 20, 31).to(at::kInt);
  return (frames.div(40, "floor") * 40).to(at::kByte).contiguous();
}

PictureTexts texts() {
  return {
      {"parameters", "a cat"},
      {"diptych", R"({"schema": "diptych.generate", "long": ")" + std::string(700, 'y') + "\"}"}};
}

TEST_CASE("delays add up to the rate, comments hold the texts") {
  const Folder folder;
  const fs::path path = write_clip(folder, "a.gif", few_colors(), {.fps = {24, 1}}, texts());
  const std::vector<std::uint8_t> bytes = read_file_bytes(path);
  const GifBlocks blocks = read_gif_blocks(bytes);
  CHECK(blocks.whole);
  CHECK(blocks.frames == 25);
  CHECK(blocks.hundredths == 104);  // 25 / 24 s
  CHECK(blocks.comments == std::vector<std::string>{"a cat", texts()[1].second});
}

TEST_SUITE_BEGIN("needs libav");

TEST_CASE("frames of few colours keep them") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  const Tensor frames = few_colors();
  const fs::path path = write_clip(folder, "a.gif", frames, {.fps = {24, 1}}, texts());
  CHECK(at::equal(read_clip(path), frames));
  const ClipFacts facts = ClipReader(path).facts();
  CHECK(facts.average_rate == FrameRate{24, 1});
  CHECK(facts.texts == texts());
  if (!have_ffmpeg()) return skip(kNoFfmpeg);
  CHECK(at::equal(ffmpeg_frames(path, 20, 31), frames));
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("needs stb");

TEST_CASE("every width of codes: noise in all numbers of colours") {
  if (!facts_of(PictureFormat::gif).built_in) return skip("this build has no stb_image");
  const Folder folder;
  std::mt19937 random(2);
  for (const unsigned colors : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 128u, 129u, 255u, 256u}) {
    CAPTURE(colors);
    Tensor rgb = at::empty({1, 97, 131, 3}, at::kByte);
    auto* out = rgb.data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < 97 * 131; ++i) {
      const auto level = static_cast<std::uint8_t>(random() % colors);
      out[i * 3] = level;
      out[i * 3 + 1] = static_cast<std::uint8_t>(255 - level);
      out[i * 3 + 2] = static_cast<std::uint8_t>(level * 7);
    }
    const fs::path path = write_clip(folder, "a.gif", rgb);
    CHECK(at::equal(read_image(path), rgb[0]));
  }
}

TEST_SUITE_END();

TEST_CASE("a photograph is dithered to 256 colours close to it") {
  const Tensor rgb = photograph(120, 160);
  Quantizer quantizer;
  const Quantizer::Indexed frame = quantizer.reduce(bytes_of(rgb), 120, 160);
  CHECK(frame.palette->size() == 256);
  Tensor again = at::empty({120, 160, 3}, at::kByte);
  auto* out = again.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < frame.indices.size(); ++i) {
    for (std::size_t c = 0; c < 3; ++c) out[i * 3 + c] = (*frame.palette)[frame.indices[i]][c];
  }
  CHECK(mean_gap(again, rgb) < 8);
  // Dithering keeps what the eye adds up.
  const auto blocks = [](const Tensor& x) {
    return x.to(at::kFloat).reshape({15, 8, 20, 8, 3}).mean({1, 3});
  };
  CHECK((blocks(again) - blocks(rgb)).abs().mean().item<double>() < 1.0);
}

TEST_CASE("a palette stays while it fits") {
  const Tensor first = photograph(64, 64), second = photograph(64, 64).flip({1}).contiguous(),
               other = (255 - first.to(at::kInt)).to(at::kByte).contiguous();
  Quantizer quantizer;
  const Palette before = *quantizer.reduce(bytes_of(first), 64, 64).palette;
  CHECK((*quantizer.reduce(bytes_of(second), 64, 64).palette == before));
  CHECK((*quantizer.reduce(bytes_of(other), 64, 64).palette != before));
}

TEST_CASE("a GIF that ends early is not whole") {
  const Folder folder;
  const std::vector<std::uint8_t> bytes =
      read_file_bytes(write_clip(folder, "a.gif", moving_frames(3, 20, 20)));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const GifBlocks blocks = read_gif_blocks(std::span(bytes).first(size));
    CHECK_FALSE(blocks.whole);
    CHECK(blocks.frames <= 3);
  }
  CHECK(read_gif_blocks(bytes).whole);
}

}  // namespace
