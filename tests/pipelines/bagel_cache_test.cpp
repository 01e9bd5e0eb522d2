// Step caches in BAGEL's denoiser, on the tiny checkpoint.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/trace.h"
#include "lib/pipelines/bagel/trace_names.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/sampling/branches.h"
#include "lib/sampling/euler.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"
#include "lib/verify/trace_compare.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

const std::filesystem::path kCheckpoint =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

StepCacheConfig taylorseer() {
  StepCacheConfig config;
  config.mode = StepCacheMode::taylorseer;
  return config;
}

StepCacheConfig teacache(double threshold, StepCacheCoefficients coefficients = {0, 0, 0, 1, 0}) {
  StepCacheConfig config;
  config.mode = StepCacheMode::teacache;
  config.threshold = threshold;
  config.coefficients = coefficients;
  return config;
}

// A prompt, what it is painted with, and what its branches have read.
class Scene {
 public:
  explicit Scene(const char* dtype = "float32")
      : runtime(make_runtime(run_of(dtype), log_)),
        opened_(BagelCheckpoint::open(kCheckpoint, false, runtime)),
        checkpoint(*opened_) {
    checkpoint.load();
    guidance.terms = {{"text_uncond", 4}};
    guidance.interval_low = 0.3;
  }

  PrefilledContexts contexts() const {
    const auto read = [&](const std::string& text) {
      return MotContext{{TextSegment{checkpoint.mot().text_segment(text)}}};
    };
    std::vector<BranchContexts> all = {{"cond", {read(prompt)}, {0}},
                                       {"text_uncond", {MotContext{}}, {}}};
    if (third) all.push_back({"img_uncond", {read("fox")}, {1}});
    ContextsRequest request;
    request.branches = std::move(all);
    request.own_rows = {size.rows() + 2};
    return PrefilledContexts::read(checkpoint.mot(), request, runtime);
  }

  MotDenoiser denoiser(const PrefilledContexts& read, const StepCacheConfig& cache,
                       CfgMode mode = CfgMode::batched) const {
    return {checkpoint.mot(), read, {std::span(&size, 1)}, schedule(), mode, runtime, cache};
  }

  FlowSchedule schedule() const { return FlowSchedule::shifted(steps, 3.0); }

  Tensor noise() const {
    at::Generator generator = cpu_generator(seed);
    return randn({size.rows(), 64}, generator);
  }

  // The final latent; with a trace, under the golden data's names.
  Tensor paint(MotDenoiser&& denoiser) const { return paint(denoiser); }
  Tensor paint(MotDenoiser& denoiser) const {
    std::optional<BagelTrace> names;
    if (trace != nullptr) names.emplace(*trace);
    denoiser.begin_picture(StepCaching::on, names ? &*names : nullptr);
    const FlowSchedule flow = schedule();
    const auto record = [&](std::int64_t step, const char* what, const Tensor& value) {
      if (trace != nullptr) trace->record(fmt::format("step{:03}.{}", step, what), value);
    };
    const auto velocity = [&](const Tensor& x, std::int64_t step) {
      const bool both = guidance.terms_at(flow.times[static_cast<std::size_t>(step)]) > 0;
      const std::vector<Tensor> v = denoiser.velocities(x, step, both ? 2 : 1);
      const Tensor guided = guidance.combine(v[0], std::span(v).subspan(1));
      record(step, "v_cond", v[0]);
      if (both) record(step, "v_text_uncond", v[1]);
      record(step, "v_guided", guided);
      return guided;
    };
    const Tensor x = noise(), sizes = flow.step_sizes();
    for (std::int64_t step = 0; step < flow.updates(); ++step) {
      euler_step_(x, velocity(x, step), sizes.narrow(0, step, 1));
      record(step, "latent", x);
    }
    return x;
  }

  static RunConfig run_of(const char* dtype) {
    RunConfig config;
    config.device = {DeviceChoice::Kind::cpu};
    config.dtype = parse_choice<DtypeChoice>(dtype).value();
    return config;
  }

 private:
  Log log_{LogLevel::quiet};

 public:
  Runtime runtime;

 private:
  std::unique_ptr<BagelCheckpoint> opened_;

 public:
  BagelCheckpoint& checkpoint;
  Guidance guidance;
  std::string prompt = "a red fox under an old oak";
  LatentSize size = {4, 6};
  std::int64_t steps = 18;
  std::uint64_t seed = 5;
  bool third = false;
  TraceSink* trace = nullptr;
};

