#include "lib/runtime/peaks.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "lib/base/log.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

constexpr int kRounds = 5, kLaunches = 8;  // of each round, so that waiting for it is nothing

double best_seconds(at::Device device, const std::function<void()>& launch) {
  launch();  // makes handles and chooses kernels
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    synchronize(device);
    const double start = steady_seconds();
    for (int i = 0; i < kLaunches; ++i) launch();
    synchronize(device);
    best = std::min(best, (steady_seconds() - start) / kLaunches);
  }
  return best;
}

// Random values: a multiplication of zeros takes less power, and so less time.
double flops(const PeakWork& work, Quantization quantization) {
  const auto options = at::TensorOptions(work.dtype).device(work.device);
  const auto operand = [&] {
    return quantize_rows(at::randn({work.side, work.side}, options), quantization,
                         KernelPolicy::automatic);
  };
  const LinearOperand x = operand(), weight = operand();
  const Tensor y = at::empty({work.side, work.side}, options);
  const auto side = static_cast<double>(work.side);
  return 2 * side * side * side /
         best_seconds(work.device, [&] { linear_into(y, x, weight, {}, KernelPolicy::automatic); });
}

// By the driver, and by a kernel that reads and writes as much: either may be the faster one.
double copied_bytes(const PeakWork& work) {
  constexpr std::int64_t kFloat = 4;
  const Tensor from =
      at::zeros({work.copied / kFloat}, at::TensorOptions(at::kFloat).device(work.device));
  Tensor to = at::empty_like(from);
  const double seconds = std::min(best_seconds(work.device, [&] { to.copy_(from); }),
                                  best_seconds(work.device, [&] { at::neg_out(to, from); }));
  return 2 * static_cast<double>(work.copied) / seconds;
}

}  // namespace

DevicePeaks measure_peaks(const PeakWork& work) {
  DevicePeaks peaks;
  peaks.bytes = copied_bytes(work);
  peaks.plain_flops = flops(work, Quantization::none);
  if (work.quantization == Quantization::fp8) peaks.fp8_flops = flops(work, Quantization::fp8);
  return peaks;
}

}  // namespace diptych
