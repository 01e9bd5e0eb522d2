#include "lib/models/wan_vae/wan_vae.h"

#include <doctest/doctest.h>

#include "lib/models/wan_vae/memory.h"
#include "lib/tensor/safetensors.h"
#include "lib/verify/trace_compare.h"
#include "tests/models/wan_vae_cases.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace cases = wan_vae_cases;
namespace fs = std::filesystem;

using Change = std::function<void(NamedTensors& tensors)>;

// What loading says of the tiny checkpoint with something changed.
std::string refusal(const Change& change) {
  NamedTensors tensors;
  const TensorFile released = TensorFile::open(cases::checkpoint());
  for (const auto& [name, entry] : released.entries()) tensors.emplace(name, released.view(name));
  change(tensors);
  const test::Folder folder;
  const fs::path file = folder / "vae.safetensors";
  const std::vector<std::pair<std::string, Tensor>> list(tensors.begin(), tensors.end());
  write_safetensors(file, list);
  return test::message_of([&] {
    const Weights weights = Weights::open(file, at::kCPU, at::kFloat);
    WanVae::load(weights, WanVaeConfig::infer(weights));
  });
}

void check_refusal(const Change& change, std::string_view part) {
  const std::string message = refusal(change);
  CAPTURE(message);
  CHECK(message.find(part) != std::string::npos);
}

// The released stages, narrower.
WanVaeConfig narrow_config() {
  WanVaeConfig config = WanVaeConfig::wan22();
  config.base_dim = 32;
  config.decoder_base_dim = 32;
  return config;
}

}  // namespace

TEST_CASE("case 08: encoder, decoder and their stages, chunk by chunk") {
  for (const fs::path& folder : test::goldens_of("lance"))
    CHECK(cases::check_recorded({}, folder / "cases/08_vae") >= 47);
}

TEST_CASE("the latents of other recorded cases become their frames") {
  const WanVae vae = cases::load({});
  for (const fs::path& folder : test::goldens_of("lance")) {
    for (const char* name : {"01_t2i", "02_t2v", "03_i2v", "04_image_edit"}) {
      const fs::path file = folder / "cases" / name / "expected.safetensors";
      if (!fs::exists(file)) continue;
      CAPTURE(name);
      const NamedTensors recorded = read_trace(file);
      if (!recorded.contains("latent.final")) continue;
      const Tensor video = cases::decode(vae, recorded.at("latent.final"));
      for (const auto& [key, expected] : recorded) {
        if (!key.starts_with("vae_decode.video")) continue;
        const std::int64_t stride = key.ends_with("4") ? 4 : key.ends_with("8") ? 8 : 1;
        const Tensor found =
            video.slice(2, 0, std::nullopt, stride).slice(3, 0, std::nullopt, stride);
        CHECK((found - expected).abs().max().item<double>() < 2e-5);
      }
    }
  }
}

TEST_CASE("a clip's beginning does not depend on what follows it") {
  cases::check_beginnings({});
}

TEST_CASE("bfloat16 stays near float32") {
  cases::check_bfloat16({});
}

TEST_CASE("bfloat16 is as near to float32 as the official code's" *
          doctest::test_suite("needs goldens")) {
  const fs::path file = test::goldens_of("lance").back() / "cases/13_t2i_bf16/expected.safetensors";
  if (!fs::exists(file)) return test::skip("the full recordings are not here");
  const NamedTensors recorded = read_trace(file);
  const Tensor &latent = recorded.at("latent.final"), &official = recorded.at("vae_decode.video");
  const Tensor exact = cases::decode(cases::load({}), latent);
  const Tensor found = cases::decode(cases::load({at::kCPU, at::kBFloat16}), latent);
  const double theirs = cases::relative_norm(official, exact);
  const double ours = cases::relative_norm(found, exact);
  MESSAGE("official " << theirs << ", ours " << ours);
  CHECK(ours < 2 * theirs);
}

