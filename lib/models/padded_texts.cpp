#include "lib/models/padded_texts.h"

#include <algorithm>
#include <cmath>

namespace diptych {
namespace {

// The logarithm of how many keys the last key of each text stands for.
Tensor bias_of(std::span<const PaddedText> texts) {
  std::vector<double> bias;
  for (const PaddedText& text : texts)
    bias.push_back(std::log(static_cast<double>(std::max<std::int64_t>(text.shared, 1))));
  return at::tensor(bias, at::kFloat);
}

// Where each key lies among all texts' kept rows, those that are equal as often as they count.
// `keys`: the most of a text.
Tensor index_of(std::span<const PaddedText> texts, std::int64_t capacity, std::int64_t keys) {
  std::vector<std::int64_t> index;
  std::int64_t first = 0;
  for (const PaddedText& text : texts) {
    for (std::int64_t key = 0; key < keys; ++key)
      index.push_back(first + std::min(key, text.keys() - 1));
    first += capacity;
  }
  return at::tensor(index, at::kLong);
}

}  // namespace

SharedKeys preferred_shared_keys(const AttentionBackend& attention, const AttentionKind& kind) {
  return attention.takes_last_key_bias(kind) ? SharedKeys::weighted : SharedKeys::repeated;
}

std::vector<PaddedText> padded_texts(std::span<const Tensor> rows, std::int64_t padded_to,
                                     std::int64_t width, const char* model) {
  std::vector<PaddedText> texts;
  for (const Tensor& text : rows) {
    TORCH_CHECK(
        text.dim() == 2 && text.size(0) >= 1 && text.size(0) <= padded_to && text.size(1) == width,
        "[", model, "] a text of ", text.sizes(), ", expected [1 to ", padded_to, ", ", width, "]");
    texts.push_back({text.size(0), padded_to - text.size(0)});
  }
  TORCH_CHECK(!texts.empty(), "[", model, "] a context without texts");
  return texts;
}

std::int64_t key_capacity(std::span<const PaddedText> texts) {
  return std::ranges::max(texts, {}, &PaddedText::keys).keys();
}

Tensor lay_out_texts(std::span<const Tensor> rows, std::int64_t capacity,
                     const at::TensorOptions& options) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor laid_out = at::zeros({count, capacity, rows.front().size(1)}, options);
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor& text = rows[static_cast<std::size_t>(i)];
    laid_out[i].narrow(0, 0, text.size(0)).copy_(text);
  }
  return laid_out.flatten(0, 1);
}

TextAttention TextAttention::make(std::span<const PaddedText> texts, std::int64_t capacity,
                                  const std::vector<std::int64_t>& queries, SharedKeys shared,
                                  at::Device device) {
  const bool plain = std::ranges::all_of(texts, [](const auto& text) { return text.shared <= 1; });
  std::vector<std::int64_t> keys;
  for (const PaddedText& text : texts)
    keys.push_back(shared == SharedKeys::weighted ? text.keys() : text.own + text.shared);
  TextAttention made;
  if (!plain && shared == SharedKeys::weighted) made.last_key_bias = bias_of(texts).to(device);
  if (!plain && shared == SharedKeys::repeated) {
    const std::int64_t most = std::ranges::max(keys);
    made.index = index_of(texts, capacity, most).to(device);
    capacity = most;
  }
  made.lengths = AttentionLengths::make(queries, std::move(keys), capacity, device);
  return made;
}

Tensor TextAttention::keys(const Tensor& kept) const {
  if (!index.defined()) return kept;
  return kept.flatten(0, 1).index_select(0, index).view(
      {kept.size(0), lengths.capacity, kept.size(2)});
}

}  // namespace diptych
