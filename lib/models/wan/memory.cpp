#include "lib/models/wan/memory.h"

#include <algorithm>

#include "lib/models/wan/layout.h"

namespace diptych {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

std::int64_t element(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Whether the tensor is kept in float32 whatever the run's dtype (WanTransformer, WanBlock).
bool is_wide(const std::string& name) {
  for (const char* part : {"time_embedder.", "scale_shift_table", "norm1.", "norm2.", "norm3."}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// Matrices of the blocks, which may be quantised and streamed.
bool is_matrix(const TensorShape& tensor) {
  return tensor.name.starts_with("blocks.") && tensor.shape.size() == 2;
}

std::int64_t streamed_blocks(const WanConfig& c, const std::optional<BlockOffload>& offload) {
  if (!offload) return 0;
  return c.num_layers - std::clamp<std::int64_t>(offload->resident, 0, c.num_layers);
}

// Rows of the model's width and of others, in bytes.
class Step {
 public:
  Step(const WanConfig& config, const WanForwardSizes& sizes, const MatrixFormat& format)
      : c_(config),
        s_(sizes),
        format_(format),
        element_(element(format.dtype)),
        rows_(sizes.samples * sizes.latent.rows()) {}

  // x, and the tables that all blocks read.
  std::int64_t always() const {
    const std::int64_t width = c_.width();
    const std::int64_t tables =
        s_.times * width * (7 * element_ + (6 * c_.num_layers + 6) * kFloat) +
        s_.latent.rows() * c_.attention_head_dim * kFloat;
    return wide(1) + tables + rows_ * static_cast<std::int64_t>(sizeof(std::int64_t)) +
           rows_ * (c_.patch_in() + c_.patch_out()) * element_;  // latents, and the result
  }
  std::int64_t self_attention() const {
    const std::int64_t rope = s_.reference ? 8 * rows_ * c_.width() * kFloat : 0;
    return std::max(
        {quantised(c_.width()) + wide(4), wide(3) + rope, wide(4) + attention_in_e4m3()});
  }
  std::int64_t norms() const {
    return wide(2) + (s_.reference ? 6 * rows_ * c_.width() * kFloat : 0);
  }
  std::int64_t cross_attention() const {
    const bool repeats = s_.shared == SharedKeys::repeated;
    const std::int64_t keys = repeats ? s_.samples * kWanTextRows * 2 * c_.width() * element_ : 0;
    const std::int64_t rope = s_.reference ? 6 * rows_ * c_.width() * kFloat : 0;
    return std::max(wide(s_.image_keys > 0 ? 3 : 2) + keys, wide(1) + rope) + quantised(c_.width());
  }
  std::int64_t feed_forward() const {
    return wide(1) + rows_ * c_.ffn_dim * element_ + quantised(c_.ffn_dim);
  }
  // Patches before they are rows; rows before they are the result.
  std::int64_t ends() const {
    return rows_ * 2 * std::max(c_.patch_in(), c_.patch_out()) * element_ + norms();
  }
  // The plain copy of the largest matrix that is made for a product.
  std::int64_t dequantised() const {
    if (format_.quantization != Quantization::int8) return 0;
    return c_.width() * std::max(3 * c_.width(), c_.ffn_dim) *
           (s_.reference ? 2 * kFloat : element_);
  }

 private:
  std::int64_t wide(std::int64_t times) const { return times * rows_ * c_.width() * element_; }
  // Rows as e4m3, and in the reference as float32 beside the products.
  std::int64_t quantised(std::int64_t width) const {
    if (format_.quantization != Quantization::fp8) return 0;
    return rows_ * (width + kFloat) + (s_.reference ? 3 * rows_ * width * kFloat : 0);
  }
  // Queries, keys and values in e4m3 for attention.
  std::int64_t attention_in_e4m3() const {
    return format_.quantization == Quantization::fp8 ? 3 * rows_ * c_.width() : 0;
  }

  const WanConfig& c_;
  const WanForwardSizes& s_;
  MatrixFormat format_;
  std::int64_t element_, rows_;
};

}  // namespace

std::int64_t wan_block_bytes(const WanConfig& config, const MatrixFormat& format) {
  return WanBlock::matrix_bytes(BlockPart::step, config, format) +
         WanBlock::matrix_bytes(BlockPart::context, config, format);
}

std::int64_t wan_weight_bytes(const WanConfig& config, const MatrixFormat& format,
                              const std::optional<BlockOffload>& offload) {
  std::int64_t bytes = 0;
  for (const TensorShape& tensor : wan_layout(config)) {
    if (is_matrix(tensor)) continue;
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.shape) count *= size;
    bytes += count * element(is_wide(tensor.name) ? at::kFloat : format.dtype);
  }
  const std::int64_t streamed = streamed_blocks(config, offload);
  bytes += (config.num_layers - streamed) * wan_block_bytes(config, format);
  if (streamed == 0) return bytes;
  return bytes + std::max<std::int64_t>(offload->slots, 1) *
                     std::max(WanBlock::matrix_bytes(BlockPart::step, config, format),
                              WanBlock::matrix_bytes(BlockPart::context, config, format));
}

std::int64_t wan_host_bytes(const WanConfig& config, const MatrixFormat& format,
                            const std::optional<BlockOffload>& offload) {
  return streamed_blocks(config, offload) * wan_block_bytes(config, format);
}

std::int64_t wan_context_bytes(const WanConfig& config, const WanForwardSizes& sizes,
                               at::ScalarType dtype) {
  return config.num_layers * sizes.samples * (sizes.text_keys + sizes.image_keys) * 2 *
         config.width() * element(dtype);
}

std::int64_t wan_step_bytes(const WanConfig& config, const WanForwardSizes& sizes,
                            const MatrixFormat& format) {
  const Step step(config, sizes, format);
  return step.always() + step.dequantised() +
         std::max({step.self_attention(), step.norms(), step.cross_attention(), step.feed_forward(),
                   step.ends()});
}

}  // namespace diptych