double relative_difference(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

}  // namespace

TEST_CASE("recorded cases 07 and 07b: TaylorSeer on and off") {
  int compared = 0;
  for (const auto& folder : test::bagel_cases()) {
    const std::string name = folder.filename().string();
    // The second one is in the whole recording alone.
    if (name != "07_t2i_taylorseer" && name != "07b_t2i_taylorseer_off") continue;
    CAPTURE(name);
    const nlohmann::json description = test::case_json(folder), params = description.at("params");
    Scene scene;
    scene.prompt = description.at("input_list").at(0);
    scene.seed = description.at("seed");
    scene.steps = params.at("num_timesteps");
    scene.size = {4, 4};
    scene.guidance.interval_low = 0.4;
    const bool on = params.at("enable_taylorseer");
    for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
      TraceSink trace({"step*"});
      scene.trace = &trace;
      const auto read = scene.contexts();
      scene.paint(scene.denoiser(read, on ? taylorseer() : StepCacheConfig{}, mode));
      scene.trace = nullptr;
      NamedTensors found, expected = read_trace(folder / "expected.safetensors");
      std::erase_if(expected, [](const auto& entry) {
        return !entry.first.starts_with("step") || entry.first.ends_with(".t");
      });
      for (const auto& [tensor, value] : trace.tensors()) found.emplace(tensor, value);
      const TraceNames& names = bagel_trace_names();
      const auto comparison =
          compare_traces(found, expected, Tolerances::from_case(description, names), names);
      const TensorComparison* first = comparison.first_divergence();
      INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
      CHECK(comparison.pass());
      CHECK(expected.size() >= 34);
    }
    ++compared;
  }
  CHECK(compared >= 1);
}

TEST_CASE("a cache saves forwards and gives nearly the same picture, in both modes") {
  Scene scene;
  const auto read = scene.contexts();
  MotDenoiser plain = scene.denoiser(read, {});
  const Tensor exact = scene.paint(plain);
  CHECK(plain.forwards() == 32);  // 17 steps, 15 of them with guidance
  struct Saving {
    StepCacheConfig config;
    std::int64_t forwards;
    double difference;
  };
  // TaylorSeer computes calls 0 to 4, 7, 10, 13 and 16 of each branch; the last step has cond
  // alone.
  for (const auto& [config, forwards, difference] :
       {Saving{taylorseer(), 17, 0.02}, Saving{teacache(0.06), 12, 0.1}}) {
    MotDenoiser batched = scene.denoiser(read, config);
    MotDenoiser sequential = scene.denoiser(read, config, CfgMode::sequential);
    const Tensor picture = scene.paint(batched);
    CHECK(batched.forwards() == forwards);
    CHECK(relative_difference(picture, exact) > 1e-5);
    CHECK(relative_difference(picture, exact) < difference);
    CHECK(relative_difference(scene.paint(sequential), picture) < 1e-5);
    CHECK(sequential.forwards() == forwards);
    // Nothing stays of the picture before.
    scene.seed = 6;
    CHECK_FALSE(scene.paint(batched).equal(picture));
    scene.seed = 5;
    CHECK(scene.paint(batched).equal(picture));
  }
}

TEST_CASE("what all steps read of the weights follows these when they are read late") {
  Scene scene, late;
  const auto read = scene.contexts();
  Bagel& model = late.checkpoint.model;
  TimeEmbedder& embedder = model.latents.time_embedder;
  std::vector<Tensor> values;
  const std::vector<Tensor*> undefined = {&embedder.mlp_0, &embedder.mlp_2_bias,
                                          &model.latents.pos_embed,
                                          &model.language_model.embed_tokens};
  for (Tensor* weight : undefined) {
    values.push_back(*weight);
    *weight = at::full_like(*weight, NAN);
  }
  MotDenoiser denoiser = late.denoiser(read, {});
  const Tensor times = denoiser.times();
  for (std::size_t i = 0; i < undefined.size(); ++i) undefined[i]->copy_(values[i]);
  denoiser.follow_weights();
  CHECK(times.is_alias_of(denoiser.times()));
  CHECK(late.paint(denoiser).equal(scene.paint(scene.denoiser(read, {}))));
}

TEST_CASE("a cache that leaves nothing out changes no bit") {
  Scene scene;
  scene.steps = 6;  // five updates: TaylorSeer's first calls
  const auto read = scene.contexts();
  for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
    const Tensor exact = scene.paint(scene.denoiser(read, {}, mode));
    for (const StepCacheConfig& config : {taylorseer(), teacache(1e-9)}) {
      MotDenoiser cached = scene.denoiser(read, config, mode);
      CHECK(scene.paint(cached).equal(exact));
      CHECK(cached.forwards() == 10);
    }
  }
}

