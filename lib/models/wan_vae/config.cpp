#include "lib/models/wan_vae/config.h"

#include <algorithm>
#include <cmath>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Of the latents of the releases: Wan2_1_VAE.__init__ and Wan2_2_VAE.__init__.
constexpr double kMeans21[] = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                               -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                               -0.1922, -0.9497, 0.2503,  -0.2921};

constexpr double kDeviations21[] = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
                                    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160};

constexpr double kMeans22[] = {
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174,  0.1838,  0.1557,  -0.1382, 0.0542,
    0.2813,  0.0891,  0.1570,  -0.0098, 0.0375,  -0.1825, -0.2246, -0.1207, -0.0698, 0.5109,
    0.2665,  -0.2108, -0.2158, 0.2502,  -0.2055, -0.0322, 0.1109,  0.1567,  -0.0729, 0.0899,
    -0.2799, -0.1230, -0.0313, -0.1649, 0.0117,  0.0723,  -0.2839, -0.2083, -0.0520, 0.3748,
    0.0152,  0.1957,  0.1433,  -0.2944, 0.3573,  -0.0548, -0.1681, -0.0667};

constexpr double kDeviations22[] = {
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

// Of a key that is there and not null; else null.
const Json* value_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

InputError wrong(const fs::path& path, const char* key, const Json& found,
                 const std::string& expected) {
  return InputError("{}: {}: found {}, expected {}", path.string(), key, shown_json(found),
                    expected);
}

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, WanVaeConfig& c, const fs::path& path) {
  const std::int64_t one = 1;
  read_number(json, "base_dim", c.base_dim, one, std::int64_t{65536}, path);
  c.decoder_base_dim = c.base_dim;
  read_number(json, "decoder_base_dim", c.decoder_base_dim, one, std::int64_t{65536}, path);
  read_number(json, "z_dim", c.z_dim, one, std::int64_t{65536}, path);
  read_number(json, "num_res_blocks", c.num_res_blocks, one, std::int64_t{64}, path);
  read_number(json, "patch_size", c.patch_size, one, std::int64_t{4}, path);
  if (const Json* residual = value_of(json, "is_residual")) {
    if (!residual->is_boolean()) throw wrong(path, "is_residual", *residual, "true or false");
    c.is_residual = residual->get<bool>();
  }
}

void read_stages(const Json& json, WanVaeConfig& c, const fs::path& path) {
  if (const Json* list = value_of(json, "dim_mult")) {
    const auto is_multiple = [](const Json& value) {
      return value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
             value.get<std::uint64_t>() <= 64;
    };
    if (!list->is_array() || list->size() < 3 || list->size() > 5 ||
        !std::ranges::all_of(*list, is_multiple)) {
      throw wrong(path, "dim_mult", *list, "a list of 3 to 5 whole numbers from 1 to 64");
    }
    c.dim_mult = list->get<std::vector<std::int64_t>>();
  }
  const Json* list = value_of(json, "temperal_downsample");
  if (list != nullptr) {
    const auto is_boolean = [](const Json& value) { return value.is_boolean(); };
    if (!list->is_array() || !std::ranges::all_of(*list, is_boolean))
      throw wrong(path, "temperal_downsample", *list, "a list of true and false");
    c.temperal_downsample = list->get<std::vector<bool>>();
  }
  // Chunks are of four frames.
  if (c.temperal_downsample.size() + 1 != c.stages() ||
      std::ranges::count(c.temperal_downsample, true) != 2) {
    throw wrong(
        path, "temperal_downsample", list == nullptr ? Json() : *list,
        fmt::format("{} values, one less than dim_mult has, two of them true", c.stages() - 1));
  }
}

