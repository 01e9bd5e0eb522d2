#include "lib/runtime/peaks.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/log.h"

namespace diptych {
namespace {

constexpr std::int64_t kSide = 256, kCopied = 8 << 20;
constexpr double kFlops = 2.0 * kSide * kSide * kSide;

// Of one of several in a row, as other work on the machine disturbs short and long times unlike.
double best_seconds(const std::function<void()>& work) {
  constexpr int kRounds = 5, kCalls = 8;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double start = steady_seconds();
    for (int call = 0; call < kCalls; ++call) work();
    best = std::min(best, (steady_seconds() - start) / kCalls);
  }
  return best;
}

// Whether the two come within a factor of 2.5, at the best of a few tries: other work disturbs
// them.
bool agree(const std::function<double()>& found, const std::function<double()>& expected) {
  double a = 0, b = 0;
  for (int i = 0; i < 20; ++i) {
    a = std::max(a, found());
    b = std::max(b, expected());
    if (a < 2.5 * b && b < 2.5 * a) return true;
  }
  MESSAGE("found ", a, ", expected ", b);
  return false;
}

DevicePeaks measure(Quantization quantization) {
  return measure_peaks({at::kCPU, at::kFloat, quantization, kSide, kCopied});
}

}  // namespace

TEST_CASE("measure_peaks: the rates of a product and of a copy that are timed here") {
  const Tensor x = at::randn({kSide, kSide}), weight = at::randn({kSide, kSide});
  const Tensor from = at::zeros({kCopied / 4}), to = at::empty_like(from);
  CHECK(agree([] { return measure(Quantization::none).plain_flops; },
              [&] { return kFlops / best_seconds([&] { at::linear(x, weight); }); }));
  CHECK(agree([] { return measure(Quantization::none).bytes; },
              [&] { return 2.0 * kCopied / best_seconds([&] { to.copy_(from); }); }));
}

TEST_CASE("measure_peaks: products in e4m3 only where they are asked for") {
  const LinearOperand x = quantize_rows(at::randn({kSide, kSide}), Quantization::fp8,
                                        KernelPolicy::automatic),
                      weight = quantize_rows(at::randn({kSide, kSide}), Quantization::fp8,
                                             KernelPolicy::automatic);
  const Tensor y = at::empty({kSide, kSide});
  CHECK(measure(Quantization::none).fp8_flops == 0);
  CHECK(agree([] { return measure(Quantization::fp8).fp8_flops; },
              [&] {
                return kFlops / best_seconds([&] {
                         linear_into(y, x, weight, {}, KernelPolicy::automatic);
                       });
              }));
}

}  // namespace diptych
