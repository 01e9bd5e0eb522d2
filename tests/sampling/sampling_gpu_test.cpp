#include <doctest/doctest.h>

#include "tests/sampling/token_cases.h"

#if DIPTYCH_HAVE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include "lib/sampling/step_cache/step_cache.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// Fourteen steps of two contexts: what was computed, and what was predicted for the others.
struct CachedRun {
  std::vector<std::vector<bool>> computed;
  std::vector<Tensor> predicted;  // float32, CPU
};

CachedRun run_cached(const StepCacheConfig& config, at::Device device, at::ScalarType dtype) {
  constexpr std::int64_t kSteps = 14;
  at::Generator generator = cpu_generator(11);
  const Tensor start = randn({16, 24}, generator), drift = randn({16, 24}, generator);
  StepCache cache(config, 2, kSteps);
  CachedRun run;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const double t = static_cast<double>(step) / kSteps;
    const Tensor input = (start + t * t * drift).to(device, dtype);
    run.computed.push_back(cache.begin_step(input, step, step < 3 ? 1 : 2));
    for (std::size_t context = 0; context < run.computed.back().size(); ++context) {
      const auto index = static_cast<std::int64_t>(context);
      const Tensor output = input * (1.5 + static_cast<double>(context)) + 0.25;
      if (run.computed.back()[context]) {
        cache.store(index, input, output);
      } else {
        run.predicted.push_back(cache.predict(index, input).cpu().to(at::kFloat));
      }
    }
  }
  return run;
}

}  // namespace

TEST_CASE("step caches decide and predict on the GPU as on the CPU") {
  StepCacheConfig taylorseer, teacache;
  taylorseer.mode = StepCacheMode::taylorseer;
  teacache.mode = StepCacheMode::teacache;
  teacache.threshold = 0.3;
  teacache.coefficients = {0, 0, 0, 1, 0};
  for (const StepCacheConfig& config : {taylorseer, teacache}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const CachedRun cpu = run_cached(config, at::kCPU, dtype);
      const CachedRun gpu = run_cached(config, kGpu, dtype);
      CHECK((gpu.computed == cpu.computed));
      REQUIRE(gpu.predicted.size() == cpu.predicted.size());
      CHECK(cpu.predicted.size() >= 8);
      // The GPU divides by a number as it multiplies by its reciprocal.
      const double limit = dtype == at::kFloat ? 1e-5 : 0.05;
      for (std::size_t i = 0; i < cpu.predicted.size(); ++i) {
        const Tensor difference = gpu.predicted[i] - cpu.predicted[i];
        CHECK((difference.norm() / cpu.predicted[i].norm()).item<double>() < limit);
      }
    }
  }
}

TEST_CASE("greedy, sampled, top_k and top_p choose on the GPU what Python chooses") {
  token_cases::check_choices(kGpu);
}

TEST_CASE("a generator's tokens are Python's, chosen on the GPU") {
  token_cases::check_sequences(kGpu);
}

TEST_CASE("logits on the GPU that are not finite give no token") {
  token_cases::check_not_finite(kGpu);
}

TEST_CASE("the released vocabulary: the same choice every time") {
  constexpr std::int64_t kVocab = 152064, kLimit = 151665;
  const Tensor logits =
      (at::sin(at::arange(kVocab, at::kDouble) * 1.7) * 9).to(kGpu, at::kBFloat16);
  RaceDraws draws(cpu_generator(5), kVocab);
  for (const TokenSampling& sampling :
       {TokenSampling{}, {0.8, 0, 1}, {0.8, 40, 1}, {0.8, 0, 0.9}, {0.8, 5000, 0.5}}) {
    const Tensor race = draws.next().to(kGpu);
    const Tensor first = next_token(logits, sampling, race, kLimit);
    const Tensor on_cpu = next_token(logits.cpu(), sampling, race.cpu(), kLimit);
    CHECK(first.cpu().equal(on_cpu));
    for (int i = 0; i < 20; ++i) CHECK(next_token(logits, sampling, race, kLimit).equal(first));
  }
}

#if DIPTYCH_HAVE_CUDA
TEST_CASE("a CUDA graph chooses as a plain call does") {
  constexpr std::int64_t kVocab = 640, kLimit = 622;
  for (const TokenSampling& sampling :
       {TokenSampling{}, {0.9, 0, 1}, {0.9, 20, 1}, {0.9, 0, 0.35}, {1.3, 50, 0.8}}) {
    RaceDraws draws(cpu_generator(7), kVocab);
    Tensor logits = token_cases::sequence_logits(0).to(kGpu), race = at::ones_like(logits);
    const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
    next_token(logits, sampling, race, kLimit);  // workspaces are made outside the graph
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    const Tensor captured = next_token(logits, sampling, race, kLimit);
    graph.capture_end();
    for (std::int64_t step = 0; step < 12; ++step) {
      logits.copy_(token_cases::sequence_logits(step));
      race.copy_(draws.next());
      graph.replay();
      CHECK(captured.equal(next_token(logits, sampling, race, kLimit)));
    }
    logits.fill_(NAN);
    graph.replay();
    CHECK(captured.item<std::int64_t>() == kNoToken);
  }
}
#endif

}  // namespace diptych
