#include "lib/models/cosmos/memory.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::int64_t kFloat = 4, kLong = 8;

std::int64_t element_size(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t total_rows(const CosmosForward& f) {
  return f.samples * f.size.rows();
}

// A forward's rows of the blocks, in elements of the dtype for each row where not said otherwise.
class Blocks {
 public:
  Blocks(const CosmosConfig& c, const CosmosForward& f, const MatrixFormat& format)
      : width_(c.width()),
        inner_(c.inner()),
        rows_(total_rows(f)),
        element_(element_size(format.dtype)),
        format_(format),
        forward_(f) {}

  std::int64_t bytes() const { return std::max({self(), cross(), feed_forward(), norm()}); }

 private:
  // Rows that a quantised matrix meets have a copy of their own.
  std::int64_t quantised(std::int64_t width) const {
    return format_.quantization == Quantization::fp8 ? rows_ * (width + kFloat) : 0;
  }
  // Rows are quantised in float32 in plain torch: widened, and what becomes of them.
  std::int64_t in_reference(std::int64_t width) const {
    const std::int64_t copies = format_.dtype == at::kFloat ? 1 : 2;
    return forward_.reference_kernels ? copies * rows_ * width * kFloat : 0;
  }
  // What stands for a quantised matrix while it is multiplied: of int8 a copy in the run's dtype;
  // in plain torch one in float32 and, of fp8, rows and products in it.
  std::int64_t dequantised(std::int64_t outputs, std::int64_t inputs) const {
    if (format_.quantization == Quantization::none) return 0;
    const std::int64_t matrix = outputs * inputs;
    const bool fp8 = format_.quantization == Quantization::fp8;
    if (!forward_.reference_kernels) return fp8 ? 0 : matrix * element_;
    return matrix * kFloat + (fp8 ? rows_ * (outputs + inputs) * kFloat : matrix * element_);
  }
  std::int64_t elements(std::int64_t of_row) const { return rows_ * of_row * element_; }

  // x and the projected rows beside their rotated copies, or beside the rows they are made of.
  std::int64_t self() const {
    const std::int64_t projected = elements(5 * width_) + dequantised(3 * width_, width_);
    if (!forward_.reference_kernels) return std::max(projected, elements(7 * width_));
    // In plain torch one of the copies is made in steps, in float32: 2.5 of its width, or one more
    // where it is widened first.
    const std::int64_t halves = format_.dtype == at::kFloat ? 5 : 7;
    return std::max(projected, elements(6 * width_) + rows_ * width_ * halves * kFloat / 2);
  }
  // x, q and what was attended, and the keys of all rows of the texts.
  std::int64_t cross() const {
    const std::int64_t keys = forward_.shared == SharedKeys::repeated ? kCosmosTextRows : 0;
    return elements(4 * width_) + forward_.samples * keys * 2 * width_ * element_;
  }
  // x and the inner rows, beside those that they are made of, what is made of them, or, in fp8,
  // their quantised copy, which takes their place.
  std::int64_t feed_forward() const {
    if (format_.quantization != Quantization::fp8)
      return elements(2 * width_ + inner_) + dequantised(inner_, width_);
    const std::int64_t both = elements(width_ + inner_);
    return std::max({both + quantised(width_) + dequantised(inner_, width_),
                     both + quantised(inner_) + in_reference(inner_),
                     elements(2 * width_) + quantised(inner_) + dequantised(inner_, width_)});
  }
  // x, what is added and the normed rows; in plain torch the tables of every row, in float32.
  std::int64_t norm() const {
    return elements(3 * width_) + (forward_.reference_kernels ? rows_ * width_ * 4 * kFloat : 0);
  }

  std::int64_t width_, inner_, rows_, element_;
  MatrixFormat format_;
  const CosmosForward& forward_;
};

}  // namespace

std::int64_t cosmos_weight_bytes(const CosmosConfig& c, const MatrixFormat& format,
                                 const std::optional<BlockOffload>& offload) {
  const std::int64_t width = c.width(), rank = c.adaln_lora_dim;
  const std::int64_t modulation = 3 * c.num_layers * 4 * width * rank + 3 * width * rank;
  const std::int64_t norms = width + 4 * c.num_layers * c.attention_head_dim;
  const std::int64_t others =
      (c.patch_in() + c.patch_out() + 4 * width) * width + modulation + norms;
  const std::int64_t step = CosmosBlock::matrix_bytes(BlockPart::step, c, format),
                     context = CosmosBlock::matrix_bytes(BlockPart::context, c, format);
  const std::int64_t resident =
      offload ? std::clamp<std::int64_t>(offload->resident, 0, c.num_layers) : c.num_layers;
  const std::int64_t places = resident < c.num_layers ? offload->slots : 0;
  return others * element_size(format.dtype) + resident * (step + context) +
         places * std::max(step, context);
}

std::int64_t cosmos_context_bytes(const CosmosConfig& c, const CosmosForward& f,
                                  at::ScalarType dtype) {
  return c.num_layers * f.samples * f.text_keys * 2 * c.width() * element_size(dtype);
}

std::int64_t cosmos_plan_bytes(const CosmosConfig& c, const CosmosForward& f,
                               at::ScalarType dtype) {
  const std::int64_t masks = (c.channels() - c.out_channels) * f.size.frames * f.size.height *
                             f.size.width * element_size(dtype);
  // Cosines, sines and slots.
  return masks + total_rows(f) * (c.attention_head_dim * kFloat + kLong);
}

std::int64_t cosmos_forward_bytes(const CosmosConfig& c, const CosmosForward& f,
                                  const MatrixFormat& format) {
  const std::int64_t element = element_size(format.dtype);
  // Which time a row has; the tables, summed from those in the dtype.
  const std::int64_t tables = 9 * c.num_layers * f.times * c.width() * kFloat;
  return total_rows(f) * kLong + tables + 4 * f.times * c.width() * element +
         Blocks(c, f, format).bytes();
}

}  // namespace diptych
