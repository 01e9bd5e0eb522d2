#include "lib/runtime/block_stream.h"

#include <algorithm>

namespace diptych {

BlockStream::BlockStream(std::vector<Tensor> blocks, std::int64_t places, at::Device device)
    : blocks_(std::move(blocks)),
      places_(static_cast<std::size_t>(std::max<std::int64_t>(places, 1))),
      lane_(device, places_.size()) {
  std::int64_t most = 0;
  for (const Tensor& block : blocks_) most = std::max(most, block.numel());
  const auto options = at::TensorOptions().device(device).dtype(at::kByte);
  for (Place& place : places_) place.buffer = at::empty({most}, options);
}

std::optional<std::size_t> BlockStream::find(std::size_t block) const {
  const auto place = std::ranges::find(places_, block, &Place::block);
  if (place == places_.end()) return std::nullopt;
  return static_cast<std::size_t>(place - places_.begin());
}

std::size_t BlockStream::oldest_without(std::span<const std::size_t> wanted) const {
  const Place* best = nullptr;
  for (const Place& place : places_) {
    if (place.block && std::ranges::find(wanted, *place.block) != wanted.end()) continue;
    if (best == nullptr || place.last_use < best->last_use) best = &place;
  }
  // At most as many are wanted as there are places, and one of them is in no place.
  TORCH_CHECK(best != nullptr, "[block_stream] no place is free");
  return static_cast<std::size_t>(best - places_.data());
}

std::vector<std::size_t> BlockStream::acquire(std::span<const std::size_t> wanted,
                                              std::size_t now) {
  release();  // places that a call that threw still holds
  wanted = wanted.first(std::min(wanted.size(), places_.size()));
  TORCH_CHECK(now <= wanted.size(), "[block_stream] ", now, " blocks at once, there are ",
              places_.size(), " places");
  for (const std::size_t block : wanted) {
    if (find(block)) continue;
    const std::size_t place = oldest_without(wanted);
    const Tensor& bytes = blocks_[block];
    lane_.fill(place, places_[place].buffer.narrow(0, 0, bytes.numel()), bytes);
    places_[place].block = block;
  }
  for (const std::size_t block : wanted.first(now)) {
    const std::size_t place = *find(block);
    lane_.await_filled(place);
    in_use_.push_back(place);
  }
  return in_use_;
}

void BlockStream::release() {
  for (const std::size_t place : in_use_) {
    lane_.release(place);
    places_[place].last_use = ++uses_;
  }
  in_use_.clear();
}

}  // namespace diptych
