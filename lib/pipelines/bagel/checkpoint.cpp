#include "lib/pipelines/bagel/checkpoint.h"

#include <future>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/media/image_transform.h"
#include "lib/pipelines/bagel/memory.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/tensor/stored_tensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

fs::path require_file(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fs::exists(folder / name)) return folder / name;
  }
  throw InputError("{}: {} not found; expected a BAGEL checkpoint folder as it is downloaded",
                   folder.string(), *names.begin());
}

fs::path vae_file(const fs::path& folder) {
  return require_file(folder, {"ae.safetensors"});
}

fs::path model_file(const fs::path& folder) {
  return require_file(folder, {"ema.safetensors", "ema.safetensors.index.json"});
}

std::int64_t special_token(const Tokenizer& tokenizer, const fs::path& folder,
                           std::string_view token, std::int64_t vocab_size) {
  const auto id = tokenizer.token_id(token);
  if (!id) throw InputError("{}: the tokenizer has no {}", folder.string(), token);
  if (*id >= vocab_size) {
    throw InputError("{}: vocab_size: found {}, but the tokenizer's {} has id {}",
                     (folder / "llm_config.json").string(), vocab_size, token, *id);
  }
  return *id;
}

// Without a folder there is no vocabulary: the tokens are bytes.
void read_tokens(BagelCheckpoint& c, const fs::path& folder, std::int64_t vocab_size) {
  c.tokenizer = folder.empty() ? byte_tokenizer() : load_byte_level_bpe(folder);
  const auto id = [&](std::string_view token) {
    return special_token(*c.tokenizer, folder, token, vocab_size);
  };
  c.bos = id("<|im_start|>");
  c.eos = id("<|im_end|>");
  c.markers = {id("<|vision_start|>"), id("<|vision_end|>")};
}

// Of the model and of the autoencoder.
std::pair<Weights, Weights> open_weights(const fs::path& folder, bool dummy,
                                         const Runtime& runtime) {
  if (dummy)
    return {Weights::dummy(runtime.device, runtime.dtype),
            Weights::dummy(runtime.device, at::kFloat)};
  const fs::path model = model_file(folder), vae = vae_file(folder);
  return {Weights::open(model, runtime.device, runtime.dtype),
          Weights::open(vae, runtime.device, at::kFloat)};
}

// Views of the map where the file holds float32, as the released one does; else its floats convert.
void check_vae_layout(const fs::path& file) {
  const Weights vae = Weights::open(file, at::kCPU, at::kFloat);
  FluxVae::load(vae, FluxVaeConfig::infer(vae));
}

// No config file tells the widths. Random weights take those of the folder's autoencoder where it
// has one, else the released ones.
FluxVaeConfig read_vae_config(const Weights& weights, const fs::path& folder) {
  const fs::path file = folder / "ae.safetensors";
  if (!weights.is_dummy() || folder.empty() || !fs::exists(file))
    return FluxVaeConfig::infer(weights);
  return FluxVaeConfig::infer(Weights::open(file, at::kCPU, at::kFloat));
}

}  // namespace

std::unique_ptr<BagelCheckpoint> BagelCheckpoint::open(const fs::path& folder, bool dummy,
                                                       const Runtime& runtime) {
  auto opened = std::make_unique<BagelCheckpoint>();
  BagelCheckpoint& c = *opened;
  c.folder = folder;
  c.is_dummy = dummy;
  c.quantization = {runtime.quantization, runtime.kernels};
  if (folder.empty() && !dummy) {
    throw InputError(Setting::absent("model"),
                     "missing; expected a BAGEL checkpoint folder (or --load-format dummy)");
  }
  if (!folder.empty()) require_folder(folder, Setting::of("model"));
  const BagelConfig config = folder.empty() ? BagelConfig{} : BagelConfig::load(folder);
  // Beside the vocabulary, whose problems are told first.
  auto opening = std::async([&] { return open_weights(folder, dummy, runtime); });
  read_tokens(c, folder, config.llm.vocab_size);
  std::tie(c.model_weights, c.vae_weights) = opening.get();
  c.model.config = config;
  c.model.config.latent_side = Bagel::read_latent_side(c.model_weights, config.latent_side);
  // Requests are checked against these before anything is loaded.
  c.model.language_model.config = config.llm;
  c.model.latents.side = c.model.config.latent_side;
  c.model.latents.width = config.row_width();
  c.vae.config = read_vae_config(c.vae_weights, folder);
  c.vae.compute = {runtime.vae_tf32, runtime.kernels};
  c.vae_dtype = name_of(runtime.vae_tf32 ? VaeDtype::tf32 : VaeDtype::float32);
  c.mot_.emplace(
      MotModel{c.model.language_model, c.model.latents, *c.tokenizer, c.bos, c.eos, c.markers});
  const FluxVaeConfig& vae = c.vae.config;
  if (vae.z_channels != config.latent_channels || vae.downsample() != config.vae_downsample) {
    throw InputError("{}: the autoencoder has {} channels at 1/{}, config.json says {} at 1/{}",
                     folder.string(), vae.z_channels, vae.downsample(), config.latent_channels,
                     config.vae_downsample);
  }
  try {
    Bagel::check_layout(c.model_weights, c.model.config);
  } catch (const InputError& error) {
    if (fs::exists(folder / "config.json")) throw;
    throw InputError("{}; {} is missing, which may say other sizes than the released ones",
                     error.what(), (folder / "config.json").string());
  }
  if (!dummy) check_vae_layout(folder / "ae.safetensors");
  return opened;
}

