#include "lib/pipelines/cosmos/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/models/cosmos/layout.h"
#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/memory.h"
#include "lib/pipelines/cosmos/job.h"
#include "lib/pipelines/cosmos/turn.h"
#include "lib/pipelines/dit/block_cache.h"
#include "lib/pipelines/vae_media.h"
#include "lib/tensor/stored_tensors.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char *kTransformer = "transformer", *kText = "text_encoder", *kVae = "vae";
constexpr std::int64_t kLatents = 12;  // those of a step, and the given frames'

Umt5Config released_text_config() {  // google-t5/t5-11b
  Umt5Config config;
  config.vocab_size = 32128;
  config.d_model = 1024;
  config.d_kv = 128;
  config.d_ff = 65536;
  config.num_layers = 24;
  config.num_heads = 128;
  config.bias_in_every_layer = false;
  config.gated_gelu = false;
  return config;
}

void check_names(const Weights& weights, const std::vector<TensorShape>& layout) {
  for (const auto& [name, shape] : layout) weights.check(name, shape);
  weights.require_all_read();
}

std::optional<BlockOffload> offload_of(const MemoryChoice& choice) {
  if (!choice.offload) return std::nullopt;
  return BlockOffload{choice.offload->resident, choice.offload->slots};
}

std::int64_t block_bytes(const CosmosConfig& config, const MatrixFormat& format) {
  return CosmosBlock::matrix_bytes(BlockPart::step, config, format) +
         CosmosBlock::matrix_bytes(BlockPart::context, config, format);
}

// What the folder's pipeline says of its transformer.
void require_kind(const CosmosConfig& dit, const CosmosIndex& index, const std::string& file) {
  if (dit.takes_frames() == index.continues) return;
  throw InputError("{}: in_channels: found {}, expected {} in a folder of {}", file,
                   dit.in_channels, dit.out_channels + (index.continues ? 1 : 0),
                   index.continues ? "video2world" : "text2image");
}

}  // namespace

// Random weights have the sizes of the folder's configs, or of a release.
CosmosCheckpoint::CosmosCheckpoint(const RunConfig& run, const Runtime& runtime)
    : runtime_(runtime),
      folder_(run.model),
      release_(run.own.get<CosmosSettings>().release),
      dummy_(run.load_format == LoadFormat::dummy),
      vae_precision_(wan_vae_precision(run, runtime, /*exact=*/false)
                         .on(runtime.device, runtime.kernels.policy)) {
  if (folder_.empty() && !dummy_) {
    throw InputError(Setting::absent("model"),
                     "missing; expected a Cosmos-Predict2 checkpoint folder (or --load-format "
                     "dummy)");
  }
  if (folder_.empty()) {
    open_release();
  } else {
    open_folder();
  }
  texts_.emplace(folder_, text_config_, open_part(kText, runtime.dtype), runtime_);
  dit_weights_ = open_part(kTransformer, runtime.dtype);
  vae_weights_ = open_part(kVae, vae_precision_.maps);
  if (!dummy_) check_layout();
}

Weights CosmosCheckpoint::open_part(std::string_view part, at::ScalarType dtype) const {
  if (dummy_) return Weights::dummy(runtime_.device, dtype);
  return Weights::open(folder_ / part, runtime_.device, dtype);
}

// specs: cosmos.md 1.1; the scales of positions are those of the conversion script.
void CosmosCheckpoint::open_release() {
  using enum CosmosRelease;
  const bool large = release_ == t2i_14b || release_ == v2w_14b;
  index_.continues = release_ == v2w_2b || release_ == v2w_14b;
  if (index_.continues) dit_.in_channels = dit_.out_channels + 1;
  if (large) {
    dit_.num_attention_heads = 40;
    dit_.num_layers = 36;
  }
  if (release_ == v2w_2b) dit_.rope_scale = {1, 3, 3};
  if (release_ == v2w_14b) dit_.rope_scale = {20.0 / 24, 2, 2};
  text_config_ = released_text_config();
  vae_config_ = WanVaeConfig::wan21();
}

