#include "lib/pipelines/wan/parts.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/models/umt5/single_file.h"
#include "lib/models/umt5/umt5.h"
#include "lib/models/wan/layout.h"
#include "lib/models/wan/single_file.h"
#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/single_file.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLatent22 = 48;  // channels of Wan 2.2's latents

// Errors about a file name the flag that gave it.
template <typename Work>
auto about_part(bool is_given, std::string_view part, const Work& work) {
  if (!is_given) return work();
  return about(Setting::of(part), work);
}

// Not knowing the layout, messages of what is missing would be of no help.
template <typename Naming>
Naming require_known(const std::optional<Naming>& naming, const CheckpointFiles& files,
                     std::string_view what) {
  if (naming) return *naming;
  throw InputError("{}: holds no {} of Wan in a naming that is known", files.path.string(), what);
}

}  // namespace

Umt5Config released_umt5() {
  Umt5Config config;
  config.vocab_size = 256384;
  config.d_model = 4096;
  config.d_kv = 64;
  config.d_ff = 10240;
  config.num_layers = 24;
  config.num_heads = 64;
  return config;
}

void check_tensors(const Weights& weights, const std::vector<TensorShape>& layout) {
  for (const auto& [name, shape] : layout) weights.check(name, shape);
  weights.require_all_read();
}

WanParts::WanParts(fs::path folder, WanSettings settings)
    : folder_(std::move(folder)), settings_(std::move(settings)) {}

const fs::path& WanParts::file(std::string_view part) const {
  if (part == kWanTransformers[0]) return settings_.transformer;
  if (part == kWanTransformers[1]) return settings_.transformer_2;
  return part == kWanText ? settings_.text_encoder : settings_.vae;
}

fs::path WanParts::path(std::string_view part) const {
  const fs::path& given = file(part);
  return given.empty() ? folder_ / part : given;
}

fs::path WanParts::sizes_file(std::string_view part) const {
  return is_given(part) ? file(part) : config_file(part);
}

bool WanParts::gives_any() const {
  return is_given(kWanTransformers[0]) || is_given(kWanTransformers[1]) || is_given(kWanText) ||
         is_given(kWanVae);
}

fs::path WanParts::config_file(std::string_view part) const {
  return folder_ / part / "config.json";
}

CheckpointFiles WanParts::transformer_files() const {
  const char* const part = kWanTransformers[0];
  return about_part(is_given(part), part, [&] { return open_checkpoint(path(part)); });
}

WanConfig WanParts::transformer() const {
  const char* const part = kWanTransformers[0];
  const fs::path config = config_file(part);
  if (!is_given(part)) return WanConfig::load(config);
  std::optional<WanConfig> known;
  if (fs::exists(config)) known = WanConfig::load(config);
  return about_part(true, part, [&] {
    const CheckpointFiles files = open_checkpoint(path(part));
    const auto naming = require_known(wan_file_naming(files), files, "transformer");
    return wan_file_sizes(files, naming, known);
  });
}

Umt5Config WanParts::text_encoder() const {
  const fs::path config = config_file(kWanText);
  return is_given(kWanText) && !fs::exists(config) ? released_umt5() : Umt5Config::load(config);
}

WanVaeConfig WanParts::vae() const {
  const fs::path config = config_file(kWanVae);
  if (!is_given(kWanVae) || fs::exists(config)) return WanVaeConfig::load(config);
  return about_part(true, kWanVae, [&] {
    const CheckpointFiles files = open_checkpoint(path(kWanVae));
    const auto file = require_known(wan_vae_file(files), files, "autoencoder");
    return file.z_dim == kLatent22 ? WanVaeConfig::wan22() : WanVaeConfig::wan21();
  });
}

Weights WanParts::open_transformer(std::size_t place, const WanConfig& config, const WanPlace& at,
                                   WeightChanges changes) const {
  const char* const part = kWanTransformers.at(place);
  return about_part(is_given(part), part, [&] {
    const CheckpointFiles files = open_checkpoint(path(part));
    std::optional<WanFileNaming> naming = wan_file_naming(files);
    if (is_given(part)) naming = require_known(naming, files, "transformer");
    WeightReading reading = wan_file_reading(naming.value_or(WanFileNaming()), config);
    reading.changes = std::move(changes);
    Weights weights = Weights::open(path(part), at.device, at.dtype, std::move(reading));
    check_wan_tensors(weights, config);
    return weights;
  });
}

Weights WanParts::open_text_encoder(const Umt5Config& config, const WanPlace& at) const {
  return about_part(is_given(kWanText), kWanText, [&] {
    const CheckpointFiles files = open_checkpoint(path(kWanText));
    std::optional<Umt5FileNaming> naming = umt5_file_naming(files);
    if (is_given(kWanText)) naming = require_known(naming, files, "text encoder (UMT5)");
    Weights weights = Weights::open(path(kWanText), at.device, at.dtype,
                                    umt5_file_reading(naming.value_or(Umt5FileNaming()), config));
    check_umt5_tensors(weights, config);
    return weights;
  });
}

Weights WanParts::open_vae(const WanVaeConfig& config, const WanPlace& at) const {
  return about_part(is_given(kWanVae), kWanVae, [&] {
    const CheckpointFiles files = open_checkpoint(path(kWanVae));
    std::optional<WanVaeFile> file = wan_vae_file(files);
    if (is_given(kWanVae)) file = require_known(file, files, "autoencoder");
    Weights weights = Weights::open(path(kWanVae), at.device, at.dtype,
                                    wan_vae_file_reading(file.value_or(WanVaeFile()), config));
    check_tensors(weights, wan_vae_layout(config));
    return weights;
  });
}

}  // namespace diptych
