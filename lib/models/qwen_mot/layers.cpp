#include "lib/models/qwen_mot/layers.h"

#include <fmt/format.h>

#include "lib/models/qwen_mot/expert_stream.h"

namespace diptych {
namespace {

// Of `layers` experts `resident` stay on the device; the others are spread evenly.
bool is_streamed(std::int64_t layer, std::int64_t layers, std::int64_t resident) {
  const std::int64_t streamed = layers - std::clamp<std::int64_t>(resident, 0, layers);
  return (layer + 1) * streamed / layers > layer * streamed / layers;
}

}  // namespace

MotLayers MotLayers::load(const Weights& model, const QwenConfig& config,
                          const std::optional<MotOffload>& offload,
                          const MatrixQuantization& quantization) {
  MotLayers layers;
  std::vector<HostExpert> on_host;
  const std::int64_t count = config.num_hidden_layers;
  const at::Device device = model.options().device();
  const MatrixFormat format = {c10::typeMetaToScalarType(model.options().dtype()),
                               quantization.kind};
  const auto load = [&](const Weights& layer, std::int64_t index, bool gen) {
    const std::string_view suffix = gen ? "_moe_gen" : "";
    if (!offload ||
        !is_streamed(index, count, gen ? offload->resident_gen : offload->resident_und)) {
      return QwenLayer::load(layer, config, suffix, quantization);
    }
    const Tensor host =
        CopyLane::host_buffer(QwenLayer::matrix_bytes(config, format), at::kByte, device);
    QwenLayer expert = QwenLayer::load(layer, config, suffix, quantization, host);
    for (LinearOperand QwenLayer::*matrix : kQwenMatrices) expert.*matrix = {};
    on_host.push_back({static_cast<std::size_t>(index), gen, host});
    return expert;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const Weights layer = model.scope(fmt::format("layers.{}", i));
    QwenLayer und = load(layer, i, false);
    layers.layers_.push_back({std::move(und), load(layer, i, true)});
  }
  if (!on_host.empty()) {
    layers.stream_ =
        std::make_shared<ExpertStream>(config, format, std::move(on_host), offload->slots, device);
  }
  return layers;
}

bool MotLayers::streams(MotParts parts) const {
  return stream_ != nullptr && stream_->has(parts);
}

const MotLayer& MotLayers::acquire(std::size_t layer, MotParts parts) const {
  return stream_ == nullptr ? layers_[layer] : stream_->acquire(layer, layers_[layer], parts);
}

void MotLayers::release() const {
  if (stream_ != nullptr) stream_->release();
}

}  // namespace diptych
