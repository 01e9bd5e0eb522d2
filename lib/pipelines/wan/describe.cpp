#include "lib/pipelines/wan/describe.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/models/lora/lora_header.h"
#include "lib/models/lora/lora_key.h"
#include "lib/models/umt5/single_file.h"
#include "lib/models/wan/layout.h"
#include "lib/models/wan/single_file.h"
#include "lib/models/wan_vae/single_file.h"
#include "lib/pipelines/wan/loras.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

std::string naming_text(bool original, const std::string& prefix) {
  return fmt::format("{} naming{}", original ? "Wan's own" : "the diffusers",
                     prefix.empty() ? "" : fmt::format(", prefix {}", prefix));
}

// "F8_E4M3 (26 tensors, 26 with a scale), F16 (43)".
std::string formats_text(const CheckpointFiles& files, const WeightSources& sources) {
  struct Count {
    std::size_t all = 0, scaled = 0;
  };
  std::map<std::string_view, Count> counts;
  for (const auto& [name, source] : sources) {
    const TensorEntry& entry = files.files[source.file].entries().find(source.stored)->second;
    Count& count = counts[dtype_name(entry.dtype)];
    ++count.all;
    if (source.scale.defined()) ++count.scaled;
  }
  Lines parts;
  for (const auto& [dtype, count] : counts) {
    const bool codes = dtype.starts_with("F8");
    parts.push_back(fmt::format("{} ({}{})", dtype, counted(count.all, "tensor"),
                                codes ? fmt::format(", {} with a scale", count.scaled) : ""));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string_view kind_of(const WanConfig& c) {
  constexpr std::int64_t kWithPicture = 36, kLatent22 = 48;
  if (c.in_channels == kLatent22) return "text or picture to video, of Wan 2.2 TI2V-5B";
  if (c.pos_embed_seq_len) return "first and last frame to video, of Wan 2.1";
  if (c.image_dim) return "picture to video, of Wan 2.1";
  if (c.in_channels == kWithPicture) return "picture to video, an expert of Wan 2.2 A14B";
  return "text to video";
}

// What does not fit, instead of the sizes.
void describe_tensors(const CheckpointFiles& files, const WeightReading& reading,
                      const std::vector<TensorShape>& layout, Lines& lines) {
  const WeightSources sources = weight_sources(files, reading);
  lines.push_back(formats_text(files, sources));
  std::size_t missing = 0;
  std::set<std::string, std::less<>> known;
  for (const TensorShape& tensor : layout) {
    known.insert(tensor.name);
    if (!sources.contains(tensor.name)) ++missing;
  }
  const auto unexpected = static_cast<std::size_t>(std::ranges::count_if(
      sources, [&](const auto& source) { return !known.contains(source.first); }));
  if (missing > 0) lines.push_back(fmt::format("{} missing", counted(missing, "tensor")));
  if (unexpected > 0)
    lines.push_back(
        fmt::format("{} that such a model does not have", counted(unexpected, "tensor")));
}

// Nothing that is said depends on how many heads there are.
WanConfig one_head(const CheckpointFiles& files, const WanFileNaming& naming) {
  const auto owner = files.owner.find(naming.prefix + "patch_embedding.weight");
  const auto& shape = files.files[owner->second].entries().find(owner->first)->second.shape;
  WanConfig config;
  config.num_attention_heads = 1;
  config.attention_head_dim = shape.empty() ? 1 : std::max<std::int64_t>(shape.front(), 1);
  return config;
}

Lines describe_transformer(const CheckpointFiles& files, const WanFileNaming& naming) {
  Lines lines = {fmt::format("Wan transformer, {}", naming_text(naming.original, naming.prefix))};
  const WanConfig c = wan_file_sizes(files, naming, one_head(files, naming));
  lines.push_back(fmt::format("{}: {}, width {}, ffn {}, {} channels in, {} out, text width {}",
                              kind_of(c), counted(static_cast<std::size_t>(c.num_layers), "block"),
                              c.width(), c.ffn_dim, c.in_channels, c.out_channels, c.text_dim));
  const std::string_view expert = expert_of_name(files.path.filename().string());
  if (!expert.empty())
    lines.push_back(fmt::format("the expert of {} noise, by the file's name", expert));
  describe_tensors(files, wan_file_reading(naming, c), wan_layout(c), lines);
  return lines;
}

Lines describe_text_encoder(const CheckpointFiles& files, const Umt5FileNaming& naming) {
  Lines lines = {fmt::format("UMT5 text encoder, {}{}",
                             naming.original ? "Wan's own naming" : "the naming of transformers",
                             naming.prefix.empty() ? "" : ", prefix " + naming.prefix)};
  const WeightSources sources = weight_sources(files, umt5_file_reading(naming, Umt5Config()));
  lines.push_back(formats_text(files, sources));
  return lines;
}

Lines describe_vae(const CheckpointFiles& files, const WanVaeFile& file) {
  const bool original = file.naming == WanVaeNaming::original;
  Lines lines = {fmt::format("Wan autoencoder, {}", naming_text(original, file.prefix)),
                 fmt::format("{} latent channels", file.z_dim)};
  WeightReading reading;
  reading.prefix = file.prefix;
  lines.push_back(formats_text(files, weight_sources(files, reading)));
  return lines;
}

// What the keys of a LoRA file say without the model that it is for.
class LoraSummary {
 public:
  explicit LoraSummary(const TensorFile& file) : file_(file) {
    for (const auto& [key, entry] : file.entries()) add(key, entry, file);
  }

  bool is_of_wan() const {
    return of_blocks_ > 0 && (counts_.contains(LoraTensor::down) || diffs() > 0);
  }

  Lines lines() const {
    Lines lines = {fmt::format("LoRA file for Wan, keys like {}", example_)};
    lines.push_back(fmt::format(
        "{}{}{}", counted(count(LoraTensor::down), "matrix", "matrices"),
        ranks_.empty() ? "" : fmt::format(" of rank {}", fmt::join(ranks_, ", ")),
        alphas_.empty() ? header_alpha() : fmt::format(", alpha {}", fmt::join(alphas_, ", "))));
    if (diffs() > 0)
      lines.push_back(fmt::format("{}: {} of weights, {} of biases, {} of tables",
                                  counted(diffs(), "difference"), count(LoraTensor::difference),
                                  count(LoraTensor::bias_change), count(LoraTensor::table_change)));
    if (!forms_.empty())
      lines.push_back(fmt::format("cannot be used: holds {}", fmt::join(forms_, ", ")));
    if (of_texts_ > 0)
      lines.push_back(fmt::format("{} of a text encoder", counted(of_texts_, "key")));
    return lines;
  }

 private:
  void add(const std::string& key, const TensorEntry& entry, const TensorFile& file) {
    const LoraKey parsed = parse_lora_key(key);
    if (!parsed.form.empty()) forms_.emplace(parsed.form);
    if (is_of_text_encoder(key)) {
      ++of_texts_;
      return;
    }
    if (lora_module(parsed.module).starts_with("blocks_") && parsed.kind != LoraTensor::other) {
      ++of_blocks_;
      if (example_.empty() || parsed.kind == LoraTensor::down) example_ = key;
    }
    ++counts_[parsed.kind];
    if (parsed.kind == LoraTensor::down && !entry.shape.empty()) ranks_.insert(entry.shape[0]);
    const bool one = entry.end > entry.begin && file.view(key).numel() == 1;
    if (parsed.kind == LoraTensor::alpha && one && alphas_.size() < kMostShown)
      alphas_.insert(file.view(key).to(at::kDouble).item<double>());
  }
  std::string header_alpha() const {
    const std::optional<LoraHeader> header = LoraHeader::read(file_);
    if (!header || count(LoraTensor::down) == 0) return "";
    std::set<double> alphas = {header->lora_alpha};
    for (const auto& [pattern, alpha] : header->alphas) alphas.insert(alpha);
    return fmt::format(", alpha {} in the header", fmt::join(alphas, ", "));
  }
  std::size_t count(LoraTensor kind) const {
    const auto found = counts_.find(kind);
    return found == counts_.end() ? 0 : found->second;
  }
  std::size_t diffs() const {
    return count(LoraTensor::difference) + count(LoraTensor::bias_change) +
           count(LoraTensor::table_change);
  }

  static constexpr std::size_t kMostShown = 8;
  const TensorFile& file_;
  std::map<LoraTensor, std::size_t> counts_;
  std::set<std::int64_t> ranks_;
  std::set<double> alphas_;
  std::set<std::string> forms_;
  std::string example_;
  std::size_t of_blocks_ = 0, of_texts_ = 0;
};

Lines describe(const CheckpointFiles& files) {
  if (const auto naming = wan_file_naming(files)) return describe_transformer(files, *naming);
  if (const auto naming = umt5_file_naming(files)) return describe_text_encoder(files, *naming);
  if (const auto vae = wan_vae_file(files)) return describe_vae(files, *vae);
  const LoraSummary lora(files.files.front());
  return lora.is_of_wan() ? lora.lines() : Lines();
}

}  // namespace

std::vector<std::string> describe_wan_file(const fs::path& file) {
  const CheckpointFiles files = open_checkpoint(file);
  try {
    return describe(files);
  } catch (const InputError& error) {
    return {fmt::format("cannot be used for Wan: {}", error.what())};
  }
}

}  // namespace diptych
