// The autoencoder on the GPU, with whole maps and with strips, at the released sizes.
#include <doctest/doctest.h>

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

}  // namespace

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
