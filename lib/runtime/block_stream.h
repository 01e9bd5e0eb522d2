// Blocks of bytes that lie on the host, such as layers' weights, and the places on a device that
// they pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/runtime/copy_lane.h"

namespace diptych {

class BlockStream {
 public:
  // `blocks`: CopyLane::host_buffer()s of bytes. Each place is as large as the largest of them.
  BlockStream(std::vector<Tensor> blocks, std::int64_t places, at::Device device);

  std::size_t places() const { return places_.size(); }
  const Tensor& place(std::size_t place) const { return places_[place].buffer; }  // uint8

  // `wanted`: blocks in the order in which they are needed, each once. The first `now` of them, at
  // most as many as there are places, are for work that the current stream is given before
  // release(); of the others as many are copied ahead as there are places for. Returns where the
  // first `now` are: each at the beginning of a place.
  std::vector<std::size_t> acquire(std::span<const std::size_t> wanted, std::size_t now);
  void release();

 private:
  struct Place {
    Tensor buffer;
    std::optional<std::size_t> block;  // what lies there, or is on its way
    std::uint64_t last_use = 0;
  };
  std::optional<std::size_t> find(std::size_t block) const;
  std::size_t oldest_without(std::span<const std::size_t> wanted) const;

  std::vector<Tensor> blocks_;
  std::vector<Place> places_;
  std::vector<std::size_t> in_use_;  // places
  std::uint64_t uses_ = 0;
  CopyLane lane_;  // the last member: its destructor waits for copies from and to the others
};

}  // namespace diptych
