// The autoencoder with whole maps and with strips: the same picture, and how much memory each
// takes.
#include "lib/models/flux_vae/flux_vae.h"

#include <array>
#include <filesystem>

#include <doctest/doctest.h>

#include "lib/media/image_transform.h"
#include "lib/models/flux_vae/memory.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/tf32.h"
#include "tests/support/peak_bytes.h"

namespace diptych {
namespace {

const std::filesystem::path kCheckpoint =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

FluxVae tiny_vae(const VaeCompute& compute = {}) {
  const Weights weights = Weights::open(kCheckpoint / "ae.safetensors", at::kCPU, at::kFloat);
  return FluxVae::load(weights, FluxVaeConfig::infer(weights), compute);
}

// What tensor cores are given is rounded, what they compute is not: the CPU's products do the rest.
constexpr VaeCompute kTf32 = {.tf32 = true, .kernels = KernelPolicy::reference};

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

TEST_CASE("TF32 gives the picture of float32 but for a level, whole and in strips") {
  const FluxVae exact = tiny_vae(), vae = tiny_vae(kTf32);
  for (const auto& [n, h, w] : {std::array<std::int64_t, 3>{1, 7, 9}, {1, 1, 1}, {1, 16, 12}}) {
    CAPTURE(h);
    const Tensor latent = draw({n, 16, h, w}, 11);
    const Tensor expected = exact.decode(latent);
    const Tensor image = expected.clamp(-1, 1);
    const Tensor moments = exact.encode_moments(image);
    for (const auto& strips : {std::optional<VaeStrips>(), {VaeStrips{1}}, {VaeStrips{30000}}}) {
      const Tensor decoded = vae.decode(latent, {}, strips);
      CHECK(decoded.is_contiguous());
      CHECK(difference(decoded, expected) < 3e-3);
      CHECK(difference(decoded, expected) > 1e-6);  // another computation
      const Tensor apart = (to_uint8(decoded).to(at::kInt) - to_uint8(expected).to(at::kInt)).abs();
      CHECK(apart.max().item<int>() <= 1);
      // One pixel is all that the middle's statistics are of, so they magnify any rounding.
      if (h * w > 1) CHECK(difference(vae.encode_moments(image, {}, strips), moments) < 3e-3);
    }
  }
}

TEST_CASE("TF32 is on while a pass runs, and as it was behind it") {
  const auto allowed = [] {
    return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV) &&
           at::globalContext().allowTF32CuBLAS();
  };
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
  bool during = false, in_float32 = true;
  const Tensor latent = draw({1, 16, 2, 2}, 12);
  tiny_vae(kTf32).decode(latent, [&](std::string_view, const Tensor&) { during = allowed(); });
  CHECK(during);
  CHECK_FALSE(allowed());
  tiny_vae().decode(latent, [&](std::string_view, const Tensor&) { in_float32 = allowed(); });
  CHECK_FALSE(in_float32);
  const auto stop = [](std::string_view, const Tensor&) { throw std::runtime_error("stop"); };
  CHECK_THROWS_AS(tiny_vae(kTf32).decode(latent, stop), std::runtime_error);
  CHECK_FALSE(allowed());
}

TEST_CASE("values rounded to TF32") {
  const Tensor x = at::tensor({1.0F, 1.0003F, 1.0006F, -1.0006F, 3e-20F, 0.0F, 65519.0F});
  const Tensor rounded = round_to_tf32(x);
  CHECK(rounded.view(at::kInt).bitwise_and(0x1fff).eq(0).all().item<bool>());
  CHECK(((rounded - x).abs() <= x.abs() * 0x1p-11).all().item<bool>());
  CHECK(rounded[1].item<float>() == 1.0F);
  CHECK(rounded[2].item<float>() == 1.0009765625F);
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
