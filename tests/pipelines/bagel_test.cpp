// Guidance execution and branch sharing on the tiny checkpoint. Parity with the official code is
// goldens_test.cpp's part.
#include "lib/pipelines/bagel.h"

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/pipelines/make_runtime.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

const std::filesystem::path kCheckpoint =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

struct Fixture {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  Runtime runtime;
  BagelCheckpoint checkpoint;

  explicit Fixture(const char* attention = "auto", const char* dtype = "float32") {
    RunConfig config;
    config.device = "cpu";
    config.dtype = dtype;
    config.read_attention.default_backend = config.paint_attention.default_backend = attention;
    runtime = make_runtime(config, log, nullptr);
    checkpoint = BagelCheckpoint::open(kCheckpoint, false, runtime);
    checkpoint.load();
  }

  PaintRequest request(std::vector<std::string> prompts, std::vector<LatentSize> sizes) const {
    PaintRequest r;
    r.prompts = std::move(prompts);
    r.sizes = std::move(sizes);
    r.steps = 6;
    r.guidance.interval_low = 0.3;
    return r;
  }

  Tensor latent(const PaintRequest& r, std::uint64_t seed = 5) {
    const BagelPainter painter(checkpoint, r, runtime);
    return painter.paint(draw_noise(r, 64, seed), progress);
  }
};

double relative_difference(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

}  // namespace

TEST_CASE("batched and sequential guidance give the same latent") {
  for (const char* attention : {"math", "sdpa"}) {
    Fixture f(attention);
    for (const auto& [size, image_scale] :
         {std::pair{LatentSize{4, 4}, 1.0}, std::pair{LatentSize{3, 7}, 1.5},
          std::pair{LatentSize{1, 1}, 2.0}, std::pair{LatentSize{12, 12}, 1.0}}) {
      for (const std::string& prompt : {std::string(), std::string("a car made of small cars")}) {
        CAPTURE(attention);
        CAPTURE(size.h);
        PaintRequest r = f.request({prompt}, {size});
        r.guidance.image_scale = image_scale;
        const Tensor batched = f.latent(r);
        r.cfg_mode = CfgMode::sequential;
        const Tensor sequential = f.latent(r);
        CHECK(relative_difference(batched, sequential) < 1e-5);
        CHECK(batched.std().item<double>() > 0.1);
      }
    }
  }
}

TEST_CASE("a batch of prompts equals single runs where the renorm is per row") {
  Fixture f;
  PaintRequest both =
      f.request({"a red fox", "two birds above the mountain, at dusk"}, {{4, 4}, {6, 4}});
  both.guidance.renorm = Renorm::channel;
  const Tensor noise = draw_noise(both, 64, 9);
  const Tensor packed = BagelPainter(f.checkpoint, both, f.runtime).paint(noise, f.progress);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    PaintRequest one = both;
    one.prompts = {both.prompts[i]};
    one.sizes = {both.sizes[i]};
    const std::int64_t rows = one.sizes.front().rows();
    const Tensor alone =
        BagelPainter(f.checkpoint, one, f.runtime).paint(noise.narrow(0, row, rows), f.progress);
    CHECK(relative_difference(packed.narrow(0, row, rows), alone) < 1e-5);
    row += rows;
  }
}

TEST_CASE("a picture does not see the other prompt of its batch, to the last bit") {
  Fixture f("math");
  PaintRequest r = f.request({"a red fox", "two birds"}, {{4, 4}, {4, 4}});
  r.guidance.renorm = Renorm::text_channel;
  const Tensor first = f.latent(r).narrow(0, 0, 16);
  r.prompts[1] = "a car of clay";
  const Tensor again = f.latent(r).narrow(0, 0, 16);
  CHECK(first.equal(again));
}

TEST_CASE("equal contexts are computed once") {
  Fixture f;
  PaintRequest r = f.request({"a red fox"}, {{4, 4}});
  r.steps = 50;
  r.guidance.interval_low = 0.4;
  r.guidance.image_scale = 1.5;  // the official code pays a third branch for it: 131 forwards
  const BagelPainter shared(f.checkpoint, r, f.runtime);
  shared.paint(draw_noise(r, 64, 1), f.progress);
  CHECK(shared.forwards() == 90);
  // The empty prompt still has its two markers, so it is not the empty context.
  r.prompts = {""};
  const BagelPainter empty(f.checkpoint, r, f.runtime);
  empty.paint(draw_noise(r, 64, 1), f.progress);
  CHECK(empty.forwards() == 90);
  r.guidance.text_scale = 1.0;
  const BagelPainter plain(f.checkpoint, r, f.runtime);
  plain.paint(draw_noise(r, 64, 1), f.progress);
  CHECK(plain.forwards() == 49);
}