TEST_CASE("a trace of predicted steps changes no bit") {
  for (const StepCacheConfig& config : {taylorseer(), teacache(0.06)}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      Scene scene(dtype);
      const auto read = scene.contexts();
      const Tensor plain = scene.paint(scene.denoiser(read, config));
      TraceSink trace({"step005.cond.*", "step*.latent"});
      scene.trace = &trace;
      CHECK(scene.paint(scene.denoiser(read, config)).equal(plain));
      // embeds, position_ids, three layers, final_norm; and 17 latents.
      CHECK(trace.tensors().size() == 6 + 17);
    }
  }
}

TEST_CASE("branches that set in at different steps: any subset of them is computed") {
  Scene scene;
  scene.third = true;
  const auto read = scene.contexts();
  REQUIRE(read.distinct() == 3);
  MotDenoiser batched = scene.denoiser(read, taylorseer());
  MotDenoiser sequential = scene.denoiser(read, taylorseer(), CfgMode::sequential);
  MotDenoiser plain = scene.denoiser(read, {});
  // TaylorSeer's calls differ by branch: steps 5 to 9 compute {1, 2}, {2}, {0, 2}, {1} and none.
  const std::vector<std::int64_t> counts = {1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3};
  const Tensor noise = scene.noise();
  std::vector<std::int64_t> forwards = {0};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto step = static_cast<std::int64_t>(i);
    CAPTURE(step);
    const Tensor x = noise * (1 - 0.01 * static_cast<double>(i));
    const auto together = batched.velocities(x, step, counts[i]);
    const auto apart = sequential.velocities(x, step, counts[i]);
    const auto exact = plain.velocities(x, step, counts[i]);
    REQUIRE(together.size() == static_cast<std::size_t>(counts[i]));
    for (std::size_t c = 0; c < together.size(); ++c) {
      CAPTURE(c);
      CHECK(relative_difference(together[c], apart[c]) < 1e-5);
      CHECK(relative_difference(together[c], exact[c]) < 0.05);
    }
    forwards.push_back(batched.forwards());
    CHECK(sequential.forwards() == batched.forwards());
  }
  CHECK(forwards == std::vector<std::int64_t>{0, 1, 3, 5, 8, 11, 13, 14, 16, 17, 17, 19, 20});
}

TEST_CASE("observed steps calibrate TeaCache, which then saves forwards") {
  Scene scene;
  scene.steps = 30;
  const auto read = scene.contexts();
  MotDenoiser plain = scene.denoiser(read, {});
  StepChangeRecorder recorder;
  plain.observe([&](std::int64_t step, std::int64_t context, const Tensor& in, const Tensor& out) {
    CHECK(in.sizes() == at::IntArrayRef({24, 64}));
    CHECK(out.sizes() == in.sizes());
    recorder.record(step, context, in, out);
  });
  recorder.begin_picture();
  const Tensor exact = scene.paint(plain);
  const StepRecording& recording = recorder.recording();
  // One change for every forward but a context's first.
  CHECK(recording.changes.size() == static_cast<std::size_t>(plain.forwards() - 2));
  const auto calibration = StepCalibration::fit(recording.changes, "tiny");
  CHECK(calibration.explained_variance() > 0.9);
  double before = 0;
  std::int64_t forwards = plain.forwards();
  for (const double threshold : {0.02, 0.1, 0.4}) {
    MotDenoiser cached = scene.denoiser(read, teacache(threshold, calibration.coefficients));
    const double difference = relative_difference(scene.paint(cached), exact);
    CHECK(cached.forwards() < forwards);
    CHECK(difference > before);
    CHECK(difference < threshold);
    forwards = cached.forwards();
    before = difference;
  }
}

TEST_CASE("the steps of two pictures are not mixed") {
  Scene scene;
  const auto read = scene.contexts();
  MotDenoiser denoiser = scene.denoiser(read, taylorseer());
  denoiser.velocities(scene.noise(), 0, 1);
  CHECK_THROWS_WITH_AS(denoiser.velocities(scene.noise(), 0, 1),
                       doctest::Contains("begin_picture()"), c10::Error);
  denoiser.begin_picture();
  CHECK(denoiser.velocities(scene.noise(), 0, 1).size() == 1);
}

}  // namespace diptych
