// The autoencoder on the GPU, with whole maps and with strips, at the released sizes.
#include <doctest/doctest.h>

#include "lib/media/image_transform.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/models/flux_vae/memory.h"
#include "lib/runtime/runtime.h"
#include "tests/support/peak_bytes.h"

namespace diptych {
namespace {

// As a run resolves it: exact float32, no TF32.
at::Device gpu() {
  Log log(LogLevel::quiet);
  return resolve_device({DeviceChoice::Kind::numbered, 0}, log);
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

// Near the plan from either side: cuDNN may take a workspace for a convolution.
void check_memory(std::int64_t found, std::int64_t planned) {
  CHECK(static_cast<double>(found) < 1.2 * static_cast<double>(planned));
  CHECK(static_cast<double>(found) > 0.75 * static_cast<double>(planned));
}

FluxVae released(const VaeCompute& compute = {}) {
  return FluxVae::load(Weights::dummy(gpu(), at::kFloat), FluxVaeConfig(), compute);
}

constexpr VaeCompute kTf32 = {.tf32 = true, .kernels = KernelPolicy::strict};

Tensor draw(at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(gpu());
  return at::randn(shape, generator, at::TensorOptions().device(gpu()));
}

int levels_apart(const Tensor& a, const Tensor& b) {
  return (to_uint8(a).to(at::kInt) - to_uint8(b).to(at::kInt)).abs().max().item<int>();
}

}  // namespace

TEST_CASE("TF32 on the GPU: no pixel more than a level from float32's, whole and in strips") {
  const FluxVae exact = released(), vae = released(kTf32);
  for (const std::int64_t side : {256, 512}) {
    CAPTURE(side);
    const Tensor latent = draw({1, 16, side / 8, side / 8});
    const Tensor expected = exact.decode(latent);
    CHECK(expected.std().item<double>() > 0.1);
    for (const auto& strips :
         {std::optional<VaeStrips>(), {VaeStrips{}}, {VaeStrips{std::int64_t{4} << 20}}}) {
      const Tensor decoded = vae.decode(latent, {}, strips);
      CHECK(levels_apart(decoded, expected) <= 1);
      CHECK(difference(decoded, expected) > 1e-6);  // another computation
      CHECK(decoded.equal(vae.decode(latent, {}, strips)));
    }
    const Tensor image = expected.clamp(-1, 1);
    CHECK(difference(vae.encode_moments(image), exact.encode_moments(image)) < 5e-3);
    CHECK(expected.equal(exact.decode(latent)));  // TF32 is off again
  }
}

TEST_CASE("TF32 on the GPU takes the planned memory") {
  const FluxVae vae = released(kTf32);
  const Tensor latent = draw({1, 16, 96, 128}), image = draw({1, 3, 768, 1024}).clamp(-1, 1);
  for (const auto& strips : {std::optional<VaeStrips>(), {VaeStrips{}}}) {
    check_memory(peak_bytes([&] { vae.decode(latent, {}, strips); }),
                 vae_decode_bytes(vae.config, 1024, 768, strips));
    check_memory(peak_bytes([&] { vae.encode_moments(image, {}, strips); }),
                 vae_encode_bytes(vae.config, 1024, 768, strips));
  }
}

TEST_CASE("strips on the GPU: the same picture in the planned memory") {
  const FluxVaeConfig config;
  const FluxVae vae = FluxVae::load(Weights::dummy(gpu(), at::kFloat), config);
  at::Generator generator = at::globalContext().defaultGenerator(gpu());
  const Tensor latent = at::randn({1, 16, 96, 128}, generator, at::TensorOptions().device(gpu()));
  const VaeStrips strips;

  Tensor whole, parts;
  const std::int64_t whole_bytes = peak_bytes([&] { whole = vae.decode(latent); });
  const std::int64_t parts_bytes = peak_bytes([&] { parts = vae.decode(latent, {}, strips); });
  CHECK(difference(parts, whole) < 5e-5);
  check_memory(whole_bytes, vae_decode_bytes(config, 1024, 768, {}));
  check_memory(parts_bytes, vae_decode_bytes(config, 1024, 768, strips));

  const Tensor image = whole.clamp(-1, 1);
  Tensor moments, parts_moments;
  const std::int64_t encode_whole = peak_bytes([&] { moments = vae.encode_moments(image); });
  const std::int64_t encode_parts =
      peak_bytes([&] { parts_moments = vae.encode_moments(image, {}, strips); });
  CHECK(difference(parts_moments, moments) < 5e-5);
  check_memory(encode_whole, vae_encode_bytes(config, 1024, 768, {}));
  check_memory(encode_parts, vae_encode_bytes(config, 1024, 768, strips));
}

TEST_CASE("strips on the GPU give the same bits again") {
  const FluxVae vae = FluxVae::load(Weights::dummy(gpu(), at::kFloat), FluxVaeConfig());
  const Tensor latent = at::ones({1, 16, 24, 40}, at::TensorOptions().device(gpu())).cumsum(3);
  const Tensor first = vae.decode(latent, {}, VaeStrips{1 << 22});
  CHECK(first.equal(vae.decode(latent, {}, VaeStrips{1 << 22})));
}

}  // namespace diptych
