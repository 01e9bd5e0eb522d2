#include "lib/pipelines/lance/checkpoint.h"

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/models/wan_vae/memory.h"
#include "lib/pipelines/lance/settings.h"
#include "lib/pipelines/vae_media.h"
#include "lib/tensor/layout_problems.h"
#include "lib/tensor/stored_tensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char *kPictures = "Lance_3B", *kClips = "Lance_3B_Video",
                     *kVision = "Qwen2.5-VL-ViT";
constexpr std::string_view kVisionScope = "vit_model";

LanceTask task_of(const RunConfig& run) {
  const auto task = parse_choice<LanceTask>(run.task);
  TORCH_CHECK(task.has_value(), "[lance] the task ", run.task, " is not settled");
  return *task;
}

fs::path first_of(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fs::exists(folder / name)) return folder / name;
  }
  throw InputError(
      "{}: {} not found; expected a Lance folder as it is downloaded, with {}, {}, {} "
      "and Wan2.2_VAE.pth",
      folder.string(), *names.begin(), kPictures, kClips, kVision);
}

// No config file tells the widths. Random weights take those of the folder's autoencoder where it
// has one, else the released ones.
WanVaeConfig read_vae_config(const Weights& weights, const LanceFolders& folders) {
  if (!weights.is_dummy() || folders.root.empty()) return WanVaeConfig::infer(weights);
  return WanVaeConfig::infer(Weights::open(folders.vae_file(), at::kCPU, at::kFloat));
}

// Whether a model's file holds the vision tower, too.
bool holds_vision(const Weights& model) {
  return model.scope(kVisionScope).contains("patch_embed.proj.weight");
}

// A generation expert may lack tensors: those of the other expert stand for them, as the official
// loader copies these before it reads the file.
constexpr std::string_view kGeneration = "_moe_gen";
bool may_lack(const std::string& name) {
  return name.find(kGeneration) != std::string::npos;
}

// The official loader drops this table: positions are computed.
constexpr std::string_view kUnneeded = "latent_pos_embed.pos_embed";

// What the model's file must hold, and how many tensors stand in for others that it lacks.
struct ModelLayout {
  std::vector<TensorShape> tensors;
  std::size_t lacking = 0;
};
ModelLayout model_layout(const Weights& weights, const LanceConfig& config) {
  const bool bundles_vision = holds_vision(weights);
  ModelLayout layout;
  for (TensorShape& tensor : lance_layout(config)) {
    if (tensor.name.starts_with(kVisionScope) && !bundles_vision) continue;
    if (may_lack(tensor.name) && !weights.contains(tensor.name)) {
      ++layout.lacking;
    } else {
      layout.tensors.push_back(std::move(tensor));
    }
  }
  return layout;
}

void check_model_layout(const Weights& weights, const LanceConfig& config, Log& log) {
  const auto [tensors, lacking] = model_layout(weights, config);
  for (const auto& [name, shape] : tensors) weights.check(name, shape);
  for (const std::string& name : weights.unread()) {
    if (name != kUnneeded) weights.require_all_read();
  }
  if (lacking > 0)
    log.info("{} tensors of the generation experts are missing: those of understanding stand in",
             lacking);
}

// The names and shapes of the autoencoder's file. On the meta device nothing of it is read.
void check_vae_layout(const fs::path& file) {
  const Weights weights = Weights::open(file, at::kMeta, at::kFloat);
  WanVae::load(weights, WanVaeConfig::infer(weights), {KernelPolicy::reference});
}

}  // namespace

bool is_of_clips(LanceTask task) {
  using enum LanceTask;
  return task == t2v || task == i2v || task == video_edit || task == x2t_video;
}

