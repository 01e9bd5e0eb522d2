#include "lib/models/wan/names.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace diptych {
namespace {

using Names = std::pair<std::string_view, std::string_view>;  // diffusers, original

constexpr auto kTop = std::to_array<Names>({
    {"scale_shift_table", "head.modulation"},
    {"proj_out", "head.head"},
    {"condition_embedder.text_embedder.linear_1", "text_embedding.0"},
    {"condition_embedder.text_embedder.linear_2", "text_embedding.2"},
    {"condition_embedder.time_embedder.linear_1", "time_embedding.0"},
    {"condition_embedder.time_embedder.linear_2", "time_embedding.2"},
    {"condition_embedder.time_proj", "time_projection.1"},
    {"condition_embedder.image_embedder.norm1", "img_emb.proj.0"},
    {"condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"},
    {"condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"},
    {"condition_embedder.image_embedder.norm2", "img_emb.proj.4"},
    {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
});

constexpr auto kBlock = std::to_array<Names>({
    {"scale_shift_table", "modulation"},
    {"attn1.to_q", "self_attn.q"},
    {"attn1.to_k", "self_attn.k"},
    {"attn1.to_v", "self_attn.v"},
    {"attn1.to_out.0", "self_attn.o"},
    {"attn1", "self_attn"},
    {"attn2.to_q", "cross_attn.q"},
    {"attn2.to_k", "cross_attn.k"},
    {"attn2.to_v", "cross_attn.v"},
    {"attn2.to_out.0", "cross_attn.o"},
    {"attn2.add_k_proj", "cross_attn.k_img"},
    {"attn2.add_v_proj", "cross_attn.v_img"},
    {"attn2.norm_added_k", "cross_attn.norm_k_img"},
    {"attn2", "cross_attn"},
    {"ffn.net.0.proj", "ffn.0"},
    {"ffn.net.2", "ffn.2"},
    {"norm2", "norm3"},
});

// The first name of the list that is the name, or its first segments, is replaced.
std::string replaced(std::string_view name, std::span<const Names> list) {
  for (const auto& [diffusers, original] : list) {
    if (!name.starts_with(diffusers)) continue;
    const std::string_view rest = name.substr(diffusers.size());
    if (rest.empty() || rest.starts_with('.')) return std::string(original) + std::string(rest);
  }
  return std::string(name);
}

}  // namespace

std::string wan_original_name(std::string_view diffusers) {
  constexpr std::string_view kBlocks = "blocks.";
  const std::size_t dot = diffusers.find('.', kBlocks.size());
  if (!diffusers.starts_with(kBlocks) || dot == std::string_view::npos)
    return replaced(diffusers, kTop);
  return std::string(diffusers.substr(0, dot + 1)) + replaced(diffusers.substr(dot + 1), kBlock);
}

}  // namespace diptych
