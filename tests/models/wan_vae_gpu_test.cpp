// The Wan 2.2 autoencoder on the GPU: the recorded values, and the released sizes in the planned
// memory.
#include <doctest/doctest.h>

#include "lib/models/wan_vae/memory.h"
#include "lib/runtime/runtime.h"
#include "tests/models/wan_vae_cases.h"
#include "tests/support/peak_bytes.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace cases = wan_vae_cases;

// As a run resolves it: exact float32, no TF32.
at::Device gpu() {
  Log log(LogLevel::quiet);
  return resolve_device({DeviceChoice::Kind::numbered, 0}, log);
}

cases::On on_gpu(WanVaePrecision precision) {
  return {gpu(), precision, KernelPolicy::strict};
}

// Near the plan from either side: cuDNN may take a workspace for a convolution.
void check_memory(std::int64_t found, std::int64_t planned) {
  CAPTURE(found);
  CAPTURE(planned);
  CHECK(static_cast<double>(found) < 1.25 * static_cast<double>(planned));
  CHECK(static_cast<double>(found) > 0.75 * static_cast<double>(planned));
}

bool has_kernels(at::ScalarType products, KernelPolicy kernels) {
  return WanVaePrecision(products).on(gpu(), kernels).conv3d;
}

}  // namespace

TEST_CASE("case 08 on the GPU: encoder, decoder and their stages") {
  for (const auto& folder : test::goldens_of("lance"))
    CHECK(cases::check_recorded(on_gpu(at::kFloat), folder / "cases/08_vae") >= 47);
}

TEST_CASE("a clip's beginning does not depend on what follows it on the GPU") {
  cases::check_beginnings(on_gpu(at::kFloat));
  cases::check_beginnings(on_gpu(at::kBFloat16));
}

TEST_CASE("bfloat16 stays near float32 on the GPU") {
  cases::check_bfloat16(on_gpu(at::kFloat));
}

TEST_CASE("tf32 stays within one level of float32 on the GPU") {
  const cases::On on = on_gpu(WanVaePrecision::tf32());
  cases::check_beginnings(on);
  cases::check_tf32(cases::load(on_gpu(at::kFloat)), cases::load(on), cases::draw({3, 4, 5, 48}, 3),
                    1);
}

// At the released widths: by conv3d() of lib/ops where it has kernels, and by cuDNN, where the
// narrowest convolutions are split into taps.
TEST_CASE("tf32 of Wan 2.1 and 2.2 is within one level of float32 at the released widths") {
  for (const WanVaeConfig& config : {WanVaeConfig::wan21(), WanVaeConfig::wan22()}) {
    CAPTURE(config.z_dim);
    const Weights weights = Weights::dummy(gpu(), at::kFloat);
    const WanVae exact = WanVae::load(weights, config, {KernelPolicy::strict});
    for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
      const WanVae vae = WanVae::load(weights, config, {policy, /*tf32=*/true});
      const bool in_kernel = has_kernels(at::kHalf, policy), narrow = config.patch_size == 1;
      const WanVaeConv& last = vae.decoder.upsamples.back().blocks.back().conv2;
      CHECK(last.in_kernel == in_kernel);
      CHECK(last.taps.size() == (narrow && !in_kernel ? 3 : 0));
      cases::check_tf32(exact, vae, cases::draw({3, 8, 12, config.z_dim}, 3), 0.012);
    }
  }
}

// Where the shortcut of a stage is added within conv3d().
TEST_CASE("bfloat16 of Wan 2.2 is as near to float32 by kernels as by reference") {
  const WanVaeConfig config = WanVaeConfig::wan22();
  const auto decoded = [&](at::ScalarType dtype, KernelPolicy kernels) {
    const WanVae vae = WanVae::load(Weights::dummy(gpu(), dtype), config, {kernels});
    CHECK(vae.decoder.upsamples[0].upsample->phases.defined() == has_kernels(dtype, kernels));
    return cases::decode(vae, cases::draw({3, 8, 12, config.z_dim}, 3));
  };
  const Tensor exact = decoded(at::kFloat, KernelPolicy::strict);
  const double found = cases::relative_norm(decoded(at::kBFloat16, KernelPolicy::strict), exact);
  const double reference =
      cases::relative_norm(decoded(at::kBFloat16, KernelPolicy::reference), exact);
  MESSAGE("bfloat16: by kernels " << found << ", by reference " << reference);
  CHECK(found > 1e-4);
  CHECK(found < 1.1 * reference);
}

TEST_CASE("tf32 at the released sizes on the GPU takes the planned memory") {
  const WanVaePrecision tf32 = WanVaePrecision::tf32().on(gpu(), KernelPolicy::strict);
  const std::int64_t width = 832, height = 480, t = 3;
  for (const WanVaeConfig& config : {WanVaeConfig::wan21(), WanVaeConfig::wan22()}) {
    CAPTURE(config.z_dim);
    const WanVae vae = WanVae::load(Weights::dummy(gpu(), tf32.maps), config,
                                    {KernelPolicy::strict, tf32.is_tf32()});
    const WanVaeClip clip{width, height, WanVaeConfig::frames(t)};
    const std::int64_t side = config.spatial();
    const Tensor latent = cases::draw({t, height / side, width / side, config.z_dim}, 1);
    Tensor frames;
    check_memory(peak_bytes([&] {
                   WanVaeDecoder decoder(vae, latent);
                   while (decoder.has_next()) frames = decoder.next();
                 }),
                 wan_vae_decode_bytes(config, clip, tf32));
    CHECK(frames.isfinite().all().item<bool>());
    const Tensor video = cases::draw({3, clip.frames, height, width}, 2).clamp(-1, 1);
    check_memory(peak_bytes([&] { vae.encode(video); }), wan_vae_encode_bytes(config, clip, tf32));
  }
}

TEST_CASE("the released sizes on the GPU take the planned memory, whatever the clip's length") {
  const WanVae vae = WanVae::load(Weights::dummy(gpu(), at::kBFloat16), WanVaeConfig::wan22(),
                                  {KernelPolicy::strict});
  const WanVaePrecision precision = WanVaePrecision(at::kBFloat16).on(gpu(), KernelPolicy::strict);
  const std::int64_t width = 832, height = 480;
  for (const std::int64_t t : {1, 3, 5}) {
    CAPTURE(t);
    const WanVaeClip clip{width, height, WanVaeConfig::frames(t)};
    const Tensor latent = cases::draw({t, height / 16, width / 16, 48}, 1);
    Tensor frames;
    check_memory(peak_bytes([&] {
                   WanVaeDecoder decoder(vae, latent);
                   while (decoder.has_next()) frames = decoder.next();
                 }),
                 wan_vae_decode_bytes(vae.config, clip, precision));
    CHECK(frames.std().item<double>() > 0.05);
    CHECK(frames.isfinite().all().item<bool>());
    const Tensor video = cases::draw({3, clip.frames, height, width}, 2).clamp(-1, 1);
    WanVaeMoments moments;
    check_memory(peak_bytes([&] { moments = vae.encode(video); }),
                 wan_vae_encode_bytes(vae.config, clip, precision));
    CHECK(moments.mu.sizes() == at::IntArrayRef({48, t, height / 16, width / 16}));
    CHECK(moments.mu.isfinite().all().item<bool>());
  }
}

}  // namespace diptych
