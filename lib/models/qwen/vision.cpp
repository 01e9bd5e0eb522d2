#include "lib/models/qwen/vision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "lib/base/interrupt.h"

namespace diptych {
namespace {

constexpr double kEps = 1e-6;  // a constant of the model's code
// Rows that are rotated at a time: the float32 copies of all would be the largest tensors of all.
constexpr std::int64_t kRotatedRows = 8192;

Tensor norm(const Tensor& x, const Tensor& weight, const Kernels& kernels) {
  return rms_norm(x, weight, kEps, kernels);
}

}  // namespace

QwenVisionBlock QwenVisionBlock::load(const Weights& weights, const QwenVisionConfig& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const Weights attn = weights.scope("attn"), mlp = weights.scope("mlp");
  const auto packed = [&](std::string_view leaf, std::vector<std::int64_t> shape) {
    shape.front() = 2 * inner;
    const Tensor both = at::empty(shape, mlp.options());
    shape.front() = inner;
    mlp.scope("gate_proj").read(leaf, shape, both.narrow(0, 0, inner));
    mlp.scope("up_proj").read(leaf, shape, both.narrow(0, inner, inner));
    return both;
  };
  QwenVisionBlock block;
  block.norm1 = weights.get("norm1.weight", {hidden});
  block.norm2 = weights.get("norm2.weight", {hidden});
  block.qkv = attn.get("qkv.weight", {3 * hidden, hidden});
  block.qkv_bias = attn.get("qkv.bias", {3 * hidden});
  block.proj = attn.get("proj.weight", {hidden, hidden});
  block.proj_bias = attn.get("proj.bias", {hidden});
  block.gate_up_proj = packed("weight", {inner, hidden});
  block.gate_up_bias = packed("bias", {inner});
  block.down_proj = mlp.get("down_proj.weight", {hidden, inner});
  block.down_bias = mlp.get("down_proj.bias", {hidden});
  return block;
}

QwenVisionMerger QwenVisionMerger::load(const Weights& weights, const QwenVisionConfig& c) {
  const std::int64_t merged = c.merged_patches() * c.hidden_size;
  return {weights.get("ln_q.weight", {c.hidden_size}),
          weights.get("mlp.0.weight", {merged, merged}), weights.get("mlp.0.bias", {merged}),
          weights.get("mlp.2.weight", {c.out_hidden_size, merged}),
          weights.get("mlp.2.bias", {c.out_hidden_size})};
}

Tensor QwenVisionMerger::forward(const Tensor& x, const Kernels& kernels) const {
  Tensor rows =
      linear(norm(x, ln_q, kernels).view({-1, inner.size(1)}), inner, inner_bias, kernels);
  rows = at::gelu(rows);
  return linear(rows, outer, outer_bias, kernels);
}

QwenVision QwenVision::load(const Weights& weights, const QwenVisionConfig& c) {
  QwenVision m;
  m.config = c;
  m.patch_embed =
      weights
          .get("patch_embed.proj.weight",
               {c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size})
          .view({c.hidden_size, c.patch_width()});
  for (std::int64_t i = 0; i < c.depth; ++i)
    m.blocks.push_back(QwenVisionBlock::load(weights.scope(fmt::format("blocks.{}", i)), c));
  m.merger = QwenVisionMerger::load(weights.scope("merger"), c);
  return m;
}

namespace {

// The runs of rows that see each other, and where their keys are put: side by side in buffers of
// equal size where the runs differ, else they stay where they are.
struct Segments {
  AttentionLengths lengths;
  Tensor slots;         // int64 [patches]: row of the buffers; undefined: runs of equal length
  Tensor keys, values;  // [segments, capacity, heads, head_dim], zero beyond a run

  Segments(const std::vector<std::int64_t>& runs, const QwenVisionConfig& c,
           const at::TensorOptions& options)
      : lengths(
            AttentionLengths::make(runs, runs, *std::ranges::max_element(runs), options.device())) {
    if (lengths.equal_q()) return;
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::int64_t row = 0; row < runs[i]; ++row)
        rows.push_back(static_cast<std::int64_t>(i) * lengths.capacity + row);
    }
    slots = at::tensor(rows, at::kLong).to(options.device());
    keys = at::zeros({lengths.samples(), lengths.capacity, c.num_heads, c.head_dim()}, options);
    values = at::zeros_like(keys);
  }

  // rows [patches, heads, head_dim] -> as the attention wants keys; `buffer`: keys or values.
  Tensor place(const Tensor& rows, const Tensor& buffer) const {
    if (!slots.defined()) return rows.unflatten(0, {lengths.samples(), lengths.max_q});
    buffer.flatten(0, 1).index_copy_(0, slots, rows);
    return buffer;
  }
};

struct Rotation {
  Tensor cos, sin;  // float32 [patches, head_dim / 2]
};

// qk [patches, 2, heads, head_dim], in place; in float32, then rounded.
void rotate_(const Tensor& qk, const Rotation& rotation) {
  const std::int64_t half = rotation.cos.size(1);
  for (std::int64_t first = 0; first < qk.size(0); first += kRotatedRows) {
    const std::int64_t rows = std::min(kRotatedRows, qk.size(0) - first);
    const auto of_rows = [&](const Tensor& table) {
      return table.narrow(0, first, rows).unsqueeze(1).unsqueeze(1);
    };
    const Tensor cos = of_rows(rotation.cos), sin = of_rows(rotation.sin);
    const Tensor into = qk.narrow(0, first, rows), x = into.to(at::kFloat);
    const Tensor x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
    const Tensor y1 = x1 * cos - x2 * sin, y2 = x2 * cos + x1 * sin;
    into.narrow(-1, 0, half).copy_(y1);
    into.narrow(-1, half, half).copy_(y2);
  }
}