void CosmosCheckpoint::open_folder() {
  require_folder(folder_, Setting::of("model"));
  index_ = CosmosIndex::load(folder_);
  const std::string file = (folder_ / kTransformer / "config.json").string();
  dit_ = CosmosConfig::load(file);
  text_config_ = Umt5Config::load(folder_ / kText / "config.json");
  vae_config_ = WanVaeConfig::load(folder_ / kVae / "config.json");
  require_kind(dit_, index_, file);
  if (dit_.text_embed_dim != text_config_.d_model) {
    throw InputError("{}: text_embed_dim {}, but the text encoder has d_model {}", file,
                     dit_.text_embed_dim, text_config_.d_model);
  }
  if (dit_.out_channels != vae_config_.z_dim) {
    throw InputError("{}: out_channels {}, but the autoencoder has {} channels", file,
                     dit_.out_channels, vae_config_.z_dim);
  }
}

// Names and shapes, ahead of the first byte.
void CosmosCheckpoint::check_layout() const {
  check_names(dit_weights_, cosmos_layout(dit_));
  check_umt5_tensors(texts_->weights(), text_config_);
  check_names(vae_weights_, wan_vae_layout(vae_config_));
}

std::string CosmosCheckpoint::name() const {
  return folder_.empty() ? fmt::format("--cosmos-release {}", name_of(release_)) : folder_.string();
}

std::unique_ptr<DitJob> CosmosCheckpoint::make_job(const RunConfig& request, Log& log) {
  return std::make_unique<CosmosJob>(request, *this, log);
}

std::unique_ptr<DitTurn> CosmosCheckpoint::make_turn(DitJobs jobs) const {
  return std::make_unique<CosmosTurn>(jobs);
}

void CosmosCheckpoint::load(const MemoryPlan& plan, Progress& progress) {
  constexpr std::uint64_t kMebi = 1 << 20;
  std::array<Weights*, 2> sources = {&dit_weights_, &vae_weights_};
  std::uint64_t total = 0, done = 0;
  for (const Weights* weights : sources) total += weights->total_bytes();
  progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
  for (Weights* weights : sources) {
    weights->on_read([&](std::uint64_t bytes) {
      progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
    });
  }
  Weights::ReadAhead reading(dit_weights_);
  CosmosTransformer transformer =
      CosmosTransformer::load(dit_weights_, dit_, offload_of(plan.choice),
                              {runtime_.quantization, runtime_.kernels.policy});
  reading.finish();
  vae_ =
      WanVae::load(vae_weights_, vae_config_, {runtime_.kernels.policy, vae_precision_.is_tf32()});
  transformer_.emplace(std::move(transformer));
  for (Weights* weights : sources) weights->on_read({});
  progress.end();
}

std::optional<WanVaeTiling> CosmosCheckpoint::tiling() const {
  return tiles_ ? std::optional(WanVaeTiling()) : std::nullopt;
}

std::string CosmosCheckpoint::weights_hash(const std::stop_token& stop) const {
  return fmt::format("{:.16}-{:.16}-{:.16}", dit_weights_.hash(stop), texts_->weights().hash(stop),
                     vae_weights_.hash(stop));
}

void CosmosCheckpoint::require_finite_weights() const {
  if (dummy_) return;
  for (const char* part : {kTransformer, kVae, kText})
    require_finite(open_checkpoint(folder_ / part));
}

std::string_view CosmosCheckpoint::vae_dtype() const {
  return name_of(vae_precision_.name());
}

MemoryPlan CosmosCheckpoint::plan(const MemoryChoice& choice, DitJobs jobs, PixelSize size) const {
  const DitJob& job = *jobs.front();
  const auto count = std::ssize(jobs);
  const MatrixFormat format = {runtime_.dtype, runtime_.quantization};
  const std::optional<BlockOffload> offload = offload_of(choice);
  const WanVaeClip clip = {size.width, size.height, job.size.frames};
  const CosmosForward step = step_sizes(jobs, size, choice.batched ? job.branches : 1);
  const CosmosForward all = step_sizes(jobs, size, job.branches);
  MemoryPlan memory;
  memory.choice = choice;
  if (offload)
    memory.host =
        (dit_.num_layers - std::clamp<std::int64_t>(offload->resident, 0, dit_.num_layers)) *
        block_bytes(dit_, format);
  memory.held = {{"transformer", cosmos_weight_bytes(dit_, format, offload)},
                 {"autoencoder", wan_vae_weight_bytes(vae_config_, vae_precision_)},
                 // The plans of all branches together, and of each alone.
                 {"contexts", cosmos_context_bytes(dit_, all, runtime_.dtype) +
                                  2 * cosmos_plan_bytes(dit_, all, runtime_.dtype)},
                 {"latents", count * kLatents * step.size.frames * step.size.height *
                                 step.size.width * dit_.out_channels * 4},
                 {"step cache",
                  count * step_cache_bytes(job, step.size.rows() * dit_.width(), runtime_.dtype)}};
  const auto vae_bytes = [&](const auto& pass) {
    return choice.strips ? pass(vae_config_, clip, vae_precision_, WanVaeTiling())
                         : pass(vae_config_, clip, vae_precision_);
  };
  memory.work = {{kDenoiseStepPart, cosmos_forward_bytes(dit_, step, format)},
                 {"vae decode",
                  vae_bytes([](const auto&... sizes) { return wan_vae_decode_bytes(sizes...); })}};
  if (continues()) {
    memory.work.emplace_back("vae encode", vae_bytes([](const auto&... sizes) {
                               return wan_vae_encode_bytes(sizes...);
                             }));
  }
  if (runtime_.device.is_cpu()) return memory;
  constexpr std::int64_t kMebi = std::int64_t{1} << 20;
  memory.slack = 640 * kMebi + largest_part(memory.work).second / 4;
  return memory;
}

