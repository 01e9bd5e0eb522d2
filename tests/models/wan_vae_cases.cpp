#include "tests/models/wan_vae_cases.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/ops/conv3d.h"
#include "lib/tensor/noise.h"
#include "lib/verify/trace_compare.h"
#include "tests/verify/goldens.h"

namespace diptych::wan_vae_cases {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWithin[] = {"encoder", "decoder", "conv1",   "down",   "middle", "up",
                                        "out",     "mu",      "log_var", "latent", "video"};
constexpr TraceNames kNames = {{}, kWithin, {}, {}};

// Under the names of the golden data: "decode_clip.chunk0.decoder.up0".
WanVaeObserver record_to(NamedTensors& trace, const std::string& request) {
  return [&trace, request](std::int64_t chunk, std::string_view name, const Tensor& value) {
    trace.emplace(fmt::format("{}.chunk{}.{}", request, chunk, name), value.cpu().clone());
  };
}

void trace_decode(const WanVae& vae, const std::string& request, const Tensor& latent,
                  NamedTensors& trace) {
  WanVaeDecoder decoder(vae, latent, record_to(trace, request));
  std::vector<Tensor> frames, levels;
  while (decoder.has_next()) {
    frames.push_back(decoder.next().cpu());
    levels.push_back(frames_to_uint8(frames.back()));
  }
  trace.emplace(request + ".video", at::cat(frames, 1));
  trace.emplace(request + ".frames_u8", at::cat(levels));
}

void trace_encode(const WanVae& vae, const std::string& request, const Tensor& video,
                  const Tensor& eps, NamedTensors& trace) {
  const WanVaeMoments moments = vae.encode(video, record_to(trace, request));
  trace.emplace(request + ".mu", moments.mu.cpu());
  trace.emplace(request + ".log_var", moments.log_var.cpu());
  trace.emplace(request + ".latent", moments.latent(eps.to(moments.mu.device())).cpu());
}

NamedTensors run_recorded(const WanVae& vae, const NamedTensors& inputs) {
  NamedTensors trace;
  for (const auto& [name, value] : inputs) {
    const std::size_t dot = name.find('.');
    const std::string request = name.substr(0, dot), leaf = name.substr(dot);
    if (leaf == ".latent") trace_decode(vae, request, value, trace);
    if (leaf == ".video") trace_encode(vae, request, value, inputs.at(request + ".eps"), trace);
  }
  trace.emplace("scale.mean", vae.mean.cpu());
  trace.emplace("scale.inv_std", vae.inverse_std.cpu());
  return trace;
}

}  // namespace

fs::path checkpoint() {
  return fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/lance/checkpoint/Wan2.2_VAE.pth";
}

WanVae load(const On& on) {
  const Weights weights = Weights::open(checkpoint(), on.device, on.precision.maps);
  return WanVae::load(weights, WanVaeConfig::infer(weights), {on.kernels, on.precision.is_tf32()});
}

namespace {

void take_conv3d(std::vector<WanVaeResidualBlock>& blocks) {
  for (WanVaeResidualBlock& block : blocks) {
    for (WanVaeConv* conv : {&block.conv1, &block.conv2}) {
      conv->in_kernel = true;
      conv->pairs = conv3d_pair_weight(conv->weight)
                        .to(conv->dtype())
                        .contiguous(at::MemoryFormat::ChannelsLast3d);
      conv->weight = conv->pairs.narrow(2, kPairedTaps - 3, 3);
    }
  }
}

void take_conv3d(WanVaeMiddle& middle) {
  for (WanVaeResidualBlock* block : {&middle.block_0, &middle.block_2})
    block->conv1.in_kernel = block->conv2.in_kernel = true;
}

}  // namespace

void take_conv3d(WanVae& vae) {
  for (WanVaeConv* conv :
       {&vae.encoder.conv1, &vae.encoder.head.conv, &vae.decoder.conv1, &vae.decoder.head.conv})
    conv->in_kernel = true;
  take_conv3d(vae.encoder.middle);
  take_conv3d(vae.decoder.middle);
  for (WanVaeDownStage& stage : vae.encoder.downsamples) take_conv3d(stage.blocks);
  for (WanVaeUpStage& stage : vae.decoder.upsamples) {
    take_conv3d(stage.blocks);
    if (!stage.upsample) continue;
    WanVaeUpsample& up = *stage.upsample;
    if (up.time_conv) up.time_conv->in_kernel = true;
    up.phases = wan_vae_upsample_phases(up.resample.weight).to(up.input_dtype());
    up.resample.weight.reset();
  }
}

Tensor draw(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = cpu_generator(seed);
  return randn(shape, generator);
}

Tensor decode(const WanVae& vae, const Tensor& latent) {
  WanVaeDecoder decoder(vae, latent);
  std::vector<Tensor> frames;
  while (decoder.has_next()) frames.push_back(decoder.next().cpu());
  return at::cat(frames, 1);
}

