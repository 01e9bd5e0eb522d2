// How fast a device multiplies and copies at best, measured: what shares of a peak are shares of.
#pragma once

#include <cstdint>

#include "lib/ops/linear_operand.h"

namespace diptych {

struct DevicePeaks {       // a second
  double plain_flops = 0;  // of products in the run's dtype
  double fp8_flops = 0;    // of products in e4m3; 0: not measured
  double bytes = 0;        // read and written, of the fastest copy
};

struct PeakWork {
  at::Device device;
  at::ScalarType dtype;
  Quantization quantization = Quantization::none;  // fp8: its products are measured, too
  std::int64_t side = 8192;                        // of the square matrices that are multiplied
  std::int64_t copied = 1ll << 30;                 // bytes: beyond any level 2 cache
};

// The best of a few rounds of each, a quarter of a second in all on the GPUs that it is for. Waits
// for the device and draws from its default generator.
DevicePeaks measure_peaks(const PeakWork& work);

}  // namespace diptych
