#include "lib/pipelines/mot/text_decoder.h"

#include <doctest/doctest.h>

#include "tests/pipelines/text_decoder_cases.h"

namespace diptych {

TEST_CASE("a text ends where it should, and its draws with it") {
  test::check_tokens("cpu");
}

TEST_CASE("watched or stopped, a decoder writes the same text") {
  test::check_watching_and_stopping("cpu", "float32");
}

TEST_CASE("a missing kernel is known from the model's sizes") {
  Runtime runtime;  // nothing is put on the device
  runtime.device = at::Device(at::kCUDA, 0);
  runtime.dtype = at::kBFloat16;
  runtime.read_attention = StageBackends(make_attention("auto", at::kCPU));
  QwenConfig config;
  config.num_attention_heads = config.num_key_value_heads = 4;
  config.head_dim = 24;
  CHECK(missing_text_kernel(config, runtime).has_value());
  config.head_dim = 128;
  CHECK(missing_text_kernel(config, runtime).has_value() == (DIPTYCH_HAVE_CUDA == 0));
  // Not asked for.
  config.head_dim = 24;
  runtime.kernels = KernelPolicy::reference;
  CHECK_FALSE(missing_text_kernel(config, runtime));
  runtime.kernels = KernelPolicy::strict;
  CHECK(missing_text_kernel(config, runtime).has_value());
  runtime.read_attention = StageBackends(make_attention("math", at::kCPU));
  CHECK_FALSE(missing_text_kernel(config, runtime));
  runtime.read_attention = StageBackends(make_attention("auto", at::kCPU));
  runtime.device = at::kCPU;
  CHECK_FALSE(missing_text_kernel(config, runtime));
}

}  // namespace diptych
