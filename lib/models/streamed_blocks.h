// The weights of a transformer's blocks. All of them are on the device, or some are on the host and
// are copied ahead of the block that needs them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/models/matrices.h"
#include "lib/runtime/block_stream.h"

namespace diptych {

// A block's matrices are of two kinds: those that every step needs, and those that make keys and
// values of the context, once for a picture or clip.
enum class BlockPart { step, context };

// Where matrices are put, uint8 [Block::matrix_bytes()]; undefined: each by itself on the device.
struct BlockBuffers {
  Tensor step, context;
};

// How many blocks stay on the device, spread evenly. The matrices of the others lie on the host,
// page-locked, and pass through `slots` places on the device, each of one block's size: 2 or more
// for copies to run beside the work.
struct BlockOffload {
  std::int64_t resident = 0;
  std::int64_t slots = 2;
};

// Block is copied cheaply and has
//   static Block load(const Weights&, const Config&, const MatrixQuantization&,
//                     const BlockBuffers&);
//   void use_matrices(BlockPart, const Tensor& buffer, const Config&, const MatrixFormat&);
//   void take_matrices(BlockPart, const Block& from);
//   static std::int64_t matrix_bytes(BlockPart, const Config&, const MatrixFormat&).
template <typename Block, typename Config>
class StreamedBlocks {
 public:
  // `weights`: the root of the transformer, whose blocks are below "<prefix>.N". Throws as
  // Weights::get and CopyLane::host_buffer.
  static StreamedBlocks load(const Weights& weights, const std::string& prefix,
                             const Config& config, const std::optional<BlockOffload>& offload,
                             const MatrixQuantization& quantization);
  std::size_t size() const { return blocks_.size(); }
  // Vectors are always there, matrices only where they stay on the device.
  const Block& operator[](std::size_t block) const { return blocks_[block]; }
  bool streams() const { return stream_ != nullptr; }

  // The block with the matrices of that part, for work that the current stream is given before
  // release(). One block at a time, from one thread; fastest in the order of the blocks.
  const Block& acquire(std::size_t block, BlockPart part) const {
    return streams() ? stream_->acquire(block, blocks_[block], part) : blocks_[block];
  }
  void release() const {
    if (streams()) stream_->release();
  }

 private:
  struct OnHost {
    std::size_t block;
    BlockBuffers matrices;
  };
  class Stream;

  // Of `blocks` so many stay on the device; the others are spread evenly.
  static bool is_streamed(std::int64_t block, std::int64_t blocks, std::int64_t resident) {
    const std::int64_t streamed = blocks - std::clamp<std::int64_t>(resident, 0, blocks);
    return (block + 1) * streamed / blocks > block * streamed / blocks;
  }

  std::vector<Block> blocks_;
  std::shared_ptr<Stream> stream_;  // null where everything stays on the device
};

// The matrices of blocks that lie on the host.
template <typename Block, typename Config>
class StreamedBlocks<Block, Config>::Stream {
 public:
  Stream(const Config& config, const MatrixFormat& format, std::vector<OnHost> blocks,
         std::int64_t slots, at::Device device)
      : blocks_(std::move(blocks)), stream_(buffers_of(blocks_), slots, device) {
    for (std::size_t i = 0; i < stream_.places(); ++i) {
      step_.emplace_back().use_matrices(BlockPart::step, stream_.place(i), config, format);
      context_.emplace_back().use_matrices(BlockPart::context, stream_.place(i), config, format);
    }
  }

  // `kept`: the block as it lies on the device.
  const Block& acquire(std::size_t block, const Block& kept, BlockPart part) {
    const std::vector<std::size_t> wanted = upcoming(block, part);
    const bool lies_here = blocks_[wanted.front() / 2].block == block;
    const std::vector<std::size_t> places = stream_.acquire(wanted, lies_here ? 1 : 0);
    if (!lies_here) return kept;
    acquired_ = kept;
    acquired_.take_matrices(part, (part == BlockPart::step ? step_ : context_)[places.front()]);
    return acquired_;
  }
  void release() { stream_.release(); }

 private:
  // Two of a block: of a step, then of a context.
  static std::vector<Tensor> buffers_of(const std::vector<OnHost>& blocks) {
    std::vector<Tensor> buffers;
    for (const OnHost& block : blocks) {
      buffers.push_back(block.matrices.step);
      buffers.push_back(block.matrices.context);
    }
    return buffers;
  }

  // From that block on, the first ones follow the last one.
  std::vector<std::size_t> upcoming(std::size_t block, BlockPart part) const {
    const auto first = std::ranges::lower_bound(blocks_, block, {}, &OnHost::block);
    const auto begin = static_cast<std::size_t>(first - blocks_.begin());
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < blocks_.size() && wanted.size() < stream_.places(); ++i)
      wanted.push_back(2 * ((begin + i) % blocks_.size()) + (part == BlockPart::step ? 0 : 1));
    return wanted;
  }

  std::vector<OnHost> blocks_;
  BlockStream stream_;
  std::vector<Block> step_, context_;  // the matrices in each place
  Block acquired_;
};

template <typename Block, typename Config>
StreamedBlocks<Block, Config> StreamedBlocks<Block, Config>::load(
    const Weights& weights, const std::string& prefix, const Config& config,
    const std::optional<BlockOffload>& offload, const MatrixQuantization& quantization) {
  StreamedBlocks blocks;
  std::vector<OnHost> on_host;
  const at::Device device = weights.options().device();
  const MatrixFormat format = {c10::typeMetaToScalarType(weights.options().dtype()),
                               quantization.kind};
  const auto host_buffer = [&](BlockPart part) {
    return CopyLane::host_buffer(Block::matrix_bytes(part, config, format), at::kByte, device);
  };
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const Weights scope = weights.scope(prefix + "." + std::to_string(i));
    if (!offload || !is_streamed(i, config.num_layers, offload->resident)) {
      blocks.blocks_.push_back(Block::load(scope, config, quantization, {}));
      continue;
    }
    const BlockBuffers buffers = {host_buffer(BlockPart::step), host_buffer(BlockPart::context)};
    Block block = Block::load(scope, config, quantization, buffers);
    block.take_matrices(BlockPart::step, {});
    block.take_matrices(BlockPart::context, {});
    blocks.blocks_.push_back(std::move(block));
    on_host.push_back({static_cast<std::size_t>(i), buffers});
  }
  if (!on_host.empty()) {
    blocks.stream_ =
        std::make_shared<Stream>(config, format, std::move(on_host), offload->slots, device);
  }
  return blocks;
}

}  // namespace diptych
