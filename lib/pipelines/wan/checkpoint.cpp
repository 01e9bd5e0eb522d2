#include "lib/pipelines/wan/checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/user_cache.h"
#include "lib/models/wan/layout.h"
#include "lib/models/wan/memory.h"
#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/memory.h"
#include "lib/pipelines/dit/block_cache.h"
#include "lib/pipelines/vae_media.h"
#include "lib/pipelines/wan/job.h"
#include "lib/pipelines/wan/turn.h"
#include "lib/tensor/checkpoint_hash.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBothExperts = "experts";
// Where the experts of the releases change, as a share of the timesteps.
constexpr double kTextBoundary = 0.875, kPictureBoundary = 0.9;
constexpr std::int64_t kLatents = 12;  // of the solver's history, and those of a step

constexpr const char* kVision = "image_encoder";
constexpr const char* kProcessor = "image_processor/preprocessor_config.json";

// What it makes of a picture must have the size that the vision tower reads.
ClipImageProcessor load_processor(const fs::path& folder, const ClipVisionConfig& vision) {
  const fs::path file = folder / kProcessor;
  const ClipImageProcessor processor = ClipImageProcessor::load(file);
  const auto made = processor.crop_size   ? processor.crop_size
                    : processor.do_resize ? processor.exact_size
                                          : std::nullopt;
  if (made == std::array{vision.image_size, vision.image_size}) return processor;
  throw InputError("{}: {}: found {}, expected {}x{}, the image_size of {}", file.string(),
                   processor.crop_size ? "crop_size" : "size",
                   made ? fmt::format("{}x{}", made->at(1), made->at(0)) : "no fixed size",
                   vision.image_size, vision.image_size,
                   (folder / kVision / "config.json").string());
}

// An expert has the sizes of the first transformer's config.
void require_same_config(const fs::path& folder) {
  const fs::path first = folder / kWanTransformers[0] / "config.json",
                 second = folder / kWanTransformers[1] / "config.json";
  const WanConfig a = WanConfig::load(first), b = WanConfig::load(second);
  if (a == b) return;
  throw InputError("{}: differs from {} in the sizes of the transformer; expected the same ones",
                   second.string(), first.string());
}

}  // namespace

// Random weights have the sizes of the folder's configs, or of a release.
WanCheckpoint::WanCheckpoint(const RunConfig& run, const Runtime& runtime, Log& log)
    : runtime_(runtime),
      folder_(run.model),
      parts_(folder_, run.own.get<WanSettings>()),
      dummy_(run.load_format == LoadFormat::dummy),
      vae_precision_(wan_vae_precision(run, runtime, /*exact=*/true)
                         .on(runtime.device, runtime.kernels.policy)),
      max_vram_(run.max_vram) {
  if (folder_.empty() && (!dummy_ || parts_.gives_any())) {
    throw InputError(Setting::absent("model"), "missing; expected a Wan checkpoint folder{}",
                     dummy_ ? " with the parts that are not given" : " (or --load-format dummy)");
  }
  if (folder_.empty()) {
    open_release(run.own.get<WanSettings>().release);
  } else {
    open_folder();
  }
  if (dit_.out_channels != vae_.config.z_dim)
    throw InputError("{}: out_channels {}, but the autoencoder has {} channels", folder_.string(),
                     dit_.out_channels, vae_.config.z_dim);
  loras_ = read_wan_loras(run.own.get<WanSettings>(), dit_, has_experts(), log);
  open_weights();
}

// Names and shapes of every part are checked ahead of the first byte.
void WanCheckpoint::open_weights() {
  const at::Device device = runtime_.device;
  const WanPlace place{device, runtime_.dtype};
  const std::size_t experts = has_experts() ? kExperts : 1;
  for (std::size_t i = 0; i < experts; ++i) {
    expert_weights_[i] = dummy_ ? Weights::dummy(device, runtime_.dtype, 0, loras_.changes[i])
                                : parts_.open_transformer(i, dit_, place, loras_.changes[i]);
  }
  const auto dummy = [&](at::ScalarType dtype) { return Weights::dummy(device, dtype); };
  texts_.emplace(folder_, text_config_,
                 dummy_ ? dummy(runtime_.dtype) : parts_.open_text_encoder(text_config_, place),
                 runtime_);
  const at::ScalarType vae = vae_precision_.maps;
  vae_weights_ = dummy_ ? dummy(vae) : parts_.open_vae(vae_.config, {device, vae});
  if (!sees_picture()) return;
  vision_weights_ =
      dummy_ ? dummy(runtime_.dtype) : Weights::open(folder_ / kVision, device, runtime_.dtype);
  if (dummy_) return;
  check_clip_vision_tensors(vision_weights_, vision_config_);
}

