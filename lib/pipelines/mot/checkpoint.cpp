#include "lib/pipelines/mot/checkpoint.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "lib/models/qwen/layer.h"

namespace diptych {
namespace {

constexpr std::uint64_t kMebi = 1 << 20;

}  // namespace

void MotCheckpoint::begin_reading(const std::optional<MotOffload>& offload,
                                  std::uint64_t temporary_bytes) {
  reading_.reset();
  drop_weights();
  reading_.emplace(sources(), temporary_bytes);
  try {
    place_weights(offload);
  } catch (...) {
    reading_.reset();
    throw;
  }
}

void MotCheckpoint::begin_loading(const std::optional<MotOffload>& offload) {
  begin_reading(offload, 256 * kMebi);
}

void MotCheckpoint::finish_loading() {
  if (!reading_) return;
  try {
    reading_->finish();
  } catch (...) {
    reading_.reset();
    throw;
  }
  reading_.reset();
}

// Weights that are quantised wait for the device to take them, up to 0.06 s where kernels are
// loaded meanwhile. With 1 GiB for those that wait, BAGEL was read in fp8 0.25 s sooner than with a
// quarter.
void MotCheckpoint::load_ahead(const Runtime& runtime) {
  if (is_dummy || runtime.opening == nullptr) return;
  std::uint64_t bytes = 0;
  for (const Weights& weights : sources())
    bytes += std::max(weights.total_bytes(), weights.loaded_bytes());
  const auto free = runtime.opening->free_bytes();
  if (!free || *free / 2 < bytes) return;
  const c10::InferenceMode inference;  // it may be another thread than that of the run
  begin_reading({}, 1024 * kMebi);
}

void MotCheckpoint::reserve_layers(const QwenConfig& llm, Quantization kind) const {
  const at::TensorOptions options = sources().front().options();
  if (is_dummy || options.device().is_cpu()) return;
  const MatrixFormat format = {c10::typeMetaToScalarType(options.dtype()), kind};
  at::empty({2 * llm.num_hidden_layers * QwenLayer::matrix_bytes(llm, format)},
            options.dtype(at::kByte));
}

}  // namespace diptych