LanceFolders LanceFolders::of(const fs::path& root, LanceTask task) {
  if (root.empty()) return {};
  require_folder(root, Setting::of("model"));
  const char* const own = is_of_clips(task) ? kClips : kPictures;
  const char* const other = is_of_clips(task) ? kPictures : kClips;
  const bool is_part = fs::exists(root / "llm_config.json") &&
                       !fs::exists(root / "ae.safetensors");  // BAGEL's folder has both
  if (!fs::exists(root / own) && is_part) {
    throw InputError(Setting::of("model"),
                     "{}: is the folder of one part of Lance; expected the one above, with {}, {} "
                     "and Wan2.2_VAE.pth",
                     root.string(), own, kVision);
  }
  if (!fs::exists(root / own)) {
    throw InputError("{}: {} not found; the task {} takes its weights from there{}", root.string(),
                     own, name_of(task),
                     !fs::exists(root / other) ? ""
                     : is_of_clips(task)       ? ", and the folder is for pictures alone"
                                               : ", and the folder is for videos alone");
  }
  return {root, root / own, first_of(root, {kVision})};
}

fs::path LanceFolders::model_file() const {
  return first_of(llm, {"model.safetensors", "model.safetensors.index.json", "ema.safetensors",
                        "ema.safetensors.index.json"});
}

fs::path LanceFolders::vit_file() const {
  return first_of(vit, {"vit.safetensors"});
}

fs::path LanceFolders::vae_file() const {
  return first_of(root, {"Wan2.2_VAE.pth", "Wan2.2_VAE.safetensors"});
}

bool LanceCheckpoint::bundles_vision() const {
  return !model_weights.is_dummy() && holds_vision(model_weights);
}

std::unique_ptr<LanceCheckpoint> LanceCheckpoint::open(const RunConfig& run, const Runtime& runtime,
                                                       Log& log) {
  const bool dummy = run.load_format == LoadFormat::dummy;
  if (run.model.empty() && !dummy) {
    throw InputError(Setting::absent("model"),
                     "missing; expected a Lance checkpoint folder (or --load-format dummy)");
  }
  auto opened = std::make_unique<LanceCheckpoint>();
  LanceCheckpoint& c = *opened;
  c.task = task_of(run);
  c.is_dummy = dummy;
  c.draft_model = run.own.get<LanceSettings>().draft_model;
  c.folders = LanceFolders::of(run.model, c.task);
  c.quantization = {runtime.quantization, runtime.kernels};
  c.kernels = runtime.kernels;
  c.vae_precision =
      wan_vae_precision(run, runtime, /*exact=*/false).on(runtime.device, runtime.kernels.policy);
  c.vae_dtype = name_of(c.vae_precision.name());
  if (!run.model.empty()) c.config = LanceConfig::load(c.folders.llm, c.folders.vit);
  // Buffers were cast with the weights, the rotary frequencies among them.
  c.config.llm.bf16_rope_frequencies = runtime.dtype == at::kBFloat16;
  // Beside the vocabulary, whose problems are told first.
  auto opening = std::async(std::launch::async, [&] { c.open_weights(run, runtime, log); });
  c.tokenizer = run.model.empty() ? byte_tokenizer() : load_byte_level_bpe(c.folders.llm);
  c.markers = LanceMarkers::of(*c.tokenizer);
  opening.get();
  c.mot_.emplace(MotModel{c.language_model,
                          c.latents,
                          *c.tokenizer,
                          c.markers.bos,
                          c.markers.eos,
                          {c.markers.vision_start, c.markers.vision_end}});
  return opened;
}

void LanceCheckpoint::open_weights(const RunConfig& run, const Runtime& runtime, Log& log) {
  if (is_dummy) {
    model_weights = vit_weights = Weights::dummy(runtime.device, runtime.dtype);
    vae_weights = Weights::dummy(runtime.device, vae_precision.maps);
  } else {
    open_files(runtime, log);
  }
  // Requests are checked against these before anything is loaded.
  language_model.config = config.llm;
  latents.side = config.positions.side;
  latents.frames = config.positions.frames;
  latents.width = config.row_width;
  vae.config = read_vae_config(vae_weights, folders);
  if (vae.config.z_dim != config.row_width || vae.config.spatial() != config.pixels_per_row)
    throw InputError("{}: the autoencoder has {} channels at 1/{}, expected {} at 1/{}",
                     folders.vae_file().string(), vae.config.z_dim, vae.config.spatial(),
                     config.row_width, config.pixels_per_row);
  if (!is_dummy) check_vae_layout(folders.vae_file());
  if (run.load_ahead) load_ahead(runtime);
}

