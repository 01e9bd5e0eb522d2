#include "lib/pipelines/mot/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "lib/models/qwen/layer.h"

namespace diptych {

void MotCheckpoint::finish_loading() {
  if (!reading_) return;
  reading_->finish();
  reading_.reset();
}

void MotCheckpoint::load_ahead(const Runtime& runtime) {
  if (is_dummy || runtime.opening == nullptr) return;
  std::uint64_t bytes = 0;
  for (const Weights& weights : sources()) bytes += weights.total_bytes();
  const auto free = runtime.opening->free_bytes();
  if (!free || *free / 2 < bytes) return;
  const c10::InferenceMode inference;  // it may be another thread than that of the run
  ahead_ = true;
  begin_loading({});
  ahead_ = false;
}

void MotCheckpoint::begin_reading(const QwenConfig& llm, Quantization kind, bool offloads) {
  // Weights that are quantised wait for the device to take them. Where kernels are loaded meanwhile
  // that lasts up to 0.06 s, in which a disk cache gives 2 GiB.
  constexpr std::uint64_t kMebi = 1 << 20;
  reading_.emplace(sources(), ahead_ ? 1024 * kMebi : 256 * kMebi);
  const at::TensorOptions options = sources().front().options();
  if (offloads || is_dummy || options.device().is_cpu()) return;
  const MatrixFormat format = {c10::typeMetaToScalarType(options.dtype()), kind};
  at::empty({2 * llm.num_hidden_layers * QwenLayer::matrix_bytes(llm, format)},
            options.dtype(at::kByte));
}

}  // namespace diptych
