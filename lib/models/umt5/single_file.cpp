#include "lib/models/umt5/single_file.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace diptych {
namespace {

using Names = std::pair<std::string_view, std::string_view>;  // transformers, original

constexpr auto kTop = std::to_array<Names>({
    {"shared.weight", "token_embedding.weight"},
    {"encoder.final_layer_norm.weight", "norm.weight"},
});
constexpr auto kLayer = std::to_array<Names>({
    {"layer.0.SelfAttention.q.weight", "attn.q.weight"},
    {"layer.0.SelfAttention.k.weight", "attn.k.weight"},
    {"layer.0.SelfAttention.v.weight", "attn.v.weight"},
    {"layer.0.SelfAttention.o.weight", "attn.o.weight"},
    {"layer.0.SelfAttention.relative_attention_bias.weight", "pos_embedding.embedding.weight"},
    {"layer.0.layer_norm.weight", "norm1.weight"},
    {"layer.1.DenseReluDense.wi_0.weight", "ffn.gate.0.weight"},
    {"layer.1.DenseReluDense.wi_1.weight", "ffn.fc1.weight"},
    {"layer.1.DenseReluDense.wo.weight", "ffn.fc2.weight"},
    {"layer.1.layer_norm.weight", "norm2.weight"},
});
constexpr std::array kPrefixes = {"text_encoders.umt5xxl.transformer.", "text_encoder.", ""};
constexpr std::string_view kAnchor = "encoder.final_layer_norm.weight";
constexpr std::string_view kOwnAnchor = "blocks.0.attn.q.weight";

}  // namespace

std::string umt5_original_name(std::string_view transformers) {
  for (const auto& [name, original] : kTop) {
    if (transformers == name) return std::string(original);
  }
  constexpr std::string_view kBlock = "encoder.block.";
  const std::size_t dot = transformers.find('.', kBlock.size());
  if (!transformers.starts_with(kBlock) || dot == std::string_view::npos)
    return std::string(transformers);
  for (const auto& [name, original] : kLayer) {
    if (transformers.substr(dot + 1) == name)
      return fmt::format("blocks.{}.{}", transformers.substr(kBlock.size(), dot - kBlock.size()),
                         original);
  }
  return std::string(transformers);
}

std::optional<Umt5FileNaming> umt5_file_naming(const CheckpointFiles& files) {
  for (const char* prefix : kPrefixes) {
    const auto has = [&](std::string_view name) {
      return files.owner.contains(fmt::format("{}{}", prefix, name));
    };
    if (has(kAnchor)) return Umt5FileNaming{prefix, false};
    if (has(kOwnAnchor) && has(umt5_original_name("shared.weight")))
      return Umt5FileNaming{prefix, true};
  }
  return std::nullopt;
}

WeightReading umt5_file_reading(const Umt5FileNaming& naming, const Umt5Config& config) {
  WeightReading reading;
  reading.prefix = naming.prefix;
  reading.names["spiece_model"] = "";
  if (!naming.original) return reading;
  for (const TensorShape& tensor : umt5_layout(config))
    reading.names[umt5_original_name(tensor.name)] = tensor.name;
  return reading;
}

}  // namespace diptych