void LanceCheckpoint::open_files(const Runtime& runtime, Log& log) {
  model_weights = Weights::open(folders.model_file(), runtime.device, runtime.dtype);
  vit_weights = Weights::open(folders.vit_file(), runtime.device, runtime.dtype);
  vae_weights = Weights::open(folders.vae_file(), runtime.device, vae_precision.maps);
  if (bundles_vision())
    log.info("{}: its vit_model.* replaces {}, as the official loader does",
             folders.model_file().string(), folders.vit_file().string());
  check_model_layout(model_weights, config, log);
}

void LanceCheckpoint::drop_weights() {
  language_model.layers = {};
}

void LanceCheckpoint::place_weights(const std::optional<MotOffload>& offload) {
  if (!offload) reserve_layers(config.llm, quantization.kind);
  const Weights complete = model_weights.standing_in(kGeneration);
  language_model =
      MotBackbone::load(complete.scope("language_model"), config.llm, offload, quantization);
  latents =
      MotLatents::load(model_weights, config.llm.hidden_size, config.row_width, config.positions);
  vae = WanVae::load(vae_weights, vae.config, {kernels, vae_precision.is_tf32()});
}

void LanceCheckpoint::load_vision() {
  if (vision) return;
  const Weights& from = bundles_vision() ? model_weights : vit_weights;
  Weights::ReadAhead reading(from);
  vision = QwenVision::load(bundles_vision() ? from.scope(kVisionScope) : from, config.vit);
  reading.finish();
}

void LanceCheckpoint::load_head() {
  if (language_model.lm_head.defined()) return;
  Weights::ReadAhead reading(model_weights);
  MotTextWeights head = language_model.load_head(model_weights.scope("language_model"));
  reading.finish();
  language_model.take(std::move(head));
}

std::string LanceCheckpoint::weights_hash(const std::stop_token& stop) const {
  if (bundles_vision())
    return fmt::format("{:.16}-{:.16}", model_weights.hash(stop), vae_weights.hash(stop));
  return fmt::format("{:.16}-{:.16}-{:.16}", model_weights.hash(stop), vit_weights.hash(stop),
                     vae_weights.hash(stop));
}

void LanceCheckpoint::require_finite_weights() const {
  if (model_weights.is_dummy()) return;
  require_finite(open_checkpoint(folders.model_file()));
  require_finite(open_checkpoint(folders.vae_file()));
  if (!bundles_vision()) require_finite(open_checkpoint(folders.vit_file()));
}

MotSizes LanceCheckpoint::sizes() const {
  MotSizes sizes;
  sizes.llm = config.llm;
  sizes.layout = lance_layout(config);
  sizes.tokens_in_file = MotBackbone::tokens_stay_in_file(model_weights.scope("language_model"));
  sizes.row_width = config.row_width;
  sizes.pixels_per_row = config.pixels_per_row;
  sizes.look_bytes = [vit = config.vit](std::int64_t patches, std::int64_t element) {
    // In groups, however they lie. `patches` counts windows as if all were full (InputWork): their
    // keys and values have buffers of that size.
    const std::int64_t merge = vit.spatial_merge_size;
    return qwen_vision_bytes(vit, {.t = 1, .h = merge, .w = patches / merge},
                             element == 4 ? at::kFloat : at::kBFloat16) +
           2 * patches * vit.hidden_size * element;
  };
  const WanVaeConfig& own = vae.config;
  sizes.vae.weights = wan_vae_weight_bytes(own, vae_precision);
  sizes.vae.encode = [own, precision = vae_precision](const FrameSize& size, bool) {
    return wan_vae_encode_bytes(own, {size.width, size.height, size.frames}, precision);
  };
  sizes.vae.decode = [own, precision = vae_precision](const FrameSize& size, bool) {
    return wan_vae_decode_bytes(own, {size.width, size.height, size.frames}, precision);
  };
  return sizes;
}

