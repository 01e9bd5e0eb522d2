#include "lib/models/cosmos/layout.h"

#include <fmt/format.h>

namespace diptych {
namespace {

class Layout {
 public:
  void add(const std::string& module, std::vector<std::int64_t> shape) {
    tensors_.push_back({module + ".weight", std::move(shape)});
  }
  // Shift, scale and, in blocks, gate: `parts` of the width.
  void modulation(const std::string& name, const CosmosConfig& c, std::int64_t parts) {
    add(name + ".linear_1", {c.adaln_lora_dim, c.width()});
    add(name + ".linear_2", {parts * c.width(), c.adaln_lora_dim});
  }
  void attention(const std::string& name, const CosmosConfig& c, std::int64_t key_width) {
    const std::int64_t width = c.width();
    add(name + ".norm_q", {c.attention_head_dim});
    add(name + ".norm_k", {c.attention_head_dim});
    add(name + ".to_q", {width, width});
    add(name + ".to_k", {width, key_width});
    add(name + ".to_v", {width, key_width});
    add(name + ".to_out.0", {width, width});
  }
  void block(const std::string& name, const CosmosConfig& c) {
    modulation(name + ".norm1", c, 3);
    attention(name + ".attn1", c, c.width());
    modulation(name + ".norm2", c, 3);
    attention(name + ".attn2", c, c.text_embed_dim);
    modulation(name + ".norm3", c, 3);
    add(name + ".ff.net.0.proj", {c.inner(), c.width()});
    add(name + ".ff.net.2", {c.width(), c.inner()});
  }
  std::vector<TensorShape> take() { return std::move(tensors_); }

 private:
  std::vector<TensorShape> tensors_;
};

}  // namespace

std::vector<TensorShape> cosmos_layout(const CosmosConfig& c) {
  Layout layout;
  const std::int64_t width = c.width();
  layout.add("patch_embed.proj", {width, c.patch_in()});
  layout.add("time_embed.t_embedder.linear_1", {width, width});
  layout.add("time_embed.t_embedder.linear_2", {3 * width, width});
  layout.add("time_embed.norm", {width});
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    layout.block(fmt::format("transformer_blocks.{}", i), c);
  layout.modulation("norm_out", c, 2);
  layout.add("proj_out", {c.patch_out(), width});
  return layout.take();
}

}  // namespace diptych
