// Experts on the host: the bits of resident ones, and copies beside the work.
#include <doctest/doctest.h>

#include "lib/base/log.h"
#include "lib/runtime/runtime.h"
#include "tests/models/offload_cases.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// Seconds of one image block of `rows` rows, the third in a row.
double seconds_of(const MotBackbone& model, std::int64_t rows) {
  const auto options = at::TensorOptions().device(kGpu).dtype(at::kBFloat16);
  const std::unique_ptr<AttentionBackend> attention = make_attention("flash", kGpu);
  KvCache cache(model.config.kv_shape(), 1, rows + 2, options);
  const std::vector<MotSample> samples = {{0, 0, rows, 2}};
  const MotPlan plan = plan_image_block(samples, 0, cache, model.config, options);
  double started = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    synchronize(kGpu);
    started = steady_seconds();
    const std::int64_t hidden = model.config.hidden_size;
    model.forward(plan, at::ones({rows + 2, hidden}, options), cache, *attention,
                  KernelPolicy::strict);
    synchronize(kGpu);
  }
  return steady_seconds() - started;
}

}  // namespace

TEST_CASE("experts that pass through slots give the bits of resident ones on the GPU") {
  offload_cases::check_equal_to_resident({kGpu, at::kBFloat16, KernelPolicy::strict});
  offload_cases::check_equal_to_resident({kGpu, at::kFloat, KernelPolicy::strict});
  for (const Quantization quantization : {Quantization::fp8, Quantization::int8}) {
    offload_cases::check_equal_to_resident(
        {kGpu, at::kBFloat16, KernelPolicy::strict, quantization});
  }
}

TEST_CASE("the last layer stops at the keys and values of rows that nobody wants on the GPU") {
  for (const Quantization quantization : {Quantization::none, Quantization::fp8}) {
    offload_cases::check_wanted_rows({kGpu, at::kBFloat16, KernelPolicy::strict, quantization});
  }
}

TEST_CASE("copies run beside the work") {
  QwenConfig config = offload_cases::small_config();
  config.hidden_size = 2048;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.intermediate_size = 8192;
  const offload_cases::Case on{kGpu, at::kBFloat16, KernelPolicy::strict};
  constexpr std::int64_t kRows = 16384;  // the work of a layer is of the length of its copy
  const double work = seconds_of(offload_cases::load(on, config), kRows);
  const MotBackbone streamed = offload_cases::load(on, config, MotOffload{0, 0, 4});
  const double copies = seconds_of(streamed, 16), both = seconds_of(streamed, kRows);
  MESSAGE("work " << 1e3 * work << " ms, copies " << 1e3 * copies << " ms, both " << 1e3 * both
                  << " ms");
  CHECK(both < 0.9 * (work + copies));
}

}  // namespace diptych
