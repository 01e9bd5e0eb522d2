#include "lib/runtime/peaks.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("measure_peaks: of what was asked for, in rates that a machine can have") {
  const DevicePeaks plain = measure_peaks({at::kCPU, at::kFloat, Quantization::none, 256, 8 << 20});
  CHECK(plain.plain_flops > 1e8);
  CHECK(plain.plain_flops < 1e15);
  CHECK(plain.bytes > 1e8);
  CHECK(plain.bytes < 1e14);
  CHECK(plain.fp8_flops == 0);
  CHECK(measure_peaks({at::kCPU, at::kFloat, Quantization::fp8, 64, 1 << 20}).fp8_flops > 1e5);
}

}  // namespace
}  // namespace diptych
