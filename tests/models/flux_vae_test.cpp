// The autoencoder with whole maps and with strips: the same picture, and how much memory each
// takes.
#include "lib/models/flux_vae/flux_vae.h"

#include <array>
#include <filesystem>

#include <doctest/doctest.h>

#include "lib/models/flux_vae/memory.h"
#include "lib/tensor/noise.h"
#include "tests/support/peak_bytes.h"

namespace diptych {
namespace {

const std::filesystem::path kCheckpoint =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

FluxVae tiny_vae() {
  const Weights weights = Weights::open(kCheckpoint / "ae.safetensors", at::kCPU, at::kFloat);
  return FluxVae::load(weights, FluxVaeConfig::infer(weights));
}

Tensor draw(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = cpu_generator(seed);
  return randn(shape, generator);
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

}  // namespace

TEST_CASE("strips give the picture of whole maps") {
  const FluxVae vae = tiny_vae();
  // Strips of two rows and up; sides that no strip divides; a batch; one strip over all.
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{30000}, std::int64_t{1} << 26}) {
    for (const auto& [n, h, w] : {std::array<std::int64_t, 3>{1, 7, 9}, {2, 5, 3}, {1, 1, 1}}) {
      CAPTURE(bytes);
      CAPTURE(h);
      const VaeStrips strips{bytes};
      const Tensor latent = draw({n, 16, h, w}, 3);
      const Tensor whole = vae.decode(latent), parts = vae.decode(latent, {}, strips);
      CHECK(parts.sizes() == at::IntArrayRef({n, 3, 8 * h, 8 * w}));
      CHECK(difference(parts, whole) < 2e-6);
      CHECK(whole.std().item<double>() > 0.1);
      const Tensor image = draw({n, 3, 8 * h, 8 * w}, 4).clamp(-1, 1);
      CHECK(difference(vae.encode_moments(image, {}, strips), vae.encode_moments(image)) < 2e-6);
    }
  }
}

TEST_CASE("strips report every step that whole maps report") {
  const FluxVae vae = tiny_vae();
  const Tensor latent = draw({1, 16, 4, 6}, 5), image = draw({1, 3, 32, 48}, 6);
  std::vector<std::pair<std::string, Tensor>> whole;
  const VaeObserver keep = [&](std::string_view name, const Tensor& value) {
    whole.emplace_back(name, value.clone());
  };
  std::size_t next = 0;
  const VaeObserver compare = [&](std::string_view name, const Tensor& value) {
    REQUIRE(next < whole.size());
    CHECK(name == whole[next].first);
    CHECK(difference(value, whole[next].second) < 2e-6);
    ++next;
  };
  vae.decode(latent, keep);
  vae.encode_moments(image, keep);
  vae.decode(latent, compare, VaeStrips{20000});
  vae.encode_moments(image, compare, VaeStrips{20000});
  CHECK(next == whole.size());
  CHECK(next == 7 + 14);
}

TEST_CASE("a pass writes to no tensor it was given") {
  const FluxVae vae = tiny_vae();
  const Tensor latent = draw({1, 16, 4, 4}, 7), image = draw({1, 3, 32, 32}, 8);
  const Tensor latent_before = latent.clone(), image_before = image.clone();
  for (const std::optional<VaeStrips> strips : {std::optional<VaeStrips>(), {VaeStrips{1000}}}) {
    vae.decode(latent, {}, strips);
    vae.encode_moments(image, {}, strips);
  }
  CHECK(latent.equal(latent_before));
  CHECK(image.equal(image_before));
}

TEST_CASE("the memory of a pass is what memory.h says, and strips take half of it") {
  FluxVaeConfig config;  // the released levels, narrower
  config.ch = 32;
  const FluxVae vae = FluxVae::load(Weights::dummy(at::kCPU, at::kFloat), config);
  const std::int64_t width = 192, height = 128, map = 32 * width * height * 4;
  const Tensor latent = draw({1, 16, height / 8, width / 8}, 9);
  const Tensor image = draw({1, 3, height, width}, 10);
  const VaeStrips strips{std::int64_t{1} << 17};
  const auto check = [](std::int64_t found, std::int64_t expected) {
    CHECK(found <= expected);
    CHECK(static_cast<double>(found) > 0.9 * static_cast<double>(expected));
  };
  // On the CPU a convolution holds reordered copies of its input and weights besides.
  constexpr std::int64_t kWeights = 1 << 17;
  const std::int64_t decode_whole = peak_bytes([&] { vae.decode(latent); });
  const std::int64_t decode_strips = peak_bytes([&] { vae.decode(latent, {}, strips); });
  check(decode_whole, vae_decode_bytes(config, width, height, {}) + 2 * map + kWeights);
  check(decode_strips, vae_decode_bytes(config, width, height, strips));
  CHECK(decode_strips < decode_whole / 2);
  // The picture is given, not made, so it is not counted here.
  const std::int64_t encode_whole = peak_bytes([&] { vae.encode_moments(image); });
  const std::int64_t encode_strips = peak_bytes([&] { vae.encode_moments(image, {}, strips); });
  check(encode_whole,
        vae_encode_bytes(config, width, height, {}) - image.numel() * 4 + map + kWeights);
  check(encode_strips, vae_encode_bytes(config, width, height, strips) - image.numel() * 4);
}

TEST_CASE("the released sizes: 2.5 GiB to decode 1024x1024, 1.7 GiB in strips") {
  const FluxVaeConfig config;
  constexpr std::int64_t kMebi = 1 << 20;
  // Level 0: 256 channels in, 128 out, of 4 MiB a channel: input, its normed copy, output.
  CHECK(vae_decode_bytes(config, 1024, 1024, {}) == (1024 + 1024 + 512) * kMebi);
  CHECK(vae_decode_bytes(config, 1024, 1024, VaeStrips{}) == (1024 + 512 + 3 * 64) * kMebi);
  CHECK(vae_encode_bytes(config, 1024, 1024, {}) == (3 * 512 + 12) * kMebi);
  CHECK(vae_encode_bytes(config, 1024, 1024, VaeStrips{}) == (2 * 512 + 3 * 64 + 12) * kMebi);
  CHECK(vae_decode_bytes(config, 512, 256, {}) == (1024 + 1024 + 512) * kMebi / 8);
}

}  // namespace diptych
