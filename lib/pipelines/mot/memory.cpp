#include "lib/pipelines/mot/memory.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/attention/kv_cache.h"

namespace diptych {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kMebi = std::int64_t{1} << 20;

// Several of these become one matrix: a copy.
bool is_joined(std::string_view name) {
  constexpr std::array<std::string_view, 5> kParts = {".q_proj", ".k_proj", ".v_proj", ".gate_proj",
                                                      ".up_proj"};
  return std::ranges::any_of(
      kParts, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// Both sides of one call's formulas.
struct Planner {
  const MotSizes& sizes;
  const MotWork& work;
  const MemoryChoice& choice;
  const QwenConfig& llm = sizes.llm;
  std::int64_t element = static_cast<std::int64_t>(c10::elementSize(sizes.dtype));

  std::int64_t rows() const {  // of one sample's image block, markers included
    const std::int64_t step = sizes.pixels_per_row;
    const std::int64_t frame = (work.width / step) * (work.height / step);
    return work.width == 0 ? 0 : work.latent_frames * frame + 2;
  }
  std::int64_t step_rows() const {  // of one denoise call
    return (choice.batched ? work.branches : 1) * work.samples * rows();
  }

  // Parts of the layout by where their bytes go.
  struct WeightBytes {
    std::int64_t layers = 0, embeddings = 0, head = 0, vision = 0, other = 0;
    std::int64_t mapped = 0;  // beside the others
  };
  WeightBytes weights() const {
    WeightBytes bytes;
    for (const auto& [name, shape] : sizes.layout) {
      const std::int64_t part = c10::multiply_integers(shape) * element;
      const bool of_layer = name.starts_with("language_model.model.layers.");
      const bool of_head = name == "language_model.lm_head.weight";
      const bool of_vision = name.starts_with("vit_") || name.starts_with("connector.");
      const bool of_tokens = name == "language_model.model.embed_tokens.weight";
      if (of_tokens && sizes.tokens_in_file && (sizes.mapped || !sizes.parts.head)) continue;
      if ((of_head && !sizes.parts.head) || (of_vision && !sizes.parts.vision)) continue;
      const bool quantised =
          of_layer && shape.size() == 2 && sizes.quantization != Quantization::none;
      if (!quantised && stays_mapped(name)) {
        bytes.mapped += part;
      } else if (of_layer) {
        bytes.layers += quantised ? part / element + shape[0] * kFloat : part;
      } else if (of_head) {
        bytes.head += part;
      } else if (of_vision) {
        bytes.vision += part;
      } else if (name.starts_with("language_model.")) {
        bytes.embeddings += part;
      } else {
        bytes.other += part;
      }
    }
    return bytes;
  }
  bool stays_mapped(const std::string& name) const {
    return sizes.mapped && !is_joined(name) && sizes.mapped->is_view(name, sizes.dtype);
  }
  std::int64_t expert() const { return sizes.expert_matrix_bytes(); }
  std::int64_t streamed() const {  // experts
    if (!choice.offload) return 0;
    return std::max<std::int64_t>(2 * llm.num_hidden_layers - choice.offload->resident, 0);
  }

  std::int64_t key_values() const {
    const std::int64_t token =
        2 * llm.num_hidden_layers * llm.num_key_value_heads * llm.head_dim * element;
    const std::int64_t painted =
        work.branches * work.samples * KvCache::rounded_capacity(work.context_tokens + rows());
    return token * ((rows() > 0 ? painted : 0) + work.text_rows);
  }
  // Position rows, embedded times, and the rope tables and slots of every plan.
  std::int64_t denoise_layout() const {
    if (rows() == 0) return 0;
    const std::int64_t planned =
        choice.batched ? work.branches * (work.branches + 1) / 2 : work.branches;
    return (work.samples * rows() + work.steps) * llm.hidden_size * element +
           planned * work.samples * rows() * (llm.head_dim * kFloat + 8);
  }

  // What the wider half of a layer holds. The second: the residual stream, its normed copy, gate
  // and up, and their product, which alone is left where one kernel makes it of x. The first has in
  // their place q, k and v, q rotated, and what was attended; and logits, where attention writes
  // them.
  std::int64_t backbone(std::int64_t rows) const {
    const std::int64_t logits = work.writes_logits ? 3 * 256 * kMebi : 0;
    const std::int64_t first = 2 * llm.hidden_size + llm.qkv_width() + 2 * llm.q_width();
    const bool gates_at_once = sizes.gates_at_once && sizes.gates_at_once(rows);
    const std::int64_t second =
        3 * llm.hidden_size + (gates_at_once ? 1 : 3) * llm.intermediate_size;
    return rows * std::max(first, second) * element + logits + dequantised(rows);
  }
  // What stands for quantised weights while they are multiplied; gate and up are the largest. Of
  // int8 at most a copy in the run's dtype. Without own kernels one in float32 first, or of fp8 one
  // beside rows and products in float32.
  std::int64_t dequantised(std::int64_t rows) const {
    if (sizes.quantization == Quantization::none) return 0;
    const std::int64_t outputs = 2 * llm.intermediate_size, matrix = outputs * llm.hidden_size;
    const bool fp8 = sizes.quantization == Quantization::fp8;
    const std::int64_t product =
        fp8 ? rows * (outputs + llm.hidden_size) * kFloat : matrix * element;
    if (sizes.reference_kernels) return matrix * kFloat + product;
    return fp8 ? 0 : product;
  }
  std::int64_t denoise_step() const {
    // The latents' rows and velocities of the branches and of their guidance, in float32.
    const std::int64_t small =
        work.samples * rows() *
        (llm.hidden_size * element + (work.branches + 6) * sizes.row_width * kFloat);
    return backbone(step_rows()) + small;
  }
  // What may be taken beside a guided step where there are two graphs, which share memory: that of
  // a step without guidance, one branch of all samples, which is of no use to the other where it
  // comes first.
  std::int64_t second_step() const {
    return work.two_graphs && !choice.offload ? backbone(work.samples * rows()) : 0;
  }
  std::int64_t prefill() const {
    const std::int64_t features = sizes.drafter ? sizes.drafter->features : 0;
    return backbone(work.prefill_rows) +
           work.prefill_rows * (llm.hidden_size * element + features) +
           work.samples * llm.vocab_size * kFloat;
  }
  // A block of tokens is computed as rows that are read are, and has logits. A draw sorts them:
  // scores, shares, ids, masks and sums of every id.
  std::int64_t verification() const {
    constexpr std::int64_t kDraw = 60;
    const std::int64_t rows = sizes.drafter->block;
    const std::int64_t score = kFloat + 2 * element + (sizes.drafter->samples ? kDraw : 0);
    return backbone(rows) + rows * (sizes.drafter->features + llm.vocab_size * score);
  }
  std::int64_t look() const { return sizes.look_bytes(work.vision_patches, element); }
};

}  // namespace

MemoryPlan plan_mot_memory(const MotSizes& sizes, const MotWork& work, const MemoryChoice& choice) {
  const Planner planner{sizes, work, choice};
  const Planner::WeightBytes weights = planner.weights();
  MemoryPlan memory;
  memory.choice = choice;
  memory.host = planner.streamed() * planner.expert();
  const bool streams = memory.host > 0;
  memory.held = {
      {"experts", weights.layers - memory.host},
      {"expert slots", streams ? choice.offload->slots * planner.expert() : 0},
      {"embeddings", weights.embeddings},
      {"output head", weights.head},
      {"vision", weights.vision},
      {"projections", weights.other},
      {"autoencoder", std::max<std::int64_t>(
                          sizes.vae.weights - (sizes.mapped ? sizes.mapped->autoencoder : 0), 0)},
      {kKeyValueCachePart, planner.key_values()},
      {kDenoiseLayoutPart, work.paints ? planner.denoise_layout() : 0},
      {"step cache", work.cache_bytes},
  };
  if (sizes.drafter) {
    memory.held.emplace_back("drafter", sizes.drafter->weights);
    memory.held.emplace_back("drafter's cache", work.text_rows * sizes.drafter->row);
    memory.work.emplace_back("verification", planner.verification());
  }
  if (work.prefill_rows > 0) memory.work.emplace_back("prefill", planner.prefill());
  if (work.vision_patches > 0) memory.work.emplace_back("vision", planner.look());
  if (work.encoded.width > 0)
    memory.work.emplace_back("vae encode", sizes.vae.encode(work.encoded, choice.strips));
  if (work.width > 0 && work.paints) {
    memory.work.emplace_back(kDenoiseStepPart, planner.denoise_step());
    memory.work.emplace_back(
        "vae decode", sizes.vae.decode({work.width, work.height, work.frames}, choice.strips));
  }
  if (sizes.mapped) {
    memory.mapped = weights.mapped + sizes.mapped->autoencoder;
    return memory;  // what the CPU's allocator frees the system has back
  }
  // The allocator keeps blocks of one step's sizes that do not fit the next one's: replaying the
  // allocations of text to image at 256, 512 and 1024 pixels by the rules of
  // c10/cuda/CUDACachingAllocator.cpp left holes of up to half the largest step's bytes, and gave
  // what was measured on an H200 within 0.1 GiB.
  // On an H200 the holes were 31.47 - 29.65 GiB at 1024x1024, and half a GiB more where pictures
  // are read (scripts/gpu_check).
  memory.slack = (sizes.parts.vision ? 1152 : 640) * kMebi + largest_part(memory.work).second / 2;
  // The memory of graphs is taken as a whole and has no part in these holes.
  for (auto& [name, bytes] : memory.work)
    bytes += name == kDenoiseStepPart ? planner.second_step() : 0;
  return memory;
}

namespace {

PlanFn plan_fn(const MotSizes& sizes, const MotWork& work) {
  return [sizes, work](const MemoryChoice& choice, PixelSize size) {
    MotWork sized = work;
    sized.width = size.width;
    sized.height = size.height;
    return plan_mot_memory(sizes, sized, choice);
  };
}

struct FormChoice {
  bool other_dtype = false, quantised = false;
};

// The weights in the other dtype, quantised, and both.
std::vector<WeightForm> other_forms(const MotSizes& sizes, const MotWork& work) {
  constexpr std::array<FormChoice, 3> kChoices = {{{true, false}, {false, true}, {true, true}}};
  std::vector<WeightForm> forms;
  const bool narrow = sizes.dtype == at::kBFloat16;
  for (const auto& [other_dtype, quantised] : kChoices) {
    if (quantised && sizes.quantization != Quantization::none) continue;
    MotSizes form = sizes;
    std::vector<Setting> flags;
    if (other_dtype) {
      form.dtype = narrow ? at::kFloat : at::kBFloat16;
      flags.push_back(Setting::of("dtype", narrow ? "float32" : "bfloat16"));
    }
    if (quantised) {
      form.quantization = Quantization::int8;
      flags.push_back(Setting::of("quantization", "int8"));
    }
    forms.push_back({flags, plan_fn(form, work)});
  }
  return forms;
}

}  // namespace

MemoryCosts mot_costs(const MotSizes& sizes, const MotWork& work) {
  MemoryCosts costs;
  costs.plan = plan_fn(sizes, work);
  costs.size = {work.width, work.height};
  costs.size_step = sizes.pixels_per_row;
  costs.branches = work.branches;
  costs.has_strips = sizes.has_strips && (work.width > 0 || work.encoded.width > 0);
  if (sizes.mapped) {
    costs.forms = other_forms(sizes, work);
    return costs;
  }
  const std::int64_t layers = sizes.llm.num_hidden_layers;
  costs.offload = {.count = 2 * layers,
                   .bytes = sizes.expert_matrix_bytes(),
                   .always_used = layers,
                   .slots = MotOffload{}.slots};
  return costs;
}

std::optional<MotOffload> mot_offload(const std::optional<OffloadChoice>& choice,
                                      std::int64_t layers) {
  if (!choice) return std::nullopt;
  const std::int64_t und = std::min(choice->resident, layers);
  return MotOffload{
      .resident_und = und, .resident_gen = choice->resident - und, .slots = choice->slots};
}

}  // namespace diptych
