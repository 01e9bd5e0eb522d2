// What a Wan autoencoder computes in, by the flag, the device and the run.
#include "lib/pipelines/vae_media.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

VaeDtype precision(VaeDtype asked, at::Device device, at::ScalarType of_run, bool exact) {
  RunConfig run;
  run.vae_dtype = asked;
  Runtime runtime;
  runtime.device = device;
  runtime.dtype = of_run;
  return wan_vae_precision(run, runtime, exact).name();
}

}  // namespace

TEST_CASE("auto takes tf32 for Wan in bfloat16 on a GPU, else the dtype of the run") {
  using enum VaeDtype;
  const at::Device gpu(at::kCUDA, 0), cpu(at::kCPU);
  CHECK((precision(automatic, gpu, at::kBFloat16, true) == tf32));
  CHECK((precision(automatic, gpu, at::kBFloat16, false) == bfloat16));
  CHECK((precision(automatic, gpu, at::kFloat, true) == float32));
  CHECK((precision(automatic, cpu, at::kBFloat16, true) == bfloat16));
  CHECK((precision(automatic, cpu, at::kFloat, true) == float32));
}

TEST_CASE("a named precision is taken, whatever the run's dtype") {
  using enum VaeDtype;
  const at::Device gpu(at::kCUDA, 0);
  for (const VaeDtype asked : {float32, tf32, bfloat16}) {
    for (const at::ScalarType of_run : {at::kFloat, at::kBFloat16})
      CHECK((precision(asked, gpu, of_run, false) == asked));
  }
}

}  // namespace diptych
