#include "lib/pipelines/bagel/checkpoint.h"

#include <future>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/tensor/layout_problems.h"
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
void open_weights(BagelCheckpoint& c, const Runtime& runtime) {
  if (c.is_dummy) {
    c.model_weights = Weights::dummy(runtime.device, runtime.dtype);
    c.vae_weights = Weights::dummy(runtime.device, at::kFloat);
    return;
  }
  const fs::path model = model_file(c.folder), vae = vae_file(c.folder);
  c.model_weights = Weights::open(model, runtime.device, runtime.dtype);
  c.vae_weights = Weights::open(vae, runtime.device, at::kFloat);
}

BagelConfig checked_config(const Weights& weights, const BagelConfig& config,
                           const fs::path& folder) {
  try {
    return Bagel::checked(weights, config);
  } catch (const InputError& error) {
    if (fs::exists(folder / "config.json")) throw;
    throw InputError("{}; {} is missing, which may say other sizes than the released ones",
                     error.what(), (folder / "config.json").string());
  }
}

// No config file tells the widths. Random weights take those of the folder's autoencoder where it
// has one, else the released ones.
FluxVaeConfig read_vae_config(const fs::path& folder, bool dummy) {
  const fs::path file = folder / "ae.safetensors";
  if (dummy && (folder.empty() || !fs::exists(file))) return {};
  // Views of the map where the file holds float32, as the released one does; else its floats
  // convert.
  const Weights weights = Weights::open(file, at::kCPU, at::kFloat);
  return dummy ? FluxVaeConfig::infer(weights) : FluxVaeConfig::checked(weights);
}

MappedWeights mapped_weights(const fs::path& folder) {
  MappedWeights mapped;
  mapped.is_view = [files = open_checkpoint(model_file(folder))](const std::string& name,
                                                                 at::ScalarType dtype) {
    return is_view(files, name, dtype);
  };
  mapped.autoencoder =
      static_cast<std::int64_t>(view_bytes(open_checkpoint(vae_file(folder)), at::kFloat));
  return mapped;
}

// Sizes of the weights, which fit each other.
void check_weights(BagelCheckpoint& c) {
  const BagelConfig& config = c.model.config;
  c.vae.config = read_vae_config(c.folder, c.is_dummy);
  const FluxVaeConfig& vae = c.vae.config;
  if (vae.z_channels != config.latent_channels || vae.downsample() != config.vae_downsample) {
    throw InputError("{}: the autoencoder has {} channels at 1/{}, config.json says {} at 1/{}",
                     c.folder.string(), vae.z_channels, vae.downsample(), config.latent_channels,
                     config.vae_downsample);
  }
  c.model.config = checked_config(c.model_weights, config, c.folder);
}

}  // namespace

std::unique_ptr<BagelCheckpoint> BagelCheckpoint::open(const fs::path& folder, bool dummy,
                                                       const Runtime& runtime, bool ahead) {
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
  if (!folder.empty()) c.model.config = BagelConfig::load(folder);
  const QwenConfig llm = c.model.config.llm;
  c.vae.compute = {runtime.vae_tf32, runtime.kernels};
  // Beside the vocabulary, whose problems are told first.
  auto opening = std::async(std::launch::async, [&] {
    open_weights(c, runtime);
    check_weights(c);
    // Requests are checked against these before anything is loaded.
    c.model.language_model.config = llm;
    c.model.latents.side = c.model.config.latent_side;
    c.model.latents.width = c.model.config.row_width();
    if (ahead) c.load_ahead(runtime);
  });
  read_tokens(c, folder, llm.vocab_size);
  opening.get();
  c.vae_dtype = name_of(runtime.vae_tf32 ? VaeDtype::tf32 : VaeDtype::float32);
  c.mot_.emplace(
      MotModel{c.model.language_model, c.model.latents, *c.tokenizer, c.bos, c.eos, c.markers});
  if (dummy) return opened;
  if (runtime.device.is_cpu()) c.mapped_ = mapped_weights(folder);
  return opened;
}

std::unique_ptr<MotCheckpoint> open_bagel_checkpoint(const RunConfig& config,
                                                     const Runtime& runtime, Log&) {
  if (config.vae_dtype == VaeDtype::bfloat16)
    throw InputError(Setting::of("vae_dtype", "bfloat16"),
                     "the autoencoder of BAGEL computes in float32 or tf32");
  auto opened = BagelCheckpoint::open(config.model, config.load_format == LoadFormat::dummy,
                                      runtime, config.load_ahead);
  opened->draft_model = config.own.get<DraftSettings>().draft_model;
  return opened;
}

StoredWeights bagel_stored_weights(const RunConfig& config) {
  if (config.load_format == LoadFormat::dummy || config.model.empty()) return {};
  require_folder(config.model, Setting::of("model"));
  return StoredWeights::of(open_checkpoint(model_file(config.model)));
}

void BagelCheckpoint::require_finite_weights() const {
  if (model_weights.is_dummy()) return;
  require_finite(open_checkpoint(model_file(folder)));
  require_finite(open_checkpoint(vae_file(folder)));
}

std::vector<std::string> check_bagel_layout(const fs::path& folder) {
  BagelConfig config = BagelConfig::load(folder);
  const Weights weights = Weights::open(model_file(folder), at::kCPU, at::kFloat);
  if (weights.contains("latent_pos_embed.pos_embed")) {
    config.latent_side = Bagel::read_latent_side(weights, config.latent_side);
  }
  std::vector<std::string> problems = layout_problems(weights, bagel_layout(config));
  try {  // the autoencoder's sizes come from its tensors: it fits or says what does not
    FluxVaeConfig::checked(Weights::open(vae_file(folder), at::kCPU, at::kFloat));
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
