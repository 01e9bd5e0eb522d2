// What a run of a model on a MoT backbone takes of the GPU's memory, or on the CPU of the host's,
// computed from sizes before a byte is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/choices.h"
#include "lib/models/qwen_mot/backbone.h"
#include "lib/session/memory/fit.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

// What of the model only some requests need.
struct MotLoadedParts {
  bool vision = false, head = false;  // to look at pictures; to write text
};

// On the CPU: what of the checkpoint is used where its file is mapped, and so takes no memory.
struct MappedWeights {
  // Of a tensor of the model, where the run computes in that dtype.
  std::function<bool(const std::string& name, at::ScalarType dtype)> is_view;
  std::int64_t autoencoder = 0;  // bytes
};

// Pixels of a picture, or of each picture of a clip.
struct FrameSize {
  std::int64_t width = 0, height = 0, frames = 1;
};

struct AutoencoderCosts {
  std::int64_t weights = 0;  // bytes
  // Most bytes of a pass, its input and output among them.
  std::function<std::int64_t(const FrameSize&size, bool strips)> encode, decode;
};

struct DrafterCosts {  // of texts' drafter, in bytes
  std::int64_t weights = 0;
  std::int64_t row = 0;       // keys and values of a row
  std::int64_t features = 0;  // of a row that is read
  std::int64_t block = 0;     // tokens that are checked at once
  bool samples = false;       // their choices are drawn
};

struct MotSizes {  // of the checkpoint
  QwenConfig llm;
  // Every tensor of the model. Those of the layers, the head and the embeddings have their names
  // below "language_model."; those below "vit_" and "connector." look at pictures.
  std::vector<TensorShape> layout;
  std::int64_t row_width = 0;       // of a latent row
  std::int64_t pixels_per_row = 0;  // of a latent row, a side
  std::function<std::int64_t(std::int64_t patches, std::int64_t element)> look_bytes;
  AutoencoderCosts vae;
  bool has_strips = true;                // whether it may work in strips
  at::ScalarType dtype = at::kBFloat16;  // of the model
  MotLoadedParts parts;
  // The embeddings of tokens stay where the file is mapped, of which a run needs few rows: for a
  // GPU until the head is loaded.
  bool tokens_in_file = false;
  Quantization quantization = Quantization::none;
  bool reference_kernels = false;  // quantised weights are multiplied as a float32 copy
  // Whether gate, up and their activation of so many rows are one kernel; none: never.
  std::function<bool(std::int64_t rows)> gates_at_once = {};
  std::optional<MappedWeights> mapped = {};  // on the CPU
  std::optional<DrafterCosts> drafter = {};  // where texts are drafted

  std::int64_t expert_matrix_bytes() const {
    return QwenLayer::matrix_bytes(llm, {dtype, quantization});
  }
};

// The most of each that the run does at once. A part that does not happen is 0.
struct MotWork {
  std::int64_t width = 0, height = 0;  // pixels of a painted picture or clip
  std::int64_t latent_frames = 1;      // of a clip
  std::int64_t frames = 1;             // pictures that are decoded of it
  std::int64_t samples = 1;            // pictures, or answers, of one packed call
  std::int64_t branches = 1;           // distinct guidance contexts
  std::int64_t steps = 50;
  std::int64_t context_tokens = 0;  // longest context, a plan included
  std::int64_t text_rows = 0;       // of the caches that text is written with, beside the others
  std::int64_t prefill_rows = 0;    // most rows of one prefill call: a text, or an image block
  FrameSize encoded = {};           // a picture or clip that is encoded
  std::int64_t vision_patches = 0;  // most patches of a picture that is looked at
  std::int64_t cache_bytes = 0;     // what a step cache keeps between steps
  bool writes_logits = false;       // the attention backend is math
  bool paints = true;               // else what was read goes to another model, which does
  // Steps of two kinds, with and without guidance, each become a CUDA graph unless experts wait in
  // host memory. They share memory, but blocks of the first that suit the second are not promised.
  bool two_graphs = false;
};

MemoryPlan plan_mot_memory(const MotSizes& sizes, const MotWork& work, const MemoryChoice& choice);

// The same for fit_memory(): units of offload are experts, first those of understanding.
MemoryCosts mot_costs(const MotSizes& sizes, const MotWork& work);
std::optional<MotOffload> mot_offload(const std::optional<OffloadChoice>& choice,
                                      std::int64_t layers);

}  // namespace diptych