TEST_CASE("three distinct contexts give the same velocities batched and one by one") {
  Fixture f("math");
  const auto context = [&](const char* text) {
    return std::vector<BagelContext>{{{f.checkpoint.text_segment(text)}}};
  };
  const std::vector<BranchContexts> branches = {{"cond", context("a red fox under an old oak")},
                                                {"text_uncond", {BagelContext{}}},
                                                {"img_uncond", context("fox")}};
  const LatentSize size = {4, 6};
  const std::vector<std::int64_t> own_rows = {size.rows() + 2};
  const PrefilledContexts contexts(f.checkpoint.model, branches, own_rows, f.runtime);
  REQUIRE(contexts.distinct() == 3);
  const FlowSchedule schedule = FlowSchedule::shifted(4, 3.0);
  const auto run = [&](CfgMode mode) {
    const BagelDenoiser denoiser(f.checkpoint.model, contexts, {{size}}, f.checkpoint.markers,
                                 schedule, mode, f.runtime);
    at::Generator generator = cpu_generator(3);
    return denoiser.velocities(randn({size.rows(), 64}, generator), 1, 3);
  };
  const auto batched = run(CfgMode::batched), sequential = run(CfgMode::sequential);
  REQUIRE(batched.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(relative_difference(batched[i], sequential[i]) < 1e-5);
    CHECK(relative_difference(batched[i], batched[(i + 1) % 3]) > 1e-3);
  }
}

TEST_CASE("a branch that shares a context gets the bits it would compute itself") {
  Fixture f("math");
  const std::vector<BagelContext> text = {{{f.checkpoint.text_segment("a red fox")}}};
  const LatentSize size = {4, 4};
  const std::vector<std::int64_t> own_rows = {size.rows() + 2};
  const FlowSchedule schedule = FlowSchedule::shifted(4, 3.0);
  at::Generator generator = cpu_generator(3);
  const Tensor x = randn({size.rows(), 64}, generator);
  const auto velocity = [&](const char* name) {
    const PrefilledContexts contexts(f.checkpoint.model, {{name, text}}, own_rows, f.runtime);
    const BagelDenoiser denoiser(f.checkpoint.model, contexts, {{size}}, f.checkpoint.markers,
                                 schedule, CfgMode::sequential, f.runtime);
    return denoiser.velocities(x, 0, 1).front();
  };
  const PrefilledContexts shared(f.checkpoint.model, {{"cond", text}, {"img_uncond", text}},
                                 own_rows, f.runtime);
  CHECK(shared.distinct() == 1);
  CHECK(*shared.context_of("img_uncond") == 0);
  CHECK(velocity("cond").equal(velocity("img_uncond")));
}

TEST_CASE("the same seed gives the same bits, another seed another picture") {
  Fixture f;
  const PaintRequest r = f.request({"a red fox"}, {{4, 6}});
  CHECK(f.latent(r, 3).equal(f.latent(r, 3)));
  CHECK_FALSE(f.latent(r, 3).equal(f.latent(r, 4)));
}

TEST_CASE("limits of the model are named") {
  Fixture f;
  CHECK(f.checkpoint.latent_size(192, 64).w == 12);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(208, 64),
                       doctest::Contains("--width: found 208, expected a multiple of 16 up to 192"),
                       InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(64, 72), doctest::Contains("--height: found 72"),
                       InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(64, 72), doctest::Contains("64 or 80"), InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.text_segment(std::string(80000, '7')),
                       doctest::Contains("tokens, expected at most"), InputError);
  CHECK_THROWS_WITH_AS(BagelCheckpoint::open("/nowhere", false, f.runtime),
                       doctest::Contains("/nowhere"), InputError);
}

TEST_CASE("bfloat16 stays near float32") {
  Fixture f32, bf16("auto", "bfloat16");
  const PaintRequest r = f32.request({"a red fox"}, {{4, 4}});
  const double difference = relative_difference(bf16.latent(r), f32.latent(r));
  CHECK(difference > 0);
  CHECK(difference < 0.05);
}

}  // namespace diptych
