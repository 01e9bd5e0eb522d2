#include "lib/models/qwen_mot/expert_stream.h"

#include <algorithm>

namespace diptych {
namespace {

std::size_t checked(std::int64_t slots) {
  TORCH_CHECK(slots >= 2, "[expert_stream] ", slots, " slots, a layer can need 2");
  return static_cast<std::size_t>(slots);
}

}  // namespace

ExpertStream::ExpertStream(const QwenConfig& config, const MatrixFormat& format,
                           std::vector<HostExpert> experts, std::int64_t slots, at::Device device)
    : experts_(std::move(experts)), slots_(checked(slots)), lane_(device, slots_.size()) {
  const Tensor& matrices = experts_.front().matrices;
  const auto options = at::TensorOptions().device(device).dtype(matrices.scalar_type());
  for (Slot& slot : slots_) {
    slot.buffer = at::empty(matrices.sizes(), options);
    slot.views.use_matrices(slot.buffer, config, format);
  }
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
  for (std::size_t i = 0; i < experts_.size() && wanted.size() < slots_.size(); ++i) {
    const std::size_t expert = (begin + i) % experts_.size();
    if (needed(experts_[expert], parts)) wanted.push_back(expert);
  }
  return wanted;
}

ExpertStream::Slot* ExpertStream::find(std::size_t expert) {
  const auto slot = std::ranges::find(slots_, expert, &Slot::expert);
  return slot == slots_.end() ? nullptr : &*slot;
}

std::size_t ExpertStream::oldest_without(const std::vector<std::size_t>& wanted) const {
  const Slot* best = nullptr;
  for (const Slot& slot : slots_) {
    if (slot.expert && std::ranges::find(wanted, *slot.expert) != wanted.end()) continue;
    if (best == nullptr || slot.last_use < best->last_use) best = &slot;
  }
  // At most as many are wanted as there are slots, and one of them is in no slot.
  TORCH_CHECK(best != nullptr, "[expert_stream] no slot is free");
  return static_cast<std::size_t>(best - slots_.data());
}

const MotLayer& ExpertStream::acquire(std::size_t layer, const MotLayer& kept, MotParts parts) {
  release();  // slots that a call that threw still holds
  const std::vector<std::size_t> wanted = upcoming(layer, parts);
  for (const std::size_t expert : wanted) {
    if (find(expert) != nullptr) continue;
    const std::size_t place = oldest_without(wanted);
    lane_.fill(place, slots_[place].buffer, experts_[expert].matrices);
    slots_[place].expert = expert;
  }
  acquired_ = kept;
  for (const std::size_t expert : wanted) {
    if (experts_[expert].layer != layer) continue;
    const auto place = static_cast<std::size_t>(find(expert) - slots_.data());
    lane_.await_filled(place);
    in_use_.push_back(place);
    QwenLayer& whole = experts_[expert].gen ? acquired_.gen : acquired_.und;
    const QwenLayer& views = slots_[place].views;
    whole.qkv_proj = views.qkv_proj;
    whole.o_proj = views.o_proj;
    whole.gate_up_proj = views.gate_up_proj;
    whole.down_proj = views.down_proj;
  }
  return acquired_;
}

void ExpertStream::release() {
  for (const std::size_t place : in_use_) {
    lane_.release(place);
    slots_[place].last_use = ++uses_;
  }
  in_use_.clear();
}

}  // namespace diptych
