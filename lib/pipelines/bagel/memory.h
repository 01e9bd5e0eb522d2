// What a run of BAGEL takes of the GPU's memory, or on the CPU of the host's, computed from sizes
// before a byte is loaded.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/choices.h"
#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/session/memory/fit.h"

namespace diptych {

struct BagelSizes {  // of the checkpoint
  BagelConfig model;
  FluxVaeConfig vae;
  at::ScalarType dtype = at::kBFloat16;  // of the model; the autoencoder is float32
  bool vision = false;                   // the image understanding part is loaded
  bool head = false;                     // so is lm_head, which writes text
  Quantization quantization = Quantization::none;
  bool reference_kernels = false;            // quantised weights are multiplied as a float32 copy
  std::optional<MappedWeights> mapped = {};  // on the CPU

  std::int64_t expert_matrix_bytes() const {
    return QwenLayer::matrix_bytes(model.llm, {dtype, quantization});
  }
};

// The most of each that the run does at once. A part that does not happen is 0.
struct BagelWork {
  std::int64_t width = 0, height = 0;  // pixels of a painted picture
  std::int64_t samples = 1;            // pictures, or answers, of one packed call
  std::int64_t branches = 1;           // distinct guidance contexts
  std::int64_t steps = 50;
  std::int64_t context_tokens = 0;  // longest context, a plan included
  std::int64_t text_rows = 0;       // of the caches that text is written with, beside the others
  std::int64_t prefill_rows = 0;    // most rows of one prefill call: a text, or an image block
  std::int64_t encode_width = 0, encode_height = 0;  // pixels of a picture that is encoded
  std::int64_t vision_patches = 0;                   // most patches of a picture that is looked at
  std::int64_t cache_bytes = 0;                      // what a step cache keeps between steps
  bool writes_logits = false;                        // the attention backend is math
  // Steps of two kinds, with and without guidance, each become a CUDA graph unless experts wait in
  // host memory. They share memory, but blocks of the first that suit the second are not promised.
  bool two_graphs = false;
};

MemoryPlan plan_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                             const MemoryChoice& choice);

// The same for fit_memory(): units of offload are experts, first those of understanding.
MemoryCosts bagel_costs(const BagelSizes& sizes, const BagelWork& work);
std::optional<MotOffload> mot_offload(const std::optional<OffloadChoice>& choice,
                                      std::int64_t layers);

}  // namespace diptych