std::unique_ptr<MotCheckpoint> open_bagel_checkpoint(const RunConfig& config,
                                                     const Runtime& runtime, Log&) {
  if (config.vae_dtype == VaeDtype::bfloat16)
    throw InputError(Setting::of("vae_dtype", "bfloat16"),
                     "the autoencoder of BAGEL computes in float32 or tf32");
  auto opened =
      BagelCheckpoint::open(config.model, config.load_format == LoadFormat::dummy, runtime);
  opened->draft_model = config.own.get<DraftSettings>().draft_model;
  return opened;
}

MotSizes BagelCheckpoint::sizes() const {
  return bagel_sizes(model.config, vae.config);
}

void BagelCheckpoint::rehearse_decoding(const LatentSize& size, bool with_strips) const {
  const auto options = at::TensorOptions(at::kFloat).device(vae_weights.options().device());
  const std::int64_t patch = model.config.latent_patch_size;
  const Tensor zeros =
      at::zeros({1, model.config.latent_channels, size.h * patch, size.w * patch}, options);
  to_uint8(
      vae.decode(zeros, {}, with_strips ? std::optional<VaeStrips>(std::in_place) : std::nullopt));
}

StoredWeights bagel_stored_weights(const RunConfig& config) {
  if (config.load_format == LoadFormat::dummy || config.model.empty()) return {};
  require_folder(config.model, Setting::of("model"));
  return StoredWeights::of(open_checkpoint(model_file(config.model)));
}

void BagelCheckpoint::load(const std::optional<MotOffload>& offload,
                           const std::function<void()>& placed) {
  Weights::ReadAhead reading(model_weights);
  model = Bagel::load(model_weights, model.config, offload, quantization);
  vae = FluxVae::load(vae_weights, vae.config, vae.compute);  // while the larger file is read
  if (placed) placed();
  reading.finish();
}

void BagelCheckpoint::load_vision() {
  if (model.vision) return;
  Weights::ReadAhead reading(model_weights);
  model.vision = BagelVision::load(model_weights, model.config);
  reading.finish();
}

void BagelCheckpoint::load_head() {
  MotBackbone& backbone = model.language_model;
  if (backbone.lm_head.defined()) return;
  Weights::ReadAhead reading(model_weights);
  backbone.load_head(model_weights.scope("language_model"));
  reading.finish();
}

std::string BagelCheckpoint::weights_hash(const std::stop_token& stop) const {
  return fmt::format("{:.16}-{:.16}", model_weights.hash(stop), vae_weights.hash(stop));
}

void BagelCheckpoint::require_finite_weights() const {
  if (model_weights.is_dummy()) return;
  require_finite(open_checkpoint(model_file(folder)));
  require_finite(open_checkpoint(vae_file(folder)));
}

MappedWeights BagelCheckpoint::mapped() const {
  MappedWeights mapped;
  mapped.is_view = [](const std::string&, at::ScalarType) { return false; };
  if (model_weights.is_dummy()) return mapped;
  mapped.is_view = [files = open_checkpoint(model_file(folder))](const std::string& name,
                                                                 at::ScalarType dtype) {
    return is_view(files, name, dtype);
  };
  mapped.autoencoder =
      static_cast<std::int64_t>(view_bytes(open_checkpoint(vae_file(folder)), at::kFloat));
  return mapped;
}

LatentSize BagelCheckpoint::latent_size(std::int64_t width, std::int64_t height) const {
  const std::int64_t step = model.config.pixels_per_row();
  const std::int64_t most = model.config.latent_side * step;
  const auto check = [&](const char* name, std::int64_t value) {
    if (value >= step && value <= most && value % step == 0) return;
    const std::int64_t low = std::clamp(value / step * step, step, most);
    const std::int64_t high = std::clamp(low + step, step, most);
    throw InputError(SettingProblem{
        Setting::of(name),
        fmt::format("{}", value),
        {fmt::format(", expected a multiple of {} up to {} (nearest: {}{})", step, most, low,
                     low == high ? std::string() : fmt::format(" or {}", high))}});
  };
  check("width", width);
  check("height", height);
  return {height / step, width / step};
}

std::vector<std::string> check_bagel_layout(const fs::path& folder) {
  BagelConfig config = BagelConfig::load(folder);
  const Weights weights = Weights::open(model_file(folder), at::kCPU, at::kFloat);
  if (weights.contains("latent_pos_embed.pos_embed")) {
    config.latent_side = Bagel::read_latent_side(weights, config.latent_side);
  }
  std::vector<std::string> problems;
  for (const auto& [name, shape] : bagel_layout(config)) {
    if (!weights.contains(name)) {
      problems.push_back(fmt::format("missing: {} [{}]", name, fmt::join(shape, ", ")));
      continue;
    }
    const std::vector<std::int64_t> found = weights.shape(name);
    if (found == shape) {
      weights.check(name, shape);
      continue;
    }
    problems.push_back(fmt::format("wrong shape: {}: found [{}], expected [{}]", name,
                                   fmt::join(found, ", "), fmt::join(shape, ", ")));
    weights.check(name, found);
  }
  for (const std::string& name : weights.unread()) problems.push_back("unexpected: " + name);
  try {  // the autoencoder's sizes come from its tensors: it fits or says what does not
    check_vae_layout(require_file(folder, {"ae.safetensors"}));
  } catch (const InputError& error) {
    problems.emplace_back(error.what());
  }
  try {
    BagelCheckpoint tokens;
    read_tokens(tokens, folder, config.llm.vocab_size);
  } catch (const InputError& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace diptych
