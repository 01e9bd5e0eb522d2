// Ranks that decode a clip together.
#include <doctest/doctest.h>

#include "lib/models/wan_vae/band.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "tests/models/wan_vae_cases.h"
#include "tests/support/rank_threads.h"

namespace diptych {
namespace {

namespace cases = wan_vae_cases;
using test::as_ranks;

constexpr std::int64_t kNarrow = 6;  // so that rows are no multiple of a vector

WanVaeConfig narrow(WanVaeConfig config) {
  config.base_dim = config.decoder_base_dim = kNarrow;
  return config;
}

WanVae load(const WanVaeConfig& config) {
  return WanVae::load(Weights::dummy(at::kCPU, at::kFloat), config);
}

// Every rank's frames are those of a decoder that has all rows.
void check_equal(const WanVae& vae, const Tensor& latent, const ParallelDegrees& degrees) {
  const Tensor expected = cases::decode(vae, latent);
  CHECK(expected.std().item<double>() > 0);
  as_ranks(degrees, degrees.ranks_per_request(), [&](Ranks& ranks) {
    WanVaeDecoder decoder(vae, latent, ranks);
    std::vector<Tensor> frames;
    while (decoder.has_next()) frames.push_back(decoder.next());
    CHECK(at::cat(frames, 1).equal(expected));
  });
}

}  // namespace

TEST_CASE("bands have every row once, in the ranks' order") {
  for (const std::int64_t rows : {4, 5, 7, 60}) {
    CAPTURE(rows);
    std::vector<Tensor> parts(4);
    const Tensor map = cases::draw({2, 2 * rows, 3, 5}, 1);  // two rows to a latent row
    as_ranks({.cfg = 2, .ring = 2}, 4, [&](Ranks& ranks) {
      const WanVaeBand band(ranks, rows);
      CHECK(band.count() >= rows / 4);
      CHECK(band.count() <= (rows + 3) / 4);
      parts[ranks.rank()] = band.cut(map);
      CHECK(parts[ranks.rank()].size(1) == 2 * band.count());
      CHECK(band.join(parts[ranks.rank()]).equal(map));
    });
    CHECK(at::cat(parts, 1).equal(map));
  }
}

TEST_CASE("a band's halo is what lies above and below it") {
  constexpr std::int64_t kRows = 5, kScale = 2;
  const Tensor map = cases::draw({3, kScale * kRows, 4, 2}, 2);
  const Tensor padded = at::constant_pad_nd(map, {0, 0, 0, 0, 1, 1});
  as_ranks({.ulysses = 3}, 3, [&](Ranks& ranks) {
    const WanVaeBand band(ranks, kRows);
    const std::int64_t rows = kScale * band.count();
    const Tensor frames = at::full({3, rows + 2, 4, 2}, 7.0);
    frames.narrow(1, 1, rows).copy_(band.cut(map));
    band.fill_halo(frames);
    CHECK(frames.equal(padded.narrow(1, kScale * band.first(), rows + 2)));
  });
}

TEST_CASE("fewer rows than ranks are not divided") {
  CHECK(!WanVaeBand::divides(nullptr, 4));
  as_ranks({.cfg = 2}, 2, [](Ranks& ranks) {
    CHECK(WanVaeBand::divides(&ranks, 2));
    CHECK(!WanVaeBand::divides(&ranks, 1));
    CHECK_THROWS_AS(WanVaeBand(ranks, 1), c10::Error);
  });
  as_ranks({}, 2, [](Ranks& ranks) { CHECK(!WanVaeBand::divides(&ranks, 8)); });
}

TEST_CASE("what ranks decode together has the bits of one that decodes alone") {
  struct Case {
    ParallelDegrees degrees;
    std::int64_t frames, rows, columns;
  };
  const Case cases_of_ranks[] = {{{.cfg = 2}, 3, 4, 5},     {{.cfg = 2}, 1, 5, 3},
                                 {{.ring = 3}, 3, 3, 1},    {{.ring = 3}, 2, 7, 4},
                                 {{.ulysses = 4}, 3, 6, 3}, {{.cfg = 2, .ring = 2}, 2, 4, 8}};
  for (const WanVaeConfig& config : {WanVaeConfig::wan21(), WanVaeConfig::wan22()}) {
    CAPTURE(config.is_residual);
    const WanVae vae = load(narrow(config));
    for (const Case& each : cases_of_ranks) {
      CAPTURE(each.rows);
      CAPTURE(each.columns);
      const Tensor latent = cases::draw({each.frames, each.rows, each.columns, config.z_dim}, 5);
      check_equal(vae, latent, each.degrees);
    }
  }
}

TEST_CASE("in tf32 on the CPU, too") {
  const WanVae vae = cases::load({at::kCPU, WanVaePrecision::tf32()});
  check_equal(vae, cases::draw({3, 5, 4, 48}, 3), {.cfg = 3});
}

TEST_CASE("a larger clip of ranks, where libtorch would take several kernels") {
  WanVaeConfig config = WanVaeConfig::wan21();
  config.base_dim = config.decoder_base_dim = 32;
  check_equal(load(config), cases::draw({2, 24, 20, config.z_dim}, 6), {.cfg = 3});
}

TEST_CASE("a decoder whose convolutions are split into taps, in bands") {
  const WanVaeConfig config = narrow(WanVaeConfig::wan21());
  WanVae vae = load(config);
  for (WanVaeUpStage& stage : vae.decoder.upsamples) {
    for (WanVaeResidualBlock& block : stage.blocks) {
      block.conv1.split_taps();
      block.conv2.split_taps();
    }
  }
  check_equal(vae, cases::draw({3, 5, 4, config.z_dim}, 7), {.cfg = 2});
}

TEST_CASE("a decoder by conv3d(), in bands") {
  for (const WanVaeConfig& config : {WanVaeConfig::wan21(), WanVaeConfig::wan22()}) {
    CAPTURE(config.is_residual);
    WanVae vae = load(narrow(config));
    const Tensor latent = cases::draw({3, 5, 4, config.z_dim}, 8);
    const Tensor expected = cases::decode(vae, latent);
    cases::take_conv3d(vae);
    as_ranks({.cfg = 2}, 2, [&](Ranks& ranks) {
      WanVaeDecoder decoder(vae, latent, ranks);
      std::vector<Tensor> frames;
      while (decoder.has_next()) frames.push_back(decoder.next());
      CHECK(cases::relative_norm(at::cat(frames, 1), expected) < 1e-5);
    });
  }
}

}  // namespace diptych