void read_table(const Json& json, const char* key, std::vector<double>& values,
                const WanVaeConfig& c, const fs::path& path) {
  const Json* list = value_of(json, key);
  const auto is_finite = [](const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  if (list != nullptr && list->is_array() && std::ranges::all_of(*list, is_finite))
    values = list->get<std::vector<double>>();
  else if (list != nullptr)
    throw wrong(path, key, *list, "a list of numbers");
  if (static_cast<std::int64_t>(values.size()) == c.z_dim) return;
  throw InputError("{}: {}: {} values, expected {}, as many as z_dim says", path.string(), key,
                   values.size(), c.z_dim);
}

void read_tables(const Json& json, WanVaeConfig& c, const fs::path& path) {
  read_table(json, "latents_mean", c.latents_mean, c, path);
  read_table(json, "latents_std", c.latents_std, c, path);
  const auto is_positive = [](double value) { return value > 0; };
  if (std::ranges::all_of(c.latents_std, is_positive)) return;
  throw wrong(path, "latents_std", json["latents_std"], "numbers above 0");
}

// A number that follows from the others, where the file gives it.
void check_number(const Json& json, const char* key, std::int64_t expected, const char* why,
                  const fs::path& path) {
  const Json* found = value_of(json, key);
  if (found == nullptr || *found == expected) return;
  throw wrong(path, key, *found, fmt::format("{}, {}", expected, why));
}

// The shortcuts of residual stages take means and copies of whole groups of channels.
void check_shortcuts(const WanVaeConfig& c, const Json& json, const fs::path& path) {
  if (!c.is_residual) return;
  const std::size_t last = c.stages() - 1;
  bool fits = c.encoder_in(last) == c.encoder_dim(last);
  for (std::size_t s = 0; s < last; ++s) {
    const std::int64_t in = c.decoder_in(s), out = c.decoder_out(s);
    fits = fits && c.encoder_dim(s) == c.encoder_in(s) * (c.halves_time(s) ? 2 : 1);
    fits = fits && (in == out || in == 2 * out);
  }
  if (fits) return;
  throw wrong(path, "dim_mult", json.value("dim_mult", Json(c.dim_mult)),
              "widths that double where temperal_downsample is true and stay elsewhere, as "
              "is_residual needs them");
}

void check_honoured(const Json& json, const WanVaeConfig& c, const fs::path& path) {
  if (const Json* name = value_of(json, "_class_name");
      name != nullptr && *name != "AutoencoderKLWan") {
    throw wrong(path, "_class_name", *name, "\"AutoencoderKLWan\"");
  }
  if (const Json* scales = value_of(json, "attn_scales");
      scales != nullptr && !(scales->is_array() && scales->empty())) {
    throw wrong(path, "attn_scales", *scales, "[]: attention within stages is not computed");
  }
  const char* const pixels = "three colours of patch_size x patch_size pixels";
  // Three where nobody says, as diffusers has it.
  if (c.patch_size > 1) require_numbers(json, {"in_channels", "out_channels"}, path);
  check_number(json, "in_channels", c.patch_channels(), pixels, path);
  check_number(json, "out_channels", c.patch_channels(), pixels, path);
  check_number(json, "scale_factor_temporal", WanVaeConfig::kTemporal,
               "what temperal_downsample makes", path);
  check_number(json, "scale_factor_spatial", c.spatial(), "what dim_mult and patch_size make",
               path);
}

}  // namespace

WanVaeConfig WanVaeConfig::wan21() {
  WanVaeConfig config;
  config.latents_mean.assign(std::begin(kMeans21), std::end(kMeans21));
  config.latents_std.assign(std::begin(kDeviations21), std::end(kDeviations21));
  return config;
}

WanVaeConfig WanVaeConfig::wan22() {
  WanVaeConfig config;
  config.base_dim = 160;
  config.decoder_base_dim = 256;
  config.z_dim = 48;
  config.is_residual = true;
  config.patch_size = 2;
  config.latents_mean.assign(std::begin(kMeans22), std::end(kMeans22));
  config.latents_std.assign(std::begin(kDeviations22), std::end(kDeviations22));
  return config;
}

WanVaeConfig WanVaeConfig::load(const fs::path& path) {
  const Json json = read_json_object(path);
  WanVaeConfig config = wan21();
  read_sizes(json, config, path);
  read_stages(json, config, path);
  read_tables(json, config, path);
  check_shortcuts(config, json, path);
  check_honoured(json, config, path);
  return config;
}

WanVaeConfig WanVaeConfig::infer(const Weights& weights) {
  WanVaeConfig config = wan22();
  config.naming = WanVaeNaming::original;
  if (weights.is_dummy()) return config;
  const auto width = [&](const char* name, std::size_t dims) {
    const auto shape = weights.shape(name);
    if (shape.size() != dims || shape[0] < 1) {
      throw InputError("{}: has shape {}, expected {} dimensions, the first of at least 1", name,
                       shown_shape(shape), dims);
    }
    return shape[0];
  };
  const std::int64_t z_dim = config.z_dim;
  config.base_dim = width("encoder.conv1.weight", 5);
  config.decoder_base_dim = width("decoder.head.0.gamma", 4);
  config.z_dim = width("conv2.weight", 5);
  if (config.z_dim != z_dim) {
    throw InputError("conv2.weight: {} latent channels, expected {}: not an autoencoder of Wan 2.2",
                     config.z_dim, z_dim);
  }
  return config;
}

WanVaeNaming wan_vae_naming_of(const Weights& weights) {
  return weights.contains("post_quant_conv.weight") ? WanVaeNaming::diffusers
                                                    : WanVaeNaming::original;
}

}  // namespace diptych