// What the blocks of one pass share.
struct Pass {
  const QwenVisionConfig& config;
  const Rotation& rotation;
  const AttentionBackend& attention;
  const Kernels& kernels;
};

// x [patches, hidden] -> the attended rows [patches, hidden], before proj.
Tensor attend(const Tensor& x, const QwenVisionBlock& block, const Segments& segments,
              const Pass& pass) {
  const QwenVisionConfig& c = pass.config;
  const Tensor qkv =
      linear(norm(x, block.norm1, pass.kernels), block.qkv, block.qkv_bias, pass.kernels)
          .view({x.size(0), 3, c.num_heads, c.head_dim()});
  rotate_(qkv.narrow(1, 0, 2), pass.rotation);
  const Tensor keys = segments.place(qkv.select(1, 1), segments.keys),
               values = segments.place(qkv.select(1, 2), segments.values);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim()));
  return pass.attention
      .forward({qkv.select(1, 0), keys, values, &segments.lengths, /*causal=*/false, scale})
      .flatten(1);
}

// x [patches, hidden], in place.
void run_block_(Tensor& x, const QwenVisionBlock& block, const Segments& segments,
                const Pass& pass) {
  const Kernels& kernels = pass.kernels;
  x.add_(linear(attend(x, block, segments, pass), block.proj, block.proj_bias, kernels));
  Tensor inner =
      linear(norm(x, block.norm2, kernels), block.gate_up_proj, block.gate_up_bias, kernels);
  inner = silu_mul(inner, kernels);
  x.add_(linear(inner, block.down_proj, block.down_bias, kernels));
}

// Rows of patches, their groups brought into another order.
Tensor reordered(const Tensor& rows, const Tensor& order, std::int64_t group) {
  return rows.unflatten(0, {-1, group}).index_select(0, order).flatten(0, 1);
}

}  // namespace

Tensor QwenVision::forward(const Tensor& patches, const VisionGrid& grid,
                           const AttentionBackend& attention, const Kernels& kernels,
                           const QwenVisionObserver& observer) const {
  TORCH_CHECK(patches.dim() == 2 && patches.size(0) == grid.patches() && grid.patches() > 0,
              "[qwen_vision] patches ", patches.sizes(), " of ", grid.t, " x ", grid.h, " x ",
              grid.w);
  const auto see = [&observer](const std::string& name, const Tensor& value) {
    if (observer) observer("vit." + name, value.clone());  // x changes in place
  };
  const auto options = patches.options();
  const std::int64_t group = config.merged_patches();
  const VisionWindows layout = vision_windows(grid, config);
  const Tensor order = layout.order.to(options.device());
  Tensor x = linear(patches, patch_embed, {}, kernels);  // [n, hidden]
  see("patch_embed", x);
  x = reordered(x, order, group);

  const Tensor angles = vision_angles(grid, config, x.scalar_type());
  const auto [cos, sin] =
      rope_table(reordered(angles, layout.order, group).to(options.device()), x.scalar_type());
  const Rotation rotation{cos, sin};
  const Segments windows(layout.lengths, config, options);
  const Segments slices(std::vector(static_cast<std::size_t>(grid.t), grid.slice()), config,
                        options);
  const Pass pass{config, rotation, attention, kernels};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the blocks are only launched here
    const bool full = config.attends_fully(static_cast<std::int64_t>(i));
    run_block_(x, blocks[i], full ? slices : windows, pass);
    see(fmt::format("block{:02}", i), x);
  }
  const Tensor merged = merger.forward(x, kernels);
  see("merger", merged);
  const Tensor out = merged.index_select(0, order.argsort());
  see("output", out);
  return out;
}

std::int64_t qwen_vision_bytes(const QwenVisionConfig& config, const VisionGrid& grid,
                               at::ScalarType dtype) {
  const std::int64_t n = grid.patches(), hidden = config.hidden_size,
                     inner = config.intermediate_size, head = config.head_dim(),
                     wide = sizeof(float);
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::vector<std::int64_t> windows = vision_windows(grid, config).lengths;
  const std::int64_t longest = *std::ranges::max_element(windows);
  const std::int64_t room = longest * static_cast<std::int64_t>(windows.size());
  const std::int64_t buffers = room == n ? 0 : 2 * room * hidden;  // of keys and values
  // Patches, x and the cosines and sines of half a head are there all the time.
  const std::int64_t always =
      n * (config.patch_width() + hidden) * element + n * head * wide + buffers * element;
  // The rows that are rotated, q and k, and two halves of each: results and products.
  const std::int64_t rotated = 2 * hidden * std::min(n, kRotatedRows) * 3 * wide;
  const std::int64_t attended = n * 4 * hidden * element;  // qkv and the result, or input
  const std::int64_t gated = n * std::max(3 * inner, 2 * inner + hidden) * element;
  const std::int64_t merged =
      n * 2 * hidden * element + n / config.merged_patches() * config.out_hidden_size * element * 2;
  return always + std::max({n * 3 * hidden * element + rotated, attended, gated, merged});
}

}  // namespace diptych
