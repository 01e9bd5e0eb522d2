#include "lib/models/wan/context.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/wan/wan.h"
#include "lib/ops/layer_norm.h"
#include "lib/ops/rms_norm_rope.h"

namespace diptych {
namespace {

constexpr double kImageNormEps = 1e-5;  // a constant of the model's code

// Layer norm with weights, in float32, rounded once.
Tensor affine_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                   const Kernels& kernels) {
  return layer_norm(x, {weight.unsqueeze(0), bias.unsqueeze(0)}, eps, Quantization::none, kernels)
      .values;
}

// Of each sample its own rows and then, as far as its keys go and behind them, the zero row, which
// is the last of `embedded`. -> [samples * capacity, width]
Tensor lay_out(const Tensor& embedded, std::span<const PaddedText> texts, std::int64_t capacity) {
  std::vector<std::int64_t> index;
  std::int64_t first = 0;
  for (const PaddedText& text : texts) {
    for (std::int64_t row = 0; row < capacity; ++row)
      index.push_back(row < text.own ? first + row : embedded.size(0) - 1);
    first += text.own;
  }
  return embedded.index_select(0, at::tensor(index, at::kLong).to(embedded.device()));
}

// Keys (normed) and values of embedded rows [samples * rows, width].
Tensor keys_and_values(const Tensor& rows, const LinearOperand& weight, const Tensor& bias,
                       const Tensor& norm_k, double eps, const Kernels& kernels) {
  const Tensor kv = linear(rows, weight, bias, kernels);
  rms_norm_rope_({.x = kv, .weights = {norm_k}, .eps = eps}, kernels);
  return kv;
}

// The first rows of each text as the golden data hold them: with its zero rows.
void show_texts(const Tensor& laid_out, const WanContext& context, const WanTexts& texts,
                const WanObserver& observer) {
  const std::int64_t count = std::min<std::int64_t>(64, texts.padded_to);
  const std::int64_t capacity = laid_out.size(0) / context.samples();
  std::vector<std::int64_t> index;
  for (std::int64_t sample = 0; sample < context.samples(); ++sample) {
    const PaddedText& text = context.texts[static_cast<std::size_t>(sample)];
    for (std::int64_t row = 0; row < count; ++row)
      index.push_back(sample * capacity + std::min(row, text.keys() - 1));
  }
  observer("context_text_first64",
           laid_out.index_select(0, at::tensor(index, at::kLong).to(laid_out.device()))
               .view({context.samples(), count, -1}));
}

}  // namespace

Tensor WanTransformer::embed_texts(const std::vector<Tensor>& texts, const Kernels& kernels) const {
  std::vector<Tensor> rows;
  for (const Tensor& text : texts) rows.push_back(text.to(options()));
  rows.push_back(at::zeros({1, config.text_dim}, options()));
  const Tensor inner =
      linear(at::cat(rows), text_embedder.linear_1, text_embedder.linear_1_bias, kernels);
  return linear(at::gelu(inner, "tanh"), text_embedder.linear_2, text_embedder.linear_2_bias,
                kernels);
}

Tensor WanTransformer::embed_image(const Tensor& image, std::int64_t samples,
                                   const Kernels& kernels) const {
  TORCH_CHECK(config.image_dim.has_value(), "[wan] an image for a model that sees none");
  const std::int64_t width = *config.image_dim;
  Tensor x = (image.dim() == 2 ? image.unsqueeze(0) : image).to(options());
  TORCH_CHECK(x.dim() == 3 && (x.size(0) == 1 || x.size(0) == samples) && x.size(2) == width &&
                  x.size(1) == config.pos_embed_seq_len.value_or(x.size(1)),
              "[wan] an image of ", image.sizes());
  if (image_embedder.pos_embed.defined()) x = x + image_embedder.pos_embed;
  const std::int64_t images = x.size(0), rows = x.size(1);
  x = affine_norm(x.reshape({-1, width}), image_embedder.norm1, image_embedder.norm1_bias,
                  kImageNormEps, kernels);
  x = at::gelu(linear(x, image_embedder.ff_in, image_embedder.ff_in_bias, kernels));
  x = linear(x, image_embedder.ff_out, image_embedder.ff_out_bias, kernels);
  x = affine_norm(x, image_embedder.norm2, image_embedder.norm2_bias, kImageNormEps, kernels);
  return x.view({images, rows, config.width()}).expand({samples, -1, -1});
}