MappedWeights LanceCheckpoint::mapped() const {
  MappedWeights mapped;
  mapped.is_view = [](const std::string&, at::ScalarType) { return false; };
  if (model_weights.is_dummy()) return mapped;
  mapped.is_view = [model = open_checkpoint(folders.model_file()),
                    vit = open_checkpoint(folders.vit_file()),
                    bundled = bundles_vision()](const std::string& name, at::ScalarType dtype) {
    const bool of_vision = name.starts_with(kVisionScope) && !bundled;
    return of_vision ? is_view(vit, name.substr(kVisionScope.size() + 1), dtype)
                     : is_view(model, name, dtype);
  };
  mapped.autoencoder = static_cast<std::int64_t>(
      view_bytes(open_checkpoint(folders.vae_file()),
                 c10::typeMetaToScalarType(vae_weights.options().dtype())));
  return mapped;
}

void LanceCheckpoint::rehearse_decoding(const LatentSize& size, bool) const {
  // The third latent frame is the first that meets all of its history.
  const std::int64_t frames = std::min<std::int64_t>(size.t, 3);
  WanVaeDecoder decoder(vae, at::zeros({frames, size.h, size.w, config.row_width},
                                       vae_weights.options().dtype(at::kFloat)));
  while (decoder.has_next()) decoder.next();
}

StoredWeights lance_stored_weights(const RunConfig& run) {
  if (run.load_format == LoadFormat::dummy || run.model.empty()) return {};
  return StoredWeights::of(open_checkpoint(LanceFolders::of(run.model, task_of(run)).model_file()));
}

std::unique_ptr<MotCheckpoint> open_lance_checkpoint(const RunConfig& run, const Runtime& runtime,
                                                     Log& log) {
  return LanceCheckpoint::open(run, runtime, log);
}

std::vector<std::string> check_lance_layout(const fs::path& folder) {
  std::vector<std::string> problems;
  const auto add = [&](std::string problem) {  // once: both halves share files
    if (std::ranges::find(problems, problem) == problems.end())
      problems.push_back(std::move(problem));
  };
  const auto check = [&](const std::function<void()>& part) {
    try {
      part();
    } catch (const InputError& error) {
      add(error.what());
    }
  };
  const auto check_tensors = [&](const fs::path& file, auto layout_of) {
    const Weights weights = Weights::open(file, at::kCPU, at::kFloat);
    for (const std::string& problem : layout_problems(weights, layout_of(weights), kUnneeded))
      add(fmt::format("{}: {}", fs::relative(file, folder).string(), problem));
  };
  const auto check_half = [&](LanceTask task) {
    const LanceFolders folders = LanceFolders::of(folder, task);
    const LanceConfig config = LanceConfig::load(folders.llm, folders.vit);
    check([&] {
      check_tensors(folders.model_file(),
                    [&](const Weights& weights) { return model_layout(weights, config).tensors; });
    });
    check([&] {
      check_tensors(folders.vit_file(),
                    [&](const Weights&) { return qwen_vision_layout(config.vit); });
    });
    check([&] { check_vae_layout(folders.vae_file()); });
    check([&] { LanceMarkers::of(*load_byte_level_bpe(folders.llm)); });
  };
  // Each half serves its tasks alone.
  if (fs::exists(folder / kPictures)) check([&] { check_half(LanceTask::t2i); });
  if (fs::exists(folder / kClips)) check([&] { check_half(LanceTask::t2v); });
  return problems;
}

}  // namespace diptych
