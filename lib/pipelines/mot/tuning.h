// What `diptych tune` measures: the choices of lib/tuning on the shapes of a MoT backbone's decoder
// layers.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/log.h"
#include "lib/models/qwen_mot/layers.h"
#include "lib/tuning/table.h"

namespace diptych {

struct MotTuning {
  QwenConfig llm;                          // the widths
  std::vector<std::int64_t> picture_rows;  // latent rows of a picture, of each size
  int repeats = 10;                        // of which the median counts
};

// The rows that occur: of texts, and of one to three guidance branches of each size, latents and
// markers. Sorted, each once.
struct MotTuningRows {
  std::vector<std::int64_t> products;   // of a projection
  std::vector<std::int64_t> norms;      // of a layer's norm or activation, of both experts
  std::vector<std::int64_t> attention;  // queries of a sample
  static MotTuningRows of(const MotTuning& tuning);
};

// Times every possible choice at each of these rows, in bfloat16, on the CUDA device, whose best
// ones become the table. Those of fp8 only from compute capability 8.9 on. Of attention the time of
// a call has its share of the plan that some backends make once for a picture. Throws Interrupted
// between measurements, InputError where a kernel has no launch for the widths.
TuningTable measure_mot(const MotTuning& tuning, at::Device device, Progress& progress);

}  // namespace diptych
