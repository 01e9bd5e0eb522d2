#include "lib/models/umt5/config.h"

#include <string>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, Umt5Config& c, const std::filesystem::path& path) {
  const std::int64_t one = 1, least_buckets = 4;
  read_number(json, "vocab_size", c.vocab_size, one, std::int64_t{16777216}, path);
  read_number(json, "d_model", c.d_model, one, std::int64_t{1048576}, path);
  read_number(json, "d_kv", c.d_kv, one, std::int64_t{65536}, path);
  read_number(json, "d_ff", c.d_ff, one, std::int64_t{1048576}, path);
  read_number(json, "num_layers", c.num_layers, one, std::int64_t{1000}, path);
  read_number(json, "num_heads", c.num_heads, one, std::int64_t{1024}, path);
  read_number(json, "relative_attention_num_buckets", c.relative_attention_num_buckets,
              least_buckets, std::int64_t{65536}, path);
  read_number(json, "relative_attention_max_distance", c.relative_attention_max_distance, one,
              std::int64_t{16777216}, path);
  read_number(json, "layer_norm_epsilon", c.layer_norm_epsilon, 0.0, 1.0, path);
}

// Half of the buckets are for each direction, half of those for one distance each; the rest reach
// to the largest distance.
void check_buckets(const Umt5Config& c, const std::filesystem::path& path) {
  if (c.relative_attention_num_buckets % 2 != 0) {
    throw InputError("{}: relative_attention_num_buckets: found {}, expected an even number",
                     path.string(), c.relative_attention_num_buckets);
  }
  if (c.relative_attention_max_distance <= c.relative_attention_num_buckets / 4) {
    throw InputError("{}: relative_attention_max_distance: found {}, expected more than {}",
                     path.string(), c.relative_attention_max_distance,
                     c.relative_attention_num_buckets / 4);
  }
}

// The value of a key whose two choices are implemented: whether it is the first.
bool is_first_of(const Json& json, const char* key, const char* first, const char* second,
                 const std::filesystem::path& path) {
  const auto found = json.find(key);
  if (found != json.end() && (*found == first || *found == second)) return *found == first;
  throw InputError("{}: {}: found {}, expected \"{}\" or \"{}\"", path.string(), key,
                   found == json.end() ? "nothing" : shown_json(*found), first, second);
}

void read_kind(const Json& json, Umt5Config& c, const std::filesystem::path& path) {
  c.bias_in_every_layer = is_first_of(json, "model_type", "umt5", "t5", path);
  // What transformers takes where the key is missing.
  c.gated_gelu = json.contains("feed_forward_proj")
                     ? is_first_of(json, "feed_forward_proj", "gated-gelu", "relu", path)
                     : c.bias_in_every_layer;
  if (!json.contains("dense_act_fn")) return;
  if (is_first_of(json, "dense_act_fn", "gelu_new", "relu", path) != c.gated_gelu) {
    throw InputError("{}: dense_act_fn: found {}, expected \"{}\", which feed_forward_proj names",
                     path.string(), shown_json(json["dense_act_fn"]),
                     c.gated_gelu ? "gelu_new" : "relu");
  }
}

}  // namespace

Umt5Config Umt5Config::load(const std::filesystem::path& path) {
  const Json json = read_json_object(path);
  // The sizes of one model are no default for another one's.
  require_numbers(json, {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}, path);
  Umt5Config c;
  read_sizes(json, c, path);
  check_buckets(c, path);
  read_kind(json, c, path);
  return c;
}

std::vector<TensorShape> umt5_layout(const Umt5Config& c) {
  std::vector<TensorShape> tensors = {{"shared.weight", {c.vocab_size, c.d_model}}};
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    const auto add = [&](int layer, const char* leaf, std::vector<std::int64_t> shape) {
      tensors.push_back(
          {fmt::format("encoder.block.{}.layer.{}.{}.weight", i, layer, leaf), std::move(shape)});
    };
    for (const char* leaf : {"SelfAttention.q", "SelfAttention.k", "SelfAttention.v"})
      add(0, leaf, {c.inner(), c.d_model});
    add(0, "SelfAttention.o", {c.d_model, c.inner()});
    if (i == 0 || c.bias_in_every_layer) {
      add(0, "SelfAttention.relative_attention_bias",
          {c.relative_attention_num_buckets, c.num_heads});
    }
    add(0, "layer_norm", {c.d_model});
    if (c.gated_gelu) {
      add(1, "DenseReluDense.wi_0", {c.d_ff, c.d_model});
      add(1, "DenseReluDense.wi_1", {c.d_ff, c.d_model});
    } else {
      add(1, "DenseReluDense.wi", {c.d_ff, c.d_model});
    }
    add(1, "DenseReluDense.wo", {c.d_model, c.d_ff});
    add(1, "layer_norm", {c.d_model});
  }
  tensors.push_back({"encoder.final_layer_norm.weight", {c.d_model}});
  return tensors;
}

}  // namespace diptych
