#include <exception>
#include <set>
#include <thread>

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/ops/launch_label.h"
#include "lib/runtime/copy_lane.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/runtime/launches.h"
#include "lib/runtime/peaks.h"
#include "lib/runtime/runtime.h"
#include "tests/support/skip.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kMebi = 1 << 20;

Tensor bytes_on_gpu(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().device(kGpu).dtype(at::kByte));
}

// One work, so many times.
bool run(LaunchGraphs& graphs, std::int64_t key, std::int64_t times,
         const std::function<void()>& work) {
  const RepeatedWork repeated = {key, times, work};
  return graphs.run(std::span(&repeated, 1), [] {});
}

}  // namespace

TEST_CASE("limit_memory: what is cached makes room, more than the limit is out of memory") {
  limit_memory(kGpu, static_cast<std::uint64_t>(600 * kMebi));
  for (int i = 0; i < 3; ++i) CHECK(bytes_on_gpu((300 + 50 * i) * kMebi).numel() > 0);
  {
    const Tensor held = bytes_on_gpu(400 * kMebi);
    CHECK_THROWS_AS(bytes_on_gpu(300 * kMebi), c10::OutOfMemoryError);
    CHECK(bytes_on_gpu(100 * kMebi).numel() > 0);
  }
  limit_memory(kGpu, list_gpus().front().total_bytes);
  CHECK(bytes_on_gpu(700 * kMebi).numel() > 0);
}

TEST_CASE("CopyLane: a place is filled after its last use and read after it is filled") {
  constexpr std::int64_t kElements = 16 * kMebi;
  constexpr std::size_t kRounds = 8;
  CopyLane lane(kGpu, 1);
  const Tensor place = at::zeros({kElements}, at::TensorOptions().device(kGpu));
  std::vector<Tensor> sources, seen;
  for (std::size_t round = 0; round < kRounds; ++round) {
    sources.push_back(CopyLane::host_buffer(kElements, at::kFloat, kGpu));
    sources.back().fill_(static_cast<double>(round + 1));
  }
  // Nothing but the lane's events keeps the two streams in step.
  for (std::size_t round = 0; round < kRounds; ++round) {
    lane.fill(0, place, sources[round]);
    lane.await_filled(0);
    const Tensor first = place.min();  // several passes, so that a copy too early would be seen
    seen.push_back(at::stack({first, place.max(), place.amax(), place.amin()}));
    lane.release(0);
  }
  for (std::size_t round = 0; round < kRounds; ++round) {
    CHECK(seen[round].equal(at::full_like(seen[round], static_cast<double>(round + 1))));
  }
}

TEST_CASE("LaunchGraphs: called, captured, replayed, each so many times, in order") {
  const Tensor x = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const Tensor factor = at::full({1}, 2.0, at::TensorOptions().device(kGpu));
  const auto graphs = make_launch_graphs(kGpu);
  REQUIRE(graphs != nullptr);
  int calls = 0;
  const RepeatedWork adds = {1, 2, [&] {
                               ++calls;
                               x.copy_(x + 1);
                             }};
  const RepeatedWork doubles = {2, 3, [&] {
                                  ++calls;
                                  x.copy_(x * factor);
                                }};
  const RepeatedWork order[] = {adds, doubles, adds};
  int done = 0;
  CHECK(graphs->run(order, [&] { ++done; }));
  CHECK(done == 7);
  CHECK(calls == 4);  // of each the first, and the one that is captured
  CHECK(x.min().item<double>() == 18);
  CHECK(x.max().item<double>() == 18);
  // Later ones replay what there is.
  x.fill_(3);
  synchronize(kGpu);
  CHECK(graphs->run(order, [] {}));
  CHECK(calls == 4);
  CHECK(x.min().item<double>() == 42);
  CHECK(x.max().item<double>() == 42);
  CHECK_FALSE(run(*graphs, 3, 1, [&] { x.copy_(x - 1); }));  // called alone
  CHECK(x.min().item<double>() == 41);
}

TEST_CASE("LaunchGraphs: more than a stream holds") {
  const Tensor x = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const auto graphs = make_launch_graphs(kGpu);
  const RepeatedWork work = {0, 3000, [&] { x.add_(1); }};
  int done = 0;
  CHECK(graphs->run(std::span(&work, 1), [&] { ++done; }));
  CHECK(done == 3000);
  CHECK(x.min().item<double>() == 3000);
}

