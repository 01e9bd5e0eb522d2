#include <doctest/doctest.h>

#include "tests/models/vision_inputs.h"

namespace diptych {
namespace {

using vision_inputs::relative_norm;

const at::Device kGpu(at::kCUDA, 0);

// Dummy weights are drawn on the CPU, so that all devices have the same.
Tensor features(at::Device device, at::ScalarType dtype, const VisionGrid& grid,
                const std::string& attention) {
  const QwenVisionConfig config = vision_inputs::small_config();
  QwenVision model = QwenVision::load(Weights::dummy(at::kCPU, at::kFloat), config);
  const auto move = [&](Tensor& weight) { weight = weight.to(device, dtype); };
  move(model.patch_embed);
  for (QwenVisionBlock& b : model.blocks) {
    for (Tensor* weight : {&b.norm1, &b.norm2, &b.qkv, &b.qkv_bias, &b.proj, &b.proj_bias,
                           &b.gate_up_proj, &b.gate_up_bias, &b.down_proj, &b.down_bias})
      move(*weight);
  }
  QwenVisionMerger& m = model.merger;
  for (Tensor* weight : {&m.ln_q, &m.inner, &m.inner_bias, &m.outer, &m.outer_bias}) move(*weight);
  return model.forward(vision_inputs::noise_patches(grid, config).to(device, dtype), grid,
                       *make_attention(attention, device), KernelPolicy::automatic);
}

const AttentionKind kKind = {kGpu, at::kBFloat16, vision_inputs::small_config().head_dim()};

// Windows of one size, and of several; more than one slice.
const VisionGrid kGrids[] = {{1, 16, 8}, {2, 6, 10}, {3, 18, 12}};

}  // namespace

TEST_CASE("qwen vision on the GPU gives the CPU's features") {
  for (const VisionGrid& grid : kGrids) {
    const Tensor expected = features(at::kCPU, at::kFloat, grid, "math");
    for (const char* attention : {"math", "sdpa", "auto"}) {
      CAPTURE(attention);
      CHECK(relative_norm(features(kGpu, at::kFloat, grid, attention), expected) < 5e-5);
    }
  }
}

TEST_CASE("qwen vision in bfloat16: every usable attention backend serves it") {
  for (const VisionGrid& grid : kGrids) {
    const Tensor expected = features(at::kCPU, at::kFloat, grid, "math");
    const double plain = relative_norm(features(at::kCPU, at::kBFloat16, grid, "math"), expected);
    for (const AttentionInfo& info : list_attention(kGpu)) {
      if (info.unavailable || attention_unsupported(info.name, kKind)) continue;
      CAPTURE(info.name);
      CHECK(relative_norm(features(kGpu, at::kBFloat16, grid, info.name), expected) < 2 * plain);
    }
  }
}

}  // namespace diptych