CosmosForward CosmosCheckpoint::step_sizes(DitJobs jobs, PixelSize size,
                                           std::int64_t branches) const {
  const std::int64_t spatial = vae_config_.spatial();
  CosmosForward step;
  step.size = {WanVaeConfig::latent_frames(jobs.front()->size.frames), size.height / spatial,
               size.width / spatial};
  step.samples = std::ssize(jobs) * branches;
  step.times = continues() ? 2 : 1;
  for (const DitJob* job : jobs) {
    for (const TokenIds& ids : job->texts)
      step.text_keys = std::max<std::int64_t>(step.text_keys, std::ssize(ids) + 1);
  }
  step.shared = shared_keys();
  step.reference_kernels = runtime_.device.is_cpu() || runtime_.kernels == KernelPolicy::reference;
  return step;
}

MemoryCosts CosmosCheckpoint::costs(DitJobs jobs) const {
  const DitJob& job = *jobs.front();
  MemoryCosts costs;
  costs.plan = [this, jobs](const MemoryChoice& choice, PixelSize size) {
    return plan(choice, jobs, size);
  };
  costs.size = {job.size.width, job.size.height};
  costs.size_step = pixels_per_row();
  costs.branches = job.branches;
  costs.has_strips = true;
  if (runtime_.device.is_cpu()) return costs;
  costs.offload = {.count = dit_.num_layers,
                   .bytes = block_bytes(dit_, {runtime_.dtype, runtime_.quantization}),
                   .always_used = 0,
                   .slots = BlockOffload{}.slots};
  return costs;
}

std::int64_t CosmosCheckpoint::matrix_bytes(const MatrixFormat& format) const {
  return dit_.num_layers * block_bytes(dit_, format);
}

DitOpening cosmos_opening() {
  return {.stored = [](const RunConfig& run) -> StoredWeights {
            if (run.load_format == LoadFormat::dummy || run.model.empty()) return {};
            return StoredWeights::of(open_checkpoint(run.model / kTransformer));
          },
          .open = [](const RunConfig& run, const Runtime& runtime,
                     Log&) -> std::unique_ptr<DitCheckpoint> {
            return std::make_unique<CosmosCheckpoint>(run, runtime);
          }};
}

std::vector<std::string> check_cosmos_layout(const fs::path& folder) {
  std::vector<std::string> problems;
  const auto check = [&](const auto& work) {
    try {
      work();
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  };
  const auto check_part = [&](const char* part, const auto& layout) {
    check([&] {
      const Weights weights = Weights::open(folder / part, at::kCPU, at::kFloat);
      check_names(weights, layout(folder / part / "config.json"));
    });
  };
  check([&] {
    const fs::path file = folder / kTransformer / "config.json";
    require_kind(CosmosConfig::load(file), CosmosIndex::load(folder), file.string());
  });
  check_part(kTransformer,
             [](const fs::path& file) { return cosmos_layout(CosmosConfig::load(file)); });
  check_part(kVae, [](const fs::path& file) { return wan_vae_layout(WanVaeConfig::load(file)); });
  check_part(kText, [](const fs::path& file) { return umt5_layout(Umt5Config::load(file)); });
  check([&] { UnigramTokenizer::load(folder / "tokenizer"); });
  return problems;
}

}  // namespace diptych
