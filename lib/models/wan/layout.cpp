#include "lib/models/wan/layout.h"

#include <fmt/format.h>

namespace diptych {
namespace {

class Layout {
 public:
  void add(std::string name, std::vector<std::int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void norm(const std::string& name, std::int64_t width) {  // with an offset
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  void condition_embedder(const WanConfig& c);
  void block(const std::string& name, const WanConfig& c);
  std::vector<TensorShape> take() { return std::move(tensors_); }

 private:
  std::vector<TensorShape> tensors_;
};

void Layout::condition_embedder(const WanConfig& c) {
  const std::string name = "condition_embedder.";
  const std::int64_t width = c.width();
  linear(name + "time_embedder.linear_1", width, c.freq_dim);
  linear(name + "time_embedder.linear_2", width, width);
  linear(name + "time_proj", 6 * width, width);
  linear(name + "text_embedder.linear_1", width, c.text_dim);
  linear(name + "text_embedder.linear_2", width, width);
  if (!c.image_dim) return;
  const std::string image = name + "image_embedder.";
  if (c.pos_embed_seq_len) add(image + "pos_embed", {1, *c.pos_embed_seq_len, *c.image_dim});
  norm(image + "norm1", *c.image_dim);
  linear(image + "ff.net.0.proj", *c.image_dim, *c.image_dim);
  linear(image + "ff.net.2", width, *c.image_dim);
  norm(image + "norm2", width);
}

void Layout::block(const std::string& name, const WanConfig& c) {
  const std::int64_t width = c.width();
  add(name + "scale_shift_table", {1, 6, width});
  for (const char* attention : {"attn1.", "attn2."}) {
    for (const char* projection : {"to_q", "to_k", "to_v", "to_out.0"})
      linear(name + attention + projection, width, width);
    add(name + attention + "norm_q.weight", {width});
    add(name + attention + "norm_k.weight", {width});
  }
  if (c.image_dim) {
    linear(name + "attn2.add_k_proj", width, width);
    linear(name + "attn2.add_v_proj", width, width);
    add(name + "attn2.norm_added_k.weight", {width});
  }
  if (c.cross_attn_norm) norm(name + "norm2", width);
  linear(name + "ffn.net.0.proj", c.ffn_dim, width);
  linear(name + "ffn.net.2", width, c.ffn_dim);
}

}  // namespace

std::vector<TensorShape> wan_layout(const WanConfig& c) {
  Layout layout;
  const std::int64_t width = c.width(), side = WanConfig::kPatch;
  layout.add("scale_shift_table", {1, 2, width});
  layout.add("patch_embedding.weight", {width, c.in_channels, 1, side, side});
  layout.add("patch_embedding.bias", {width});
  layout.condition_embedder(c);
  for (std::int64_t i = 0; i < c.num_layers; ++i) layout.block(fmt::format("blocks.{}.", i), c);
  layout.linear("proj_out", c.patch_out(), width);
  return layout.take();
}

void check_wan_tensors(const Weights& weights, const WanConfig& c) {
  for (const auto& [name, shape] : wan_layout(c)) weights.check(name, shape);
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    const std::string unused = fmt::format("blocks.{}.attn2.norm_added_q.weight", i);
    if (c.image_dim && weights.contains(unused)) weights.check(unused, {c.width()});
  }
  weights.require_all_read();
}

}  // namespace diptych