TEST_CASE("LaunchGraphs: what stops the waiting does not wait for the rest") {
  Tensor x = at::zeros({1 << 24}, at::TensorOptions().device(kGpu));
  constexpr std::int64_t kSteps = 200;
  const RepeatedWork work = {0, kSteps, [&] {
                               for (int i = 0; i < 50; ++i) x.add_(1);
                             }};
  auto graphs = make_launch_graphs(kGpu);
  run(*graphs, 0, 2, work.once);
  const double start = steady_seconds();
  run(*graphs, 0, kSteps, work.once);
  const double whole = steady_seconds() - start;
  x.zero_();
  synchronize(kGpu);
  int done = 0;
  const auto stop = [&] {
    if (++done == 3) throw Interrupted(2);
  };
  const double again = steady_seconds();
  CHECK_THROWS_AS(graphs->run(std::span(&work, 1), stop), Interrupted);
  graphs.reset();
  CHECK(steady_seconds() - again < whole / 4);
  // What comes next on this stream is behind all of it.
  CHECK(x.min().item<double>() == 50 * kSteps);
}

TEST_CASE("LaunchGraphs: work that fails while it is captured is no end") {
  const Tensor x = at::zeros({16}, at::TensorOptions().device(kGpu));
  // An exception leaves a capture that can be ended; waiting for the device, one that cannot.
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    x.zero_();
    const auto graphs = make_launch_graphs(kGpu);
    const auto add = [&] { x.add_(at::ones({16}, x.options())); };
    run(*graphs, 1, 2, add);  // a graph that stays
    int calls = 0;
    const auto work = [&] {
      add();
      if (++calls % 2 != 0) return;
      if (!waits) throw std::runtime_error("stop");
      x.cpu();
    };
    if (waits) {
      CHECK_THROWS_AS(run(*graphs, 2, 2, work), c10::Error);
    } else {
      CHECK_THROWS_WITH_AS(run(*graphs, 2, 2, work), "stop", std::runtime_error);
    }
    run(*graphs, 2, 2, add);
    run(*graphs, 1, 1, add);
    CHECK(x.sum().item<double>() == 16 * 6);
  }
}