double relative_norm(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

std::size_t check_recorded(const On& on, const fs::path& folder) {
  const NamedTensors expected = read_trace(folder / "expected.safetensors");
  const NamedTensors found = run_recorded(load(on), read_trace(folder / "inputs.safetensors"));
  Tolerances tolerances = Tolerances::from_case(test::case_json(folder), kNames);
  tolerances.set("*.frames_u8", 1);  // case.json: "u8:*.frames_u8"
  const auto comparison = compare_traces(found, expected, tolerances, kNames);
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  CHECK(comparison.pass());
  return expected.size();
}

void check_beginnings(const On& on) {
  const WanVae vae = load(on);
  const Tensor latent = draw({4, 3, 5, 48}, 1);
  const Tensor frames = decode(vae, latent);
  CHECK(frames.sizes() == at::IntArrayRef({3, 13, 48, 80}));
  CHECK(frames.std().item<double>() > 0.1);
  for (const std::int64_t t : {1, 3}) {
    CHECK(decode(vae, latent.narrow(0, 0, t)).equal(frames.narrow(1, 0, WanVaeConfig::frames(t))));
  }
  // Steps that are looked at are the same.
  std::int64_t steps = 0;
  const WanVaeObserver observer = [&](std::int64_t, std::string_view, const Tensor& value) {
    steps += value.numel() > 0 ? 1 : 0;
  };
  WanVaeDecoder observed(vae, latent, observer);
  CHECK(observed.next().cpu().equal(frames.narrow(1, 0, 1)));
  CHECK(observed.next().cpu().equal(frames.narrow(1, 1, 4)));
  CHECK(steps > 10);

  const Tensor video = draw({3, 13, 80, 16}, 2).clamp(-1, 1);
  const WanVaeMoments all = vae.encode(video);
  CHECK(vae.encode(video, observer).mu.equal(all.mu));
  CHECK(all.mu.sizes() == at::IntArrayRef({48, 4, 5, 1}));
  for (const std::int64_t length : {1, 4, 7, 9}) {
    CAPTURE(length);
    const WanVaeMoments some = vae.encode(video.narrow(1, 0, length));
    const std::int64_t t = WanVaeConfig::latent_frames(length);
    CHECK(t == 1 + (length - 1) / 4);
    CHECK(some.mu.equal(all.mu.narrow(1, 0, t)));
    CHECK(some.log_var.equal(all.log_var.narrow(1, 0, t)));
  }
}

void check_bfloat16(const On& on) {
  const WanVae exact = load({on.device, at::kFloat, on.kernels});
  const WanVae vae = load({on.device, at::kBFloat16, on.kernels});
  const Tensor latent = draw({3, 4, 5, 48}, 3);
  const Tensor frames = decode(exact, latent);
  const double decoded = relative_norm(decode(vae, latent), frames);
  const WanVaeMoments expected = exact.encode(frames), found = vae.encode(frames);
  CHECK((found.mu.scalar_type() == at::kFloat));
  const double mu = relative_norm(found.mu, expected.mu);
  const double log_var = relative_norm(found.log_var, expected.log_var);
  MESSAGE("bfloat16: decoded " << decoded << ", mu " << mu << ", log_var " << log_var);
  const auto check = [](double difference, double limit) {
    CHECK(difference > 1e-4);  // another computation
    CHECK(difference < limit);
  };
  // On the CPU 0.027, 0.047 and 0.0069 were measured; the official code's decode of case 13 is
  // 0.016 away.
  check(decoded, 0.05);
  check(mu, 0.09);
  check(log_var, 0.014);
}

void check_tf32(const WanVae& exact, const WanVae& vae, const Tensor& latent, double limit) {
  CHECK((vae.encoder.conv1.bias.scalar_type() == at::kHalf));
  CHECK((vae.mean.scalar_type() == at::kFloat));
  const Tensor frames = decode(exact, latent), found = decode(vae, latent);
  const Tensor levels = frames_to_uint8(frames).to(at::kInt);
  const Tensor apart = (frames_to_uint8(found).to(at::kInt) - levels).abs();
  CHECK(levels.to(at::kFloat).std().item<double>() > 5);
  const WanVaeMoments moments = vae.encode(frames), expected = exact.encode(frames);
  const double mu = relative_norm(moments.mu, expected.mu);
  const double log_var = relative_norm(moments.log_var, expected.log_var);
  MESSAGE("tf32: decoded " << relative_norm(found, frames) << ", another level in "
                           << apart.to(at::kFloat).mean().item<double>() << ", mu " << mu
                           << ", log_var " << log_var);
  CHECK(!found.equal(frames));  // another computation
  CHECK(apart.max().item<int>() <= 1);
  CHECK(relative_norm(found, frames) < 0.0025);  // on the CPU 0.0010 to 0.0015
  CHECK(mu > 0);
  CHECK(mu < limit);
  CHECK(log_var < limit);
}

}  // namespace diptych::wan_vae_cases
