#include "lib/models/qwen_mot/expert_stream.h"

#include <algorithm>

namespace diptych {
namespace {

std::int64_t checked(std::int64_t slots) {
  TORCH_CHECK(slots >= 2, "[expert_stream] ", slots, " slots, a layer can need 2");
  return slots;
}

std::vector<Tensor> matrices_of(const std::vector<HostExpert>& experts) {
  std::vector<Tensor> blocks;
  for (const HostExpert& expert : experts) blocks.push_back(expert.matrices);
  return blocks;
}

}  // namespace

ExpertStream::ExpertStream(const QwenConfig& config, const MatrixFormat& format,
                           std::vector<HostExpert> experts, std::int64_t slots, at::Device device)
    : experts_(std::move(experts)), stream_(matrices_of(experts_), checked(slots), device) {
  views_.resize(stream_.places());
  for (std::size_t i = 0; i < views_.size(); ++i)
    views_[i].use_matrices(stream_.place(i), config, format);
}

bool ExpertStream::needed(const HostExpert& expert, MotParts parts) {
  return expert.gen ? parts.gen : parts.und;
}

bool ExpertStream::has(MotParts parts) const {
  return std::ranges::any_of(experts_, [&](const HostExpert& e) { return needed(e, parts); });
}

// From `layer` on, each expert at most once.
std::vector<std::size_t> ExpertStream::upcoming(std::size_t layer, MotParts parts) const {
  const auto first = std::ranges::lower_bound(experts_, layer, {}, &HostExpert::layer);
  const auto begin = static_cast<std::size_t>(first - experts_.begin());
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < experts_.size() && wanted.size() < stream_.places(); ++i) {
    const std::size_t expert = (begin + i) % experts_.size();
    if (needed(experts_[expert], parts)) wanted.push_back(expert);
  }
  return wanted;
}

const MotLayer& ExpertStream::acquire(std::size_t layer, const MotLayer& kept, MotParts parts) {
  const std::vector<std::size_t> wanted = upcoming(layer, parts);
  // Those of this layer come first.
  const auto now = static_cast<std::size_t>(std::ranges::count_if(
      wanted, [&](std::size_t expert) { return experts_[expert].layer == layer; }));
  const std::vector<std::size_t> places = stream_.acquire(wanted, now);
  acquired_ = kept;
  for (std::size_t i = 0; i < now; ++i) {
    QwenLayer& whole = experts_[wanted[i]].gen ? acquired_.gen : acquired_.und;
    for (LinearOperand QwenLayer::*matrix : kQwenMatrices)
      whole.*matrix = views_[places[i]].*matrix;
  }
  return acquired_;
}

}  // namespace diptych