void WanCheckpoint::open_release(WanRelease release) {
  using enum WanRelease;
  const bool small = release == t2v_1_3b, wide = release == ti2v_5b;
  const bool picture = release == i2v_14b || release == i2v_a14b;
  index_.has_second_expert = release == t2v_a14b || release == i2v_a14b;
  if (index_.has_second_expert) index_.boundary_ratio = picture ? kPictureBoundary : kTextBoundary;
  index_.expand_timesteps = wide;
  index_.has_image_encoder = release == i2v_14b;
  index_.from_picture = picture;
  if (small) {
    dit_.num_attention_heads = 12;
    dit_.num_layers = 30;
    dit_.ffn_dim = 8960;
  }
  if (wide) {
    dit_.num_attention_heads = 24;
    dit_.num_layers = 30;
    dit_.ffn_dim = 14336;
    dit_.in_channels = dit_.out_channels = 48;
  }
  if (picture) dit_.in_channels = 36;
  if (index_.has_image_encoder) dit_.image_dim = vision_config_.hidden_size;
  vae_.config = wide ? WanVaeConfig::wan22() : WanVaeConfig::wan21();
  text_config_ = released_umt5();
}

void WanCheckpoint::open_folder() {
  require_folder(folder_, Setting::of("model"));
  index_ = WanIndex::load(folder_);
  dit_ = parts_.transformer();
  text_config_ = parts_.text_encoder();
  vae_.config = parts_.vae();
  if (parts_.is_given(kWanTransformers[1]) && !has_experts()) {
    index_.has_second_expert = true;
    index_.boundary_ratio = joins_picture() ? kPictureBoundary : kTextBoundary;
  }
  if (has_experts() && !parts_.is_given(kWanTransformers[0]) &&
      !parts_.is_given(kWanTransformers[1]))
    require_same_config(folder_);
  if (dit_.text_dim != text_config_.d_model)
    throw InputError("{}: text_dim {}, but the text encoder has d_model {}",
                     parts_.sizes_file(kWanTransformers[0]).string(), dit_.text_dim,
                     text_config_.d_model);
  if (!sees_picture()) return;
  vision_config_ = ClipVisionConfig::load(folder_ / kVision / "config.json");
  image_processor_ = load_processor(folder_, vision_config_);
}

std::unique_ptr<DitJob> WanCheckpoint::make_job(const RunConfig& request, Log& log) {
  return std::make_unique<WanJob>(request, *this, log);
}

std::unique_ptr<DitTurn> WanCheckpoint::make_turn(DitJobs jobs) const {
  return std::make_unique<WanTurn>(jobs);
}

WanTransformer WanCheckpoint::load_expert(std::size_t place) const {
  const Weights& weights = expert_weights_[place];
  Weights::ReadAhead reading(weights);
  WanTransformer loaded = WanTransformer::load(weights, dit_, offload_,
                                               {runtime_.quantization, runtime_.kernels.policy});
  reading.finish();
  return loaded;
}

const WanTransformer& WanCheckpoint::expert(std::size_t place) {
  if (experts_[place]) return *experts_[place];
  if (!keeps_experts_) experts_[1 - place].reset();
  return experts_[place].emplace(load_expert(place));
}

void WanCheckpoint::load(const MemoryPlan& plan, Progress& progress) {
  std::vector<Weights> sources = {expert_weights_[0], vae_weights_};
  keeps_experts_ = !has_experts() || plan.held.front().first == kBothExperts;
  if (has_experts() && keeps_experts_) sources.push_back(expert_weights_[1]);
  if (sees_picture()) sources.push_back(vision_weights_);
  constexpr std::uint64_t kMebi = 1 << 20;
  std::uint64_t total = 0, done = 0;
  for (const Weights& weights : sources) total += weights.total_bytes();
  progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
  for (Weights& weights : sources) {
    weights.on_read([&](std::uint64_t bytes) {
      progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
    });
  }
  if (plan.choice.offload)
    offload_ = BlockOffload{plan.choice.offload->resident, plan.choice.offload->slots};
  expert(0);
  if (has_experts() && keeps_experts_) expert(1);
  vae_ =
      WanVae::load(vae_weights_, vae_.config, {runtime_.kernels.policy, vae_precision_.is_tf32()});
  if (sees_picture()) vision_ = ClipVision::load(vision_weights_, vision_config_);
  for (Weights& weights : sources) weights.on_read({});
  progress.end();
  loaded_ = true;
}

