// What --replay and --batch-size rest on, and step caches, on the GPU.
#include <algorithm>
#include <map>

#include <doctest/doctest.h>

#include "lib/attention/attention.h"
#include "lib/ops/linear_operand.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/session/kernel_report.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"
#include "tests/pipelines/session_cases.h"
#include "tests/pipelines/step_cache_cases.h"

namespace diptych {
namespace {

TEST_CASE("pictures that share forwards are those of one by one") {
  test::check_sharing({"cuda", "float32"});
}

TEST_CASE("what a session did before changes no bit of what it does next") {
  test::check_repeats({"cuda", "float32"});
  test::check_repeats({"cuda", "bfloat16"});
}

TEST_CASE("a captured step makes the bits of one launched by hand") {
  test::check_step_graphs({"cuda", "float32"});
  test::check_step_graphs({"cuda", "bfloat16"});
}

TEST_CASE("a captured step of many rows makes the bits of one launched by hand") {
  for (const char* quantization : {"none", "fp8", "int8"}) {
    CAPTURE(quantization);
    test::check_step_graphs_of_many_rows({"cuda", "bfloat16", quantization});
  }
}

TEST_CASE("many rows take the kernels that were written for them") {
  test::SessionFixture f({"cuda", "bfloat16"});
  const std::vector<RunConfig> requests(3, test::paint_request("a red fox", 5, 192, 192));
  const auto launched = record_launches(kDenoiseScope, [&] { f.run(requests); });
  REQUIRE(launched.has_value());
  const auto ran = [&](std::string_view part) {
    return std::ranges::any_of(launched->scopes, [&](const std::vector<GpuActivity>& scope) {
      return std::ranges::any_of(scope, [&](const GpuActivity& activity) {
        return activity.name.find(part) != std::string::npos;
      });
    });
  };
  CHECK(ran("gated_linear_kernel") == has_gated_kernel(at::Device(at::kCUDA, 0)));
  const std::vector<AttentionInfo> infos = list_attention(at::Device(at::kCUDA, 0));
  const bool has_cudnn = std::ranges::any_of(
      infos, [](const AttentionInfo& info) { return info.name == "cudnn" && !info.unavailable; });
  CHECK((f.session->report().attention.find("cudnn") != std::string::npos) == has_cudnn);
}

TEST_CASE("captured steps that are kept for the next run change no bit of it") {
  test::check_kept_steps({"cuda", "float32"});
  test::check_kept_steps({"cuda", "float32", "none", "math"});
  test::check_kept_steps({"cuda", "bfloat16"});
  test::check_kept_steps({"cuda", "bfloat16", "fp8"});
}

// As when a session captures them while its weights are on their way.
TEST_CASE("steps captured before the weights are read paint with what is read") {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  RunConfig config = test::paint_request("a red fox", 5, 64, 48);
  config.device = parse_device("cuda").value();
  config.dtype = DtypeChoice::bfloat16;
  const Runtime runtime = make_runtime(config, log);
  const auto checkpoint = BagelCheckpoint::open(config.model, false, runtime);
  checkpoint->load();
  const BagelJob job(config, *checkpoint, runtime, log, {});
  PaintRequest paint = job.paint;
  paint.keep_graphs = true;
  const auto contexts = [&] {
    ContextsRequest request;
    request.branches = paint.needed(
        pack_samples({BagelReading::of(config, {}, checkpoint->mot()).branches()}), false);
    request.own_rows = paint.block_rows();
    return PrefilledContexts::read(checkpoint->mot(), request, runtime);
  };
  at::Generator generator = cpu_generator(5);
  const Tensor noise = draw_noise(paint.sizes.front(), 64, generator);
  const Tensor expected =
      MotPainter(checkpoint->mot(), paint, contexts(), runtime).paint(noise, nullptr, progress);
  Bagel& model = checkpoint->model;
  const std::vector<Tensor> weights = {model.latents.time_embedder.mlp_0,
                                       model.latents.time_embedder.mlp_2_bias,
                                       model.latents.pos_embed};
  std::vector<Tensor> values;
  for (const Tensor& weight : weights) {
    values.push_back(weight.clone());
    weight.fill_(NAN);
  }
  MotPainter early(checkpoint->mot(), paint, contexts(), runtime);
  early.prepare();
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i].copy_(values[i]);
  const PrefilledContexts read = contexts();
  REQUIRE(early.serves(paint, read));
  early.take(read);
  CHECK(early.paint(noise, nullptr, progress).equal(expected));
  CHECK(early.used_graphs());
}

// As `generate` reads them: while the vocabulary is read.
TEST_CASE("weights that are read ahead of the plan paint the same picture") {
  const RunConfig request = test::paint_request("a red fox", 5, 64, 48);
  const auto painted = [&](const char* quantization, bool ahead) {
    test::SessionFixture f({"cuda", "bfloat16", quantization, "auto", ahead});
    return f.run({request}).pictures.front().rgb();
  };
  for (const char* quantization : {"none", "fp8"}) {
    CAPTURE(quantization);
    CHECK(painted(quantization, true).equal(painted(quantization, false)));
  }
}

TEST_CASE("what is read ahead of a plan that offloads is read anew") {
  Log log{LogLevel::quiet};
  RunConfig config = test::paint_request("a red fox", 5, 64, 48);
  config.device = parse_device("cuda").value();
  const Runtime runtime = make_runtime(config, log);
  const auto open = [&](bool ahead) {
    return BagelCheckpoint::open(config.model, false, runtime, ahead);
  };
  const auto expected = open(false), ahead = open(true);
  CHECK_FALSE(expected->is_loading());
  REQUIRE(ahead->is_loading());
  expected->load();
  ahead->load(MotOffload{});
  CHECK_FALSE(ahead->is_loading());
  CHECK(ahead->mot().backbone.layers.streams({.und = true}));
  CHECK_FALSE(expected->mot().backbone.layers.streams({.und = true}));
  CHECK(ahead->model.latents.pos_embed.equal(expected->model.latents.pos_embed));
  CHECK(ahead->vae.decoder.conv_in.weight.equal(expected->vae.decoder.conv_in.weight));
}

TEST_CASE("a sampled plan takes as many draws as it has tokens") {
  test::check_draws_behind_a_plan({"cuda", "float32"});
  test::check_draws_behind_a_plan({"cuda", "bfloat16"});
}

TEST_CASE("quantised models paint nearly the same, and the same again") {
  test::check_quantization({"cuda", "bfloat16"});
  for (const char* kind : {"fp8", "int8"}) {
    test::check_repeats({"cuda", "bfloat16", kind});
    test::check_step_graphs({"cuda", "bfloat16", kind});
  }
}

TEST_CASE("--cfg-mode auto paints as the mode that it chooses") {
  test::check_cfg_mode_auto({"cuda", "float32"});
  test::check_cfg_mode_auto({"cuda", "bfloat16"});
}

TEST_CASE("all steps are timed by one of each kind, which changes no picture") {
  test::check_timed_steps({"cuda", "float32"});
  test::check_timed_steps({"cuda", "bfloat16"});
}

TEST_CASE("what steps have to do, and their products alone") {
  test::check_measured_steps({"cuda", "float32"});
  test::check_measured_steps({"cuda", "bfloat16"});
  test::check_measured_steps({"cuda", "bfloat16", "fp8"});
}

TEST_CASE("the kernels of captured and of launched steps are told apart") {
  for (const bool eager : {false, true}) {
    for (const char* quantization : {"none", "fp8"}) {
      CAPTURE(eager);
      CAPTURE(quantization);
      test::SessionFixture f({"cuda", "bfloat16", quantization});
      RunConfig request = test::paint_request("a red fox", 5, 64, 48);
      request.sampling.steps = 12;
      request.enforce_eager = eager;
      f.run({request});
      const auto launched = record_launches(kDenoiseScope, [&] { f.run({request}); });
      REQUIRE(launched.has_value());
      const auto kinds = f.measure_steps(request, false);
      const KernelTable table = make_kernel_table(*launched, 11, kinds, {1e15, 2e15, 4e12});
      std::map<std::string, KernelRow> rows;
      double busy = 0;
      for (const KernelRow& row : table.rows) {
        rows[row.family] = row;
        busy += row.seconds;
      }
      for (const StepKindWork& kind : kinds) {
        for (const KernelWork& work : kind.work) {
          CAPTURE(work.family);
          REQUIRE(rows.contains(work.family));
          CHECK(rows.at(work.family).bytes > 0);
          CHECK(rows.at(work.family).launches >= 2);
        }
      }
      CHECK(rows.at("qk norm, rope, cache write").launches == 3);
      CHECK(rows.at("silu x gate").launches == 3);
      CHECK(rows.at("norm").launches == 7);
      CHECK(busy + table.idle_in_graphs + table.idle_between ==
            doctest::Approx(table.seconds).epsilon(0.02));
      CHECK((table.idle_in_graphs > 0) == !eager);
    }
  }
}

TEST_CASE("steps that are kept are one launch each, and take no memory") {
  for (const char* quantization : {"none", "fp8", "int8"}) {
    CAPTURE(quantization);
    test::SessionFixture f({"cuda", "bfloat16", quantization});
    RunConfig request = test::paint_request("a red fox", 5, 64, 48);
    request.sampling.steps = 12;
    // Of a session that expects more than one run the steps are kept.
    f.load({{request}, {request}, {request}});
    for (int run = 0; run < 2; ++run) f.run({request});
    const auto launched = record_launches(kDenoiseScope, [&] { f.run({request}); });
    REQUIRE(launched.has_value());
    CHECK(f.session->report().kept_step_graphs);
    // Beside the 11 updates the noise is copied in, the counter cleared, the latents copied out.
    CHECK(launched->calls >= 11);
    CHECK(launched->calls <= 11 + 8);
    CHECK(launched->allocations == 0);
    // The picture's begin alone: steps are waited for when all of them are launched.
    CHECK(launched->waits >= 1);
    CHECK(launched->waits <= 2);
  }
}

TEST_CASE("step caches: calibrated, painted and reported") {
  test::check_step_caches({"cuda", "float32"});
  test::check_step_caches({"cuda", "bfloat16"});
}

}  // namespace
}  // namespace diptych
