#include "lib/models/wan/single_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/wan/layout.h"
#include "lib/models/wan/names.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::array kPrefixes = {"model.diffusion_model.", "diffusion_model.", "model.",
                                  "transformer.", ""};
constexpr std::string_view kAnchor = "patch_embedding.weight", kTable = "scale_shift_table";
constexpr std::int64_t kHeadDim = 128;  // of every release

class Sizes {
 public:
  Sizes(const CheckpointFiles& files, const WanFileNaming& naming)
      : files_(files), naming_(naming) {}

  std::string stored(std::string_view name) const {
    return naming_.prefix + (naming_.original ? wan_original_name(name) : std::string(name));
  }
  bool has(std::string_view name) const { return files_.owner.contains(stored(name)); }

  // Of that many dimensions.
  std::vector<std::int64_t> shape(std::string_view name, std::size_t dims) const {
    const std::string full = stored(name);
    const auto owner = files_.owner.find(full);
    if (owner == files_.owner.end())
      throw InputError("{}: tensor {} is missing", files_.path.string(), shown_name(full));
    const TensorFile& file = files_.files[owner->second];
    const auto& found = file.entries().find(full)->second.shape;
    const bool fits = found.size() == dims && std::ranges::all_of(found, [](std::int64_t size) {
                        return size >= 1 && size <= kMostSize;
                      });
    if (!fits)
      throw InputError("{}: tensor {} has shape {}, expected {} dimensions of 1 to {}",
                       file.path().string(), shown_name(full), shown_shape(found), dims, kMostSize);
    return found;
  }

  // One more than the number of the last block.
  std::int64_t layers() const {
    const std::string blocks = naming_.prefix + "blocks.";
    std::int64_t count = 0;
    for (auto item = files_.owner.lower_bound(blocks); item != files_.owner.end(); ++item) {
      const std::string& name = item->first;
      if (!name.starts_with(blocks)) break;
      std::int64_t number = 0;
      const auto [end, error] =
          std::from_chars(name.data() + blocks.size(), name.data() + name.size(), number);
      if (error != std::errc() || number < 0 || number >= kMostLayers)
        throw InputError("{}: tensor {}: expected a block from 0 to {}", files_.path.string(),
                         shown_name(name), kMostLayers - 1);
      count = std::max(count, number + 1);
    }
    if (count == 0) throw InputError("{}: holds no tensor {}0....", files_.path.string(), blocks);
    return count;
  }

 private:
  static constexpr std::int64_t kMostSize = 1 << 20, kMostLayers = 1000;
  const CheckpointFiles& files_;
  const WanFileNaming& naming_;
};

}  // namespace

std::optional<WanFileNaming> wan_file_naming(const CheckpointFiles& files) {
  for (const char* prefix : kPrefixes) {
    const auto has = [&](std::string_view name) {
      return files.owner.contains(fmt::format("{}{}", prefix, name));
    };
    if (!has(kAnchor)) continue;
    if (has(wan_original_name(kTable))) return WanFileNaming{prefix, true};
    if (has(kTable)) return WanFileNaming{prefix, false};
  }
  return std::nullopt;
}

WanConfig wan_file_sizes(const CheckpointFiles& files, const WanFileNaming& naming,
                         const std::optional<WanConfig>& known) {
  const Sizes sizes(files, naming);
  const std::string embedder = "condition_embedder.";
  WanConfig c;
  if (known) c.eps = known->eps;
  const auto patches = sizes.shape(kAnchor, 5);
  const std::int64_t width = patches[0];
  const bool same_width = known && known->width() == width;
  c.attention_head_dim = same_width ? known->attention_head_dim : kHeadDim;
  if (width % c.attention_head_dim != 0)
    throw InputError("{}: tensor {} has shape {}, expected a width of heads of {}",
                     files.path.string(), shown_name(sizes.stored(kAnchor)), shown_shape(patches),
                     c.attention_head_dim);
  c.num_attention_heads = width / c.attention_head_dim;
  c.in_channels = patches[1];
  c.out_channels = sizes.shape("proj_out.weight", 2)[0] / (WanConfig::kPatch * WanConfig::kPatch);
  c.text_dim = sizes.shape(embedder + "text_embedder.linear_1.weight", 2)[1];
  c.freq_dim = sizes.shape(embedder + "time_embedder.linear_1.weight", 2)[1];
  c.num_layers = sizes.layers();
  c.ffn_dim = sizes.shape("blocks.0.ffn.net.0.proj.weight", 2)[0];
  c.cross_attn_norm = sizes.has("blocks.0.norm2.weight");
  const std::string image = embedder + "image_embedder.";
  if (sizes.has(image + "norm1.weight")) c.image_dim = sizes.shape(image + "norm1.weight", 1)[0];
  if (sizes.has(image + "pos_embed")) c.pos_embed_seq_len = sizes.shape(image + "pos_embed", 3)[1];
  return c;
}

WeightReading wan_file_reading(const WanFileNaming& naming, const WanConfig& config) {
  WeightReading reading;
  reading.prefix = naming.prefix;
  for (const TensorShape& tensor : wan_layout(config)) {
    if (naming.original) reading.names[wan_original_name(tensor.name)] = tensor.name;
  }
  // Released files may hold a norm that nothing uses.
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string unused = fmt::format("blocks.{}.attn2.norm_added_q.weight", i);
    reading.names[naming.original ? wan_original_name(unused) : unused] = "";
  }
  return reading;
}

}  // namespace diptych