TEST_CASE("tf32 stays within one level of float32") {
  const WanVae exact = cases::load({}), vae = cases::load({at::kCPU, WanVaePrecision::tf32()});
  cases::check_tf32(exact, vae, cases::draw({3, 4, 5, 48}, 3), 0.008);
  const NamedTensors recorded =
      read_trace(test::goldens_of("lance").front() / "cases/08_vae/inputs.safetensors");
  for (const auto& [name, value] : recorded) {
    if (name.ends_with(".latent")) cases::check_tf32(exact, vae, value, 0.008);
  }
}

TEST_CASE("in tf32, too, a clip's beginning does not depend on what follows it") {
  cases::check_beginnings({at::kCPU, WanVaePrecision::tf32()});
}

TEST_CASE("tf32 in tiles is near float32 in the same tiles") {
  const WanVae exact = cases::load({}), vae = cases::load({at::kCPU, WanVaePrecision::tf32()});
  const Tensor latent = cases::draw({2, 3, 4, 48}, 13);
  const auto decode = [&](const WanVae& of) {
    WanVaeDecoder decoder(of, latent, WanVaeTiling{32, 32, 16, 16});
    std::vector<Tensor> frames;
    while (decoder.has_next()) frames.push_back(decoder.next());
    return frames_to_uint8(at::cat(frames, 1)).to(at::kInt);
  };
  CHECK((decode(vae) - decode(exact)).abs().max().item<int>() <= 1);
}

TEST_CASE("weights for tf32 are read in float32") {
  CHECK_THROWS_AS(WanVae::load(Weights::dummy(at::kCPU, at::kBFloat16), narrow_config(),
                               {KernelPolicy::automatic, /*tf32=*/true}),
                  c10::Error);
}

