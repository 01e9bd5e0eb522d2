// What a run of BAGEL takes of the GPU's memory, computed from sizes before a byte is loaded, and
// the choices that make it fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/choices.h"
#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"

namespace diptych {

struct BagelSizes {  // of the checkpoint
  BagelConfig model;
  FluxVaeConfig vae;
  at::ScalarType dtype = at::kBFloat16;  // of the model; the autoencoder is float32
  bool vision = false;                   // the image understanding part is loaded
  bool head = false;                     // so is lm_head, which writes text
  Quantization quantization = Quantization::none;
  bool reference_kernels = false;  // quantised weights are multiplied as a float32 copy

  std::int64_t expert_matrix_bytes() const {
    return MotExpert::matrix_bytes(model.llm, {dtype, quantization});
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

struct BagelChoice {
  bool batched = true;  // guidance branches in one call; else one after the other
  bool strips = false;  // the autoencoder works in strips (VaeStrips)
  std::optional<MotOffload> offload;
};

using NamedBytes = std::vector<std::pair<std::string_view, std::int64_t>>;

struct BagelMemory {
  BagelChoice choice;
  NamedBytes held;         // from loading to the end: weights, slots, caches
  NamedBytes work;         // one at a time
  std::int64_t slack = 0;  // holes in the allocator's blocks, cuBLAS workspace
  std::int64_t host = 0;   // page-locked host memory

  std::int64_t held_bytes() const;
  // What the run needs of the device at most; where there is more, the allocator keeps some of what
  // was freed at hand.
  std::int64_t peak() const;
  // The same where the memory of a denoise step and its caches are kept while the rest is done, the
  // caches of the next request among it.
  std::int64_t peak_with_kept_step() const;
  // What a step that is kept holds itself: its memory, caches and layout.
  std::int64_t kept_step_bytes() const;
  std::string summary() const;  // "31.5 GiB: experts 24.3, ..., denoise step 1.0, ..."
};

BagelMemory plan_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                              const BagelChoice& choice);

// What the process takes of the device beside its tensors: the CUDA context, code of libraries.
// limit_memory() is to be given what is left of --max-vram.
inline constexpr std::int64_t kCudaBytes = std::int64_t{3} << 28;  // 0.75 GiB

struct BagelMemoryWishes {
  OffloadWish offload = OffloadWish::automatic;
  TilingWish tiling = TilingWish::automatic;
  std::optional<bool> batched;  // nullopt: chosen here
};

struct MemoryBudget {
  std::optional<std::int64_t> device;  // free bytes, or --max-vram; nullopt: the run is on the CPU
  bool limited = false;                // `device` is --max-vram
  std::optional<std::int64_t> host;    // available bytes, where the system tells
};

// The plan of the first way that fits: what was not wished for is chosen in the order of what it
// costs: strips, sequential guidance, then (batched again, if it can be) offload with as many
// experts on the device as there is room for. `layers` without --max-vram keeps none there. Throws
// InputError, one line: what is needed, what is available, and which flags, all tried with this
// plan, would make it fit. On the CPU nothing is chosen but what is wished.
BagelMemory fit_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                             const BagelMemoryWishes& wishes, const MemoryBudget& budget);

// Throws InputError for experts that are to wait in host memory, where the run is there anyway.
void check_offload(OffloadWish wish, const MemoryBudget& budget);

// The same once the experts lie where `offload` says: only strips and, where wished, sequential
// guidance are still open.
BagelMemory refit_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                               const BagelMemoryWishes& wishes, const MemoryBudget& budget,
                               const std::optional<MotOffload>& offload);

}  // namespace diptych
