// The weights of a Wan transformer's blocks. All of them are on the device, or some are on the host
// and are copied ahead of the block that needs them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/models/wan/block.h"

namespace diptych {

// How many blocks stay on the device, spread evenly. The matrices of the others lie on the host,
// page-locked, and pass through `slots` places on the device, each of one block's size: 2 or more
// for copies to run beside the work.
struct WanOffload {
  std::int64_t resident = 0;
  std::int64_t slots = 2;
};

class WanBlockStream;

class WanBlocks {
 public:
  // `weights`: the root of the transformer. Throws as Weights::get and CopyLane::host_buffer.
  static WanBlocks load(const Weights& weights, const WanConfig& config,
                        const std::optional<WanOffload>& offload,
                        const MatrixQuantization& quantization);
  std::size_t size() const { return blocks_.size(); }
  // Biases and norms are always there, matrices only where they stay on the device.
  const WanBlock& operator[](std::size_t block) const { return blocks_[block]; }
  bool streams() const { return stream_ != nullptr; }

  // The block with the matrices of that part, for work that the current stream is given before
  // release(). One block at a time, from one thread; fastest in the order of the blocks.
  const WanBlock& acquire(std::size_t block, WanPart part) const;
  void release() const;

 private:
  std::vector<WanBlock> blocks_;
  std::shared_ptr<WanBlockStream> stream_;  // null where everything stays on the device
};

}  // namespace diptych