TEST_CASE("LaunchGraphs: what other threads copy during a capture is copied then, by no graph") {
  constexpr int kLanes = 40;  // more than torch has streams to hand out
  const Tensor source = CopyLane::host_buffer(1000, at::kFloat, kGpu).fill_(7);
  const Tensor copies = at::zeros({kLanes, 1000}, at::TensorOptions().device(kGpu));
  const Tensor x = at::zeros({1000}, copies.options());
  std::exception_ptr failure;
  const auto copy = [&] {
    const c10::InferenceMode inference;
    try {
      for (int i = 0; i < kLanes; ++i) CopyLane(kGpu, 1).fill(0, copies[i], source);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  int calls = 0;
  const auto graphs = make_launch_graphs(kGpu);
  const auto work = [&] {
    x.add_(1);
    if (++calls == 2) std::jthread{copy};
  };
  CHECK(run(*graphs, 0, 2, work));
  CHECK(failure == nullptr);
  CHECK(copies.min().item<double>() == 7);
  copies.zero_();
  synchronize(kGpu);
  run(*graphs, 0, 1, work);
  CHECK(copies.max().item<double>() == 0);
  CHECK(x.min().item<double>() == 3);
}

TEST_CASE("record_launches: the kernels of a scope, and none beside it") {
  const Tensor x = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const auto launches = record_launches("counted", [&] {
    x.add_(1);
    for (int scope = 0; scope < 2; ++scope) {
      synchronize(kGpu);
      RECORD_USER_SCOPE("counted");
      for (int i = 0; i < 5; ++i) {
        if (i == 2) synchronize(kGpu);
        x.add_(1);
      }
      x.cpu();
    }
    synchronize(kGpu);
    x.add_(1);
  });
  REQUIRE(launches.has_value());
  CHECK(launches->kernels == 10);
  CHECK(launches->calls == 10);
  CHECK(launches->waits == 2);  // with something left to launch
  CHECK(launches->copies == 2);
  REQUIRE(launches->scopes.size() == 2);
  for (const std::vector<GpuActivity>& scope : launches->scopes) {
    REQUIRE(scope.size() == 6);
    std::set<std::uint64_t> calls;
    for (std::size_t i = 0; i < scope.size(); ++i) {
      CHECK(scope[i].kernel == (i < 5));
      CHECK(scope[i].end_ns > scope[i].start_ns);
      if (i > 0) CHECK(scope[i].start_ns >= scope[i - 1].end_ns);
      calls.insert(scope[i].launch);
    }
    CHECK(scope[0].name.find("elementwise_kernel") != std::string::npos);
    CHECK(calls.size() == 6);
  }
  CHECK(x[0].item<float>() == 12);
}

TEST_CASE("record_launches: what one graph launched has that launch in common") {
  const Tensor x = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const auto graphs = make_launch_graphs(kGpu);
  const auto add = [&] { x.add_(1).mul_(1); };
  run(*graphs, 0, 2, add);
  const auto launches = record_launches("replayed", [&] {
    RECORD_USER_SCOPE("replayed");
    run(*graphs, 0, 2, add);
  });
  REQUIRE(launches.has_value());
  REQUIRE(launches->scopes.size() == 1);
  const std::vector<GpuActivity>& all = launches->scopes.front();
  REQUIRE(all.size() == 4);
  CHECK(all[0].launch == all[1].launch);
  CHECK(all[1].launch != all[2].launch);
  CHECK(all[2].launch == all[3].launch);
}

TEST_CASE("record_launches: launched one by one or replayed, kernels have their labels") {
  const Tensor x = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const Tensor y = at::zeros({1000}, at::TensorOptions().device(kGpu));
  const auto work = [&] {
    x.add_(1);
    const LaunchLabel outer("outer");
    x.mul_(1);
    {
      const LaunchLabel inner(LaunchName{"inner", "gen"});
      x.add_(1);
      x.add_(1);
      y.copy_(x);
    }
    x.mul_(1);
  };
  const std::vector<std::string> expected = {"",          "outer",     "inner gen",
                                             "inner gen", "inner gen", "outer"};
  const auto graphs = make_launch_graphs(kGpu);
  run(*graphs, 0, 2, work);
  for (const bool replayed : {false, true}) {
    CAPTURE(replayed);
    const auto launches = record_launches("labelled", [&] {
      synchronize(kGpu);
      RECORD_USER_SCOPE("labelled");
      for (int i = 0; i < 2 && !replayed; ++i) work();
      if (replayed) run(*graphs, 0, 2, work);
      synchronize(kGpu);
    });
    REQUIRE(launches.has_value());
    CHECK(launches->unlabelled_graphs == 0);
    REQUIRE(launches->scopes.size() == 1);
    const std::vector<GpuActivity>& all = launches->scopes.front();
    REQUIRE(all.size() == 2 * expected.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(i);
      CHECK(all[i].label == expected[i % expected.size()]);
      CHECK((all[i].launch == all.front().launch) == (i == 0 || (replayed && i < expected.size())));
    }
  }
}

TEST_CASE("measure_peaks: figures of a GPU that is new enough for e4m3, and none where it is not") {
  const DevicePeaks peaks = measure_peaks({kGpu, at::kBFloat16, Quantization::none});
  CHECK(peaks.plain_flops > 2e13);
  CHECK(peaks.plain_flops < 5e15);
  CHECK(peaks.bytes > 2e11);
  CHECK(peaks.bytes < 3e13);
  CHECK(peaks.fp8_flops == 0);
}

TEST_CASE("measure_peaks: products in e4m3 are faster" * doctest::test_suite("needs e4m3")) {
  const GpuInfo gpu = list_gpus().front();
  if (10 * gpu.major + gpu.minor < 89)
    return test::skip("this GPU is older than compute capability 8.9");
  const DevicePeaks peaks = measure_peaks({kGpu, at::kBFloat16, Quantization::fp8});
  CHECK(peaks.fp8_flops > 1.2 * peaks.plain_flops);
}

TEST_CASE("peak_tensor_bytes: what tensors took, not what is kept for later") {
  bytes_on_gpu(64 * kMebi);
  reset_peak_memory(kGpu);
  const std::uint64_t before = peak_tensor_bytes(kGpu);
  bytes_on_gpu(16 * kMebi);
  CHECK(peak_tensor_bytes(kGpu) - before == 16 * kMebi);
  CHECK(peak_memory_bytes(kGpu) >= 64 * kMebi);
}

}  // namespace diptych
