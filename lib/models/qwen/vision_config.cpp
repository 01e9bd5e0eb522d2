#include "lib/models/qwen/vision_config.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, QwenVisionConfig& c, const std::filesystem::path& path) {
  const std::int64_t one = 1;
  read_number(json, "depth", c.depth, one, std::int64_t{1000}, path);
  read_number(json, "hidden_size", c.hidden_size, one, std::int64_t{1048576}, path);
  read_number(json, "intermediate_size", c.intermediate_size, one, std::int64_t{1048576}, path);
  read_number(json, "num_heads", c.num_heads, one, std::int64_t{1024}, path);
  read_number(json, "out_hidden_size", c.out_hidden_size, one, std::int64_t{1048576}, path);
  read_number(json, "in_channels", c.in_channels, one, std::int64_t{64}, path);
  read_number(json, "patch_size", c.patch_size, one, std::int64_t{1024}, path);
  read_number(json, "temporal_patch_size", c.temporal_patch_size, one, std::int64_t{64}, path);
  read_number(json, "spatial_merge_size", c.spatial_merge_size, one, std::int64_t{64}, path);
  read_number(json, "window_size", c.window_size, one, std::int64_t{1048576}, path);
}

void read_full_blocks(const Json& json, QwenVisionConfig& c, const std::filesystem::path& path) {
  const auto found = json.find("fullatt_block_indexes");
  const Json list = found == json.end() ? Json() : *found;
  const auto is_block = [&](const Json& index) {
    return index.is_number_unsigned() && index.get<std::uint64_t>() < 1'000'000 &&
           index.get<std::int64_t>() < c.depth;
  };
  if (!list.is_array() || !std::ranges::all_of(list, is_block)) {
    throw InputError("{}: fullatt_block_indexes: found {}, expected a list of blocks from 0 to {}",
                     path.string(), list.is_null() ? "none" : list.dump(), c.depth - 1);
  }
  c.fullatt_block_indexes = list.get<std::vector<std::int64_t>>();
}

void check_sizes(const QwenVisionConfig& c, const std::filesystem::path& path) {
  // A quarter of a head is rotated by each of row and column, in two halves.
  if (c.hidden_size % c.num_heads != 0 || c.head_dim() % 4 != 0) {
    throw InputError(
        "{}: hidden_size {} does not divide into {} heads whose size is a multiple of 4",
        path.string(), c.hidden_size, c.num_heads);
  }
  if (c.window_groups() < 1) {
    throw InputError(
        "{}: window_size: found {}, expected at least {}, patch_size times "
        "spatial_merge_size",
        path.string(), c.window_size, c.pixels_per_group());
  }
}

}  // namespace

QwenVisionConfig QwenVisionConfig::load(const std::filesystem::path& path) {
  const Json json = read_json_object(path);
  // The sizes of one model are no default for another one's.
  require_numbers(
      json, {"depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size"}, path);
  if (const auto act = json.find("hidden_act"); act != json.end() && *act != "silu") {
    throw InputError("{}: hidden_act: found {}, expected \"silu\"", path.string(), act->dump());
  }
  QwenVisionConfig c;
  read_sizes(json, c, path);
  read_full_blocks(json, c, path);
  check_sizes(c, path);
  return c;
}

bool QwenVisionConfig::attends_fully(std::int64_t block) const {
  return std::ranges::find(fullatt_block_indexes, block) != fullatt_block_indexes.end();
}

}  // namespace diptych