std::optional<WanVaeTiling> WanCheckpoint::tiling() const {
  return tiles_ ? std::optional(WanVaeTiling()) : std::nullopt;
}

std::string WanCheckpoint::weights_hash(const std::stop_token& stop) const {
  std::string hash = fmt::format("{:.16}", expert_weights_[0].hash(stop));
  const auto add = [&](const Weights& weights) {
    hash += fmt::format("-{:.16}", weights.hash(stop));
  };
  if (has_experts()) add(expert_weights_[1]);
  add(texts_->weights());
  add(vae_weights_);
  if (sees_picture()) add(vision_weights_);
  for (const std::filesystem::path& lora : loras_.files)
    hash +=
        fmt::format("-{:.16}", checkpoint_hash(open_checkpoint(lora), stop, user_cache_folder()));
  return hash;
}

void WanCheckpoint::require_finite_weights() const {
  if (dummy_) return;
  for (const Weights& weights : expert_weights_) {
    if (&weights == &expert_weights_[0] || has_experts()) weights.require_finite();
  }
  vae_weights_.require_finite();
  texts_->weights().require_finite();
  if (sees_picture()) vision_weights_.require_finite();
}

std::string_view WanCheckpoint::vae_dtype() const {
  return name_of(vae_precision_.name());
}

// `experts`: how many are on the device at a time.
MemoryPlan WanCheckpoint::plan(const MemoryChoice& choice, DitJobs jobs, PixelSize size,
                               std::size_t experts) const {
  const DitJob& job = *jobs.front();
  const auto count = std::ssize(jobs);
  const bool both = experts == kExperts;
  const auto copies = static_cast<std::int64_t>(experts);
  const MatrixFormat format = {runtime_.dtype, runtime_.quantization};
  std::optional<BlockOffload> offload;
  if (choice.offload) offload = BlockOffload{choice.offload->resident, choice.offload->slots};
  const WanVaeConfig& vae = vae_.config;
  const WanVaeClip clip = {size.width, size.height, job.size.frames};
  const WanForwardSizes step = step_sizes(jobs, size, choice.batched ? job.branches : 1);
  WanForwardSizes contexts = step;
  contexts.samples = count * job.branches;
  MemoryPlan memory;
  memory.choice = choice;
  memory.host = copies * wan_host_bytes(dit_, format, offload);
  memory.held = {
      {both ? kBothExperts : "transformer", copies * wan_weight_bytes(dit_, format, offload)},
      {"autoencoder", wan_vae_weight_bytes(vae, vae_precision_)},
      {"contexts", copies * wan_context_bytes(dit_, contexts, runtime_.dtype)},
      {"latents", count * kLatents * step.latent.frames * step.latent.height * step.latent.width *
                      dit_.in_channels * 4},
      {"step cache",
       count * step_cache_bytes(job, step.latent.rows() * dit_.width(), runtime_.dtype)}};
  if (sees_picture())
    memory.held.emplace_back("image encoder",
                             clip_vision_weight_bytes(vision_config_, runtime_.dtype));
  memory.work = {
      {kDenoiseStepPart, wan_step_bytes(dit_, step, format)},
      {"vae decode", choice.strips ? wan_vae_decode_bytes(vae, clip, vae_precision_, WanVaeTiling())
                                   : wan_vae_decode_bytes(vae, clip, vae_precision_)}};
  if (job.config().reads_images())
    memory.work.emplace_back("vae encode", wan_vae_encode_bytes(vae, clip, vae_precision_));
  if (runtime_.device.is_cpu()) return memory;
  constexpr std::int64_t kMebi = std::int64_t{1} << 20;
  memory.slack = 640 * kMebi + largest_part(memory.work).second / 4;
  return memory;
}