WanContext WanTransformer::make_context(const WanTexts& texts, const Kernels& kernels,
                                        const WanObserver& observer) const {
  WanContext context;
  context.texts = padded_texts(texts.rows, texts.padded_to, config.text_dim, "wan");
  TORCH_CHECK(texts.image.defined() == config.image_dim.has_value(),
              "[wan] a context with an image: ", texts.image.defined());
  const std::int64_t samples = context.samples(), width = config.width();
  const std::int64_t capacity = key_capacity(context.texts);
  const Tensor text = lay_out(embed_texts(texts.rows, kernels), context.texts, capacity);
  if (observer) show_texts(text, context, texts, observer);
  Tensor image;  // [samples * image rows, width]
  if (texts.image.defined()) {
    const Tensor embedded = embed_image(texts.image, samples, kernels);
    if (observer) observer("context_image", embedded);
    image = embedded.reshape({-1, width});
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const WanBlock& block = blocks.acquire(i, BlockPart::context);
    context.text.push_back(keys_and_values(text, block.attn2_kv, block.attn2_kv_bias,
                                           block.attn2_norm_k, config.eps, kernels)
                               .view({samples, capacity, 2 * width}));
    if (image.defined()) {
      context.image.push_back(keys_and_values(image, block.image_kv, block.image_kv_bias,
                                              block.image_norm_k, config.eps, kernels)
                                  .view({samples, -1, 2 * width}));
    }
    blocks.release();
  }
  return context;
}

WanContext WanContext::slice(std::int64_t first, std::int64_t count) const {
  TORCH_CHECK(first >= 0 && count >= 1 && first + count <= samples(), "[wan] samples ", first,
              " to ", first + count, " of ", samples());
  WanContext part;
  part.texts.assign(texts.begin() + first, texts.begin() + first + count);
  for (const Tensor& rows : text) part.text.push_back(rows.narrow(0, first, count));
  for (const Tensor& rows : image) part.image.push_back(rows.narrow(0, first, count));
  return part;
}

namespace {

void check_positions(const char* axis, std::int64_t positions, const WanConfig& c) {
  if (positions <= c.rope_max_seq_len) return;
  throw InputError("wan: {} positions along the {}, expected at most {}", positions, axis,
                   c.rope_max_seq_len);
}

}  // namespace

WanPlan WanTransformer::plan(const WanContext& context, const WanLatentSize& size,
                             SharedKeys shared, const RowShare& share) const {
  TORCH_CHECK(size.frames > 0 && size.height > 0 && size.width > 0 && size.height % 2 == 0 &&
                  size.width % 2 == 0,
              "[wan] latents of ", size.frames, " x ", size.height, " x ", size.width);
  check_positions("frames", size.frames, config);
  check_positions("height", size.height / 2, config);
  check_positions("width", size.width / 2, config);
  const at::Device device = options().device();
  WanPlan plan;
  plan.size = size;
  plan.samples = context.samples();
  plan.share = share;
  const auto [cos, sin] =
      axial_rope_table({size.frames, size.height / 2, size.width / 2, config.attention_head_dim});
  plan.cos = share.cut(cos, 0).to(device);
  plan.sin = share.cut(sin, 0).to(device);
  const auto of_samples = [&](std::int64_t rows) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(plan.samples), rows);
  };
  plan.self = share.lengths(plan.samples, size.rows(), device);
  const std::vector<std::int64_t> rows = of_samples(plan.own_rows());
  plan.text = TextAttention::make(context.texts, context.capacity(), rows, shared, device);
  if (!context.image.empty()) {
    const std::int64_t keys = context.image.front().size(1);
    plan.image = AttentionLengths::make(rows, of_samples(keys), keys, device);
  }
  return plan;
}

}  // namespace diptych
