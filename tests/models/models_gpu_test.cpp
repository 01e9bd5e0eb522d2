#include <doctest/doctest.h>

#include "tests/models/siglip_inputs.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

Tensor features(at::Device device, at::ScalarType dtype, const std::string& attention) {
  const Tensor patches = siglip_inputs::patches().to(device, dtype);
  const auto backend = make_attention(attention, device);
  return siglip_inputs::load_tiny(dtype, device)
      .forward(patches, siglip_inputs::position_ids(), *backend)  // ids may stay on the CPU
      .cpu()
      .to(at::kFloat);
}

double relative_norm(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

}  // namespace

TEST_CASE("the vision transformer on the GPU gives the CPU's features") {
  const Tensor expected = features(at::kCPU, at::kFloat, "math");
  for (const char* attention : {"math", "sdpa", "auto"}) {
    CAPTURE(attention);
    CHECK(relative_norm(features(kGpu, at::kFloat, attention), expected) < 1e-5);
  }
}

TEST_CASE("in bfloat16 every usable attention backend serves it") {
  const Tensor expected = features(at::kCPU, at::kFloat, "math");
  const AttentionKind kind = {kGpu, at::kBFloat16, siglip_inputs::load_tiny().config.head_dim()};
  const double plain = relative_norm(features(at::kCPU, at::kBFloat16, "math"), expected);
  for (const AttentionInfo& info : list_attention(kGpu)) {
    if (info.unavailable || attention_unsupported(info.name, kind)) continue;
    CAPTURE(info.name);
    CHECK(relative_norm(features(kGpu, at::kBFloat16, info.name), expected) < 2 * plain);
  }
}

}  // namespace diptych