WanForwardSizes WanCheckpoint::step_sizes(DitJobs jobs, PixelSize size,
                                          std::int64_t branches) const {
  const std::int64_t spatial = vae_.config.spatial();
  WanForwardSizes step;
  step.latent = {WanVaeConfig::latent_frames(jobs.front()->size.frames), size.height / spatial,
                 size.width / spatial};
  step.samples = std::ssize(jobs) * branches;
  step.times = index_.expand_timesteps ? 2 : 1;
  for (const DitJob* job : jobs) {
    for (const TokenIds& ids : job->texts)
      step.text_keys = std::max(step.text_keys, std::ssize(ids) + 1);
  }
  step.image_keys = sees_picture() ? vision_config_.rows() : 0;
  step.shared = shared_keys();
  if (step.shared == SharedKeys::repeated) step.text_keys = kWanTextRows;
  step.reference = runtime_.device.is_cpu() || runtime_.kernels == KernelPolicy::reference;
  return step;
}

// Without streaming. Asked of --max-vram, or of what is free.
bool WanCheckpoint::both_fit(DitJobs jobs) const {
  const MemoryBudget budget = MemoryBudget::of(max_vram_, runtime_);
  if (!budget.device) return true;
  const DitFrames& size = jobs.front()->size;
  return plan({}, jobs, {size.width, size.height}, kExperts).peak() + kCudaBytes <= *budget.device;
}

MemoryCosts WanCheckpoint::costs(DitJobs jobs) const {
  const DitJob& job = *jobs.front();
  const bool both = has_experts() && (loaded_ ? keeps_experts_ : both_fit(jobs));
  const std::size_t experts = both ? kExperts : 1;
  MemoryCosts costs;
  costs.plan = [this, jobs, experts](const MemoryChoice& choice, PixelSize size) {
    return plan(choice, jobs, size, experts);
  };
  costs.size = {job.size.width, job.size.height};
  costs.size_step = pixels_per_row();
  costs.branches = job.branches;
  costs.has_strips = true;
  if (runtime_.device.is_cpu()) return costs;
  costs.offload.count = dit_.num_layers;
  costs.offload.bytes = wan_block_bytes(dit_, {runtime_.dtype, runtime_.quantization}) *
                        static_cast<std::int64_t>(experts);
  costs.offload.slots = BlockOffload{}.slots;
  return costs;
}

std::int64_t WanCheckpoint::matrix_bytes(const MatrixFormat& format) const {
  return (has_experts() ? 2 : 1) * dit_.num_layers * wan_block_bytes(dit_, format);
}

DitOpening wan_opening() {
  return {.stored = [](const RunConfig& run) -> StoredWeights {
            if (run.load_format == LoadFormat::dummy || run.model.empty()) return {};
            const WanParts parts(run.model, run.own.get<WanSettings>());
            return StoredWeights::of(parts.transformer_files());
          },
          .open = [](const RunConfig& run, const Runtime& runtime,
                     Log& log) -> std::unique_ptr<DitCheckpoint> {
            return std::make_unique<WanCheckpoint>(run, runtime, log);
          }};
}

std::vector<std::string> check_wan_layout(const fs::path& folder) {
  std::vector<std::string> problems;
  // `check_tensors`: with the weights of a part and its config file.
  const auto check = [&](const char* part, const auto& check_tensors) {
    try {
      check_tensors(Weights::open(folder / part, at::kCPU, at::kFloat),
                    folder / part / "config.json");
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  };
  const WanIndex index = WanIndex::load(folder);
  const auto transformer = [&](const Weights& weights, const fs::path& config) {
    check_wan_tensors(weights, WanConfig::load(config));
  };
  check(kWanTransformers[0], transformer);
  if (index.has_second_expert) {
    check(kWanTransformers[1], [&](const Weights& weights, const fs::path& config) {
      transformer(weights, config);
      require_same_config(folder);
    });
  }
  check(kWanVae, [&](const Weights& weights, const fs::path& config) {
    check_tensors(weights, wan_vae_layout(WanVaeConfig::load(config)));
  });
  check(kWanText, [&](const Weights& weights, const fs::path& config) {
    check_umt5_tensors(weights, Umt5Config::load(config));
  });
  if (index.has_image_encoder) {
    check(kVision, [&](const Weights& weights, const fs::path& config) {
      const ClipVisionConfig vision = ClipVisionConfig::load(config);
      check_clip_vision_tensors(weights, vision);
      load_processor(folder, vision);
    });
  }
  try {
    UnigramTokenizer::load(folder / "tokenizer");
  } catch (const InputError& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace diptych