TEST_CASE("a convolution's taps one by one make what it makes") {
  const Weights weights = Weights::dummy(at::kCPU, at::kFloat);
  const Tensor x = cases::draw({4, 5, 6, 8}, 21);
  for (const bool tf32 : {false, true}) {
    CAPTURE(tf32);
    const WanVaeConv conv = WanVaeConv::load(weights, 12, 8, 3, 3, {KernelPolicy::automatic, tf32});
    WanVaeConv split = conv;
    split.split_taps();
    CHECK(split.taps.size() == 3);
    CHECK(split.taps[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    WanVaeHistory one, other;
    for (const std::int64_t first : {0, 1, 3}) {  // alone, of two frames, behind history
      const std::int64_t count = first == 1 ? 2 : 1;
      one.begin_chunk(false);
      other.begin_chunk(false);
      const Tensor expected = conv.forward(x.narrow(0, first, count), one);
      const Tensor found = split.forward(x.narrow(0, first, count), other);
      CHECK((found.scalar_type() == (tf32 ? at::kHalf : at::kFloat)));
      CHECK(cases::relative_norm(found.to(at::kFloat), expected.to(at::kFloat)) <
            (tf32 ? 1e-3 : 1e-6));
    }
  }
  CHECK(wan_vae_splits_taps(96, 96, at::kHalf));
  CHECK(wan_vae_splits_taps(96, 96, at::kBFloat16));
  CHECK(!wan_vae_splits_taps(96, 96, at::kFloat));
  CHECK(!wan_vae_splits_taps(96, 192, at::kHalf));
}

TEST_CASE("phases make what a convolution of doubled pixels makes") {
  const std::int64_t h = 3, w = 4, in = 5, out = 6;
  const Tensor weight = cases::draw({out, in, 3, 3}, 31), x = cases::draw({2, in, h, w}, 32);
  const Tensor doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3);
  const Tensor expected = at::conv2d(doubled, weight, {}, 1, 1);
  const Tensor phases = wan_vae_upsample_phases(weight);
  CHECK(phases.sizes() == at::IntArrayRef({4, out, 1, 2, 2, in}));
  const Tensor padded = at::constant_pad_nd(x, {1, 1, 1, 1});
  for (const std::int64_t phase : {0, 1, 2, 3}) {
    const std::int64_t row = phase / 2, column = phase % 2;
    const Tensor seen = padded.narrow(2, row, h + 1).narrow(3, column, w + 1);
    const Tensor found = at::conv2d(seen, phases[phase].select(1, 0).permute({0, 3, 1, 2}));
    const Tensor there = expected.view({2, out, h, 2, w, 2}).select(5, column).select(3, row);
    CHECK(cases::relative_norm(found, there) < 1e-6);
  }
}

TEST_CASE("an autoencoder by conv3d() makes what one by libtorch makes") {
  const Tensor latent = cases::draw({3, 4, 5, 48}, 3);
  const WanVae exact = cases::load({});
  const Tensor frames = cases::decode(exact, latent);
  const WanVaeMoments moments = exact.encode(frames);
  const auto check = [&](WanVaePrecision precision, double decoded, double encoded) {
    WanVae vae = cases::load({at::kCPU, precision});
    const double before = cases::relative_norm(cases::decode(vae, latent), frames);
    cases::take_conv3d(vae);
    const Tensor found = cases::decode(vae, latent);
    CAPTURE(before);
    CHECK(cases::relative_norm(found, frames) < decoded);
    CHECK(cases::relative_norm(vae.encode(frames).mu, moments.mu) < encoded);
    // A picture, and a chunk that follows no other.
    CHECK(cases::relative_norm(cases::decode(vae, latent.narrow(0, 0, 1)), frames.narrow(1, 0, 1)) <
          decoded);
  };
  check(at::kFloat, 1e-5, 1e-5);
  check(WanVaePrecision::tf32(), 0.0025, 0.008);
  check(at::kBFloat16, 0.05, 0.09);
}

TEST_CASE("a decoder gives one frame, then four at a time, and ends") {
  const WanVae vae = cases::load({});
  const Tensor latent = cases::draw({3, 1, 2, 48}, 5), before = latent.clone();
  WanVaeDecoder first(vae, latent), second(vae, latent);
  std::vector<std::int64_t> counts;
  while (first.has_next()) {
    const Tensor frames = first.next();
    CHECK(frames.is_contiguous());
    CHECK((frames.abs().max() <= 1).item<bool>());
    CHECK(frames.equal(second.next()));  // two at once do not disturb each other
    counts.push_back(frames.size(1));
  }
  CHECK(counts == std::vector<std::int64_t>{1, 4, 4});
  CHECK_THROWS_AS(first.next(), c10::Error);
  CHECK(latent.equal(before));
}

TEST_CASE("an observer may end a pass") {
  const WanVae vae = cases::load({});
  const auto stop = [](std::int64_t chunk, std::string_view name, const Tensor&) {
    if (chunk == 1 && name.ends_with("middle1")) throw std::runtime_error("stop");
  };
  WanVaeDecoder decoder(vae, cases::draw({2, 1, 1, 48}, 6), stop);
  CHECK(decoder.next().sizes() == at::IntArrayRef({3, 1, 16, 16}));
  CHECK_THROWS_WITH_AS(decoder.next(), "stop", std::runtime_error);
  CHECK_THROWS_WITH_AS(vae.encode(at::zeros({3, 5, 16, 16}), stop), "stop", std::runtime_error);
}

TEST_CASE("clips and latents of other shapes are refused") {
  const WanVae vae = cases::load({});
  for (const auto& shape : {std::vector<std::int64_t>{3, 1, 24, 16},
                            {3, 1, 16, 8},
                            {3, 0, 16, 16},
                            {1, 1, 16, 16},
                            {3, 16, 16},
                            {3, 1, 0, 16}}) {
    CAPTURE(shape.size());
    CHECK_THROWS_AS(vae.encode(at::zeros(shape)), c10::Error);
  }
  for (const auto& shape : {std::vector<std::int64_t>{1, 2, 2, 16}, {0, 2, 2, 48}, {2, 2, 48}})
    CHECK_THROWS_AS(WanVaeDecoder(vae, at::zeros(shape)), c10::Error);
}

TEST_CASE("a checkpoint that is not the release's names the tensor") {
  CHECK(refusal([](NamedTensors&) {}) == "no error");
  check_refusal([](NamedTensors& all) { all.erase("decoder.middle.1.norm.gamma"); },
                "tensor \"decoder.middle.1.norm.gamma\" is missing");
  check_refusal([](NamedTensors& all) { all.emplace("decoder.extra", at::zeros({2})); },
                "decoder.extra");
  check_refusal(
      [](NamedTensors& all) {
        all.at("encoder.downsamples.1.downsamples.2.time_conv.weight") = at::zeros({6, 6, 1, 1, 1});
      },
      "time_conv.weight\" has shape [6, 6, 1, 1, 1], expected [6, 6, 3, 1, 1]");
  check_refusal(
      [](NamedTensors& all) {
        all.at("conv2.weight") = at::zeros({16, 16, 1, 1, 1});
      },
      "conv2.weight: 16 latent channels, expected 48");
  check_refusal([](NamedTensors& all) { all.at("encoder.conv1.weight") = at::zeros({0}); },
                "encoder.conv1.weight: has shape [0], expected 5 dimensions");
  check_refusal(
      [](NamedTensors& all) {
        all.at("encoder.conv1.weight") = at::zeros({3, 3, 3, 3, 3});
      },
      "\"encoder.conv1.weight\" has shape [3, 3, 3, 3, 3], expected [3, 12, 3, 3, 3]");
}

TEST_CASE("frames become levels, half to even") {
  const auto at_level = [](float level) { return 2 * (level / 255) - 1; };
  const Tensor frames = at::tensor({-2.0F, -1.0F, 1.0F, 3.0F, 0.0F, at_level(126.5F),
                                    at_level(126.4F), at_level(126.6F), -0.5F, 0.5F, 0.25F, 0.1F})
                            .view({3, 1, 2, 2});
  const Tensor levels = frames_to_uint8(frames);
  CHECK(levels.sizes() == at::IntArrayRef({1, 2, 2, 3}));
  CHECK((levels.scalar_type() == at::kByte));
  const Tensor planes = levels.permute({3, 0, 1, 2}).flatten();  // colour by colour
  CHECK(planes.equal(
      at::tensor({0, 0, 255, 255, 128, 126, 126, 127, 64, 191, 159, 140}, at::kInt).to(at::kByte)));
}

TEST_CASE("the memory of a pass is what memory.h says, and does not grow with the clip") {
  const WanVaeConfig config = narrow_config();
  const WanVae vae = WanVae::load(Weights::dummy(at::kCPU, at::kFloat), config);
  // High enough that no wide convolution on the CPU takes a path with copies.
  const std::int64_t width = 32, height = 576;
  const auto check = [](std::int64_t found, std::int64_t planned) {
    CAPTURE(found);
    CAPTURE(planned);
    CHECK(static_cast<double>(found) < 1.02 * static_cast<double>(planned));
    CHECK(static_cast<double>(found) > 0.95 * static_cast<double>(planned));
  };
  for (const std::int64_t t : {1, 3, 4}) {
    CAPTURE(t);
    const WanVaeClip clip{width, height, WanVaeConfig::frames(t)};
    const Tensor latent = cases::draw({t, height / 16, width / 16, 48}, 7);
    check(peak_bytes([&] {
            WanVaeDecoder decoder(vae, latent);
            while (decoder.has_next()) decoder.next();
          }),
          wan_vae_decode_bytes(config, clip, at::kFloat));
    const Tensor video = cases::draw({3, clip.frames, height, width}, 8);
    check(peak_bytes([&] { vae.encode(video); }), wan_vae_encode_bytes(config, clip, at::kFloat));
  }
  const WanVaeClip clip{width, height, 9}, longer{width, height, 121};
  CHECK(wan_vae_decode_bytes(config, clip, at::kFloat) ==
        wan_vae_decode_bytes(config, longer, at::kFloat));
}

TEST_CASE("where conv3d() takes the narrow convolutions, no part of a sum is planned") {
  const WanVaeConfig config = WanVaeConfig::wan21();
  CHECK(!WanVaePrecision(at::kBFloat16).on(at::kCPU, KernelPolicy::automatic).conv3d);
  WanVaePrecision split = WanVaePrecision::tf32(), whole = split;
  whole.conv3d = true;
  // In maps of 96 channels and four frames in float16, at the most 7.5, of which three are parts of
  // a sum and one the reference's norm; and 6, of which two are the map that becomes of a sum and
  // two the frames in pairs.
  const std::int64_t parts = 3 * 2 * 832 * 480 * 96 * 2;
  CHECK(wan_vae_decode_bytes(config, {832, 480, 81}, split) -
            wan_vae_decode_bytes(config, {832, 480, 81}, whole) ==
        parts);
  // 3x3 taps of 384 -> 192, twice, and of 192 -> 96 become 16.
  const std::int64_t more = 7 * (2 * 384 * 192 + 192 * 96) * 2;
  // 3 taps in time become 5 in stages whose chunks have two or four frames.
  const std::int64_t paired =
      10 * 96 * 96 + 96 * 192 + 9 * 192 * 192 + 2 * 192 * 384 + 8 * 384 * 384;
  CHECK(wan_vae_weight_bytes(config, whole) - wan_vae_weight_bytes(config, split) ==
        more + 2 * 9 * paired * 2);
}

TEST_CASE("the released sizes: 5.6 GiB to decode 1280x704, 0.6 GiB to decode one frame of it") {
  const WanVaeConfig config = WanVaeConfig::wan22();
  CHECK(config.spatial() == 16);
  CHECK(wan_vae_weight_bytes(config, at::kFloat) == 4 * std::int64_t{704'688'668});
  // The last stage's first block: input, its normed copy, a norm before SiLU; 512 channels each.
  const std::int64_t pixels = 640 * 352, picture = 3 * 512 * pixels * 2;
  CHECK(wan_vae_decode_bytes(config, {1280, 704, 1}, at::kBFloat16) == picture);
  CHECK(wan_vae_decode_bytes(config, {1280, 704, 1}, at::kFloat) == 2 * picture);
  // Four frames of input, six of its normed copy, four of 256 channels of output; and two frames of
  // every convolution's input.
  const std::int64_t maps = (4 * 512 + 6 * 512 + 4 * 256) * pixels * 2;
  const std::int64_t clip = wan_vae_decode_bytes(config, {1280, 704, 121}, at::kBFloat16);
  const std::int64_t latent = 80 * 44;
  const std::int64_t kept = 48 + (4 + 7) * 1024 + 4 * 7 * 1024 + 16 * (1024 + 5 * 512) +
                            64 * (512 + 5 * 256 + 256);  // channels, in frames of a latent's size
  CHECK(clip - maps == 2 * kept * latent * 2);
}

TEST_CASE("the memory of tf32: float32 maps, and what convolutions read and make in float16") {
  const WanVaeConfig config = WanVaeConfig::wan22();
  const WanVaePrecision tf32 = WanVaePrecision::tf32();
  CHECK((tf32.name() == VaeDtype::tf32));
  CHECK((WanVaePrecision(at::kBFloat16).name() == VaeDtype::bfloat16));
  CHECK((WanVaePrecision().name() == VaeDtype::float32));
  // The last stage's first block of one frame: input, its normed copy, the norm ahead of it.
  const std::int64_t pixels = 640 * 352;
  CHECK(wan_vae_decode_bytes(config, {1280, 704, 1}, tf32) == 512 * pixels * (4 + 2 + 4));
  const auto bytes = [](const WanVae& vae) {
    std::int64_t sum = 0;
    for (const WanVaeUpStage& stage : vae.decoder.upsamples) {
      for (const WanVaeResidualBlock& block : stage.blocks)
        sum += static_cast<std::int64_t>(block.conv1.weight.nbytes());
    }
    return sum;
  };
  const WanVae exact = cases::load({}), vae = cases::load({at::kCPU, tf32});
  CHECK(2 * bytes(vae) == bytes(exact));
  const std::int64_t whole = wan_vae_weight_bytes(config, at::kFloat);
  // Outside of convolutions: norms, products of 1x1 kernels, attention.
  const std::int64_t products = 2 * wan_vae_weight_bytes(config, tf32) - whole;
  CHECK(products > 0);
  CHECK(products < whole / 20);
}

}  // namespace diptych
