#include "lib/models/wan/blocks.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/runtime/block_stream.h"

namespace diptych {

// The matrices of blocks that lie on the host.
class WanBlockStream {
 public:
  struct OnHost {
    std::size_t block;
    WanBuffers matrices;
  };

  WanBlockStream(const WanConfig& config, const MatrixFormat& format, std::vector<OnHost> blocks,
                 std::int64_t slots, at::Device device)
      : blocks_(std::move(blocks)), stream_(buffers_of(blocks_), slots, device) {
    views_.resize(stream_.places());
    for (std::size_t i = 0; i < views_.size(); ++i) {
      views_[i].use_matrices(WanPart::step, stream_.place(i), config, format);
      context_views_.emplace_back().use_matrices(WanPart::context, stream_.place(i), config,
                                                 format);
    }
  }

  // `kept`: the block as it lies on the device.
  const WanBlock& acquire(std::size_t block, const WanBlock& kept, WanPart part) {
    const std::vector<std::size_t> wanted = upcoming(block, part);
    const bool lies_here = blocks_[wanted.front() / 2].block == block;
    const std::vector<std::size_t> places = stream_.acquire(wanted, lies_here ? 1 : 0);
    if (!lies_here) return kept;
    acquired_ = kept;
    const auto& views = part == WanPart::step ? views_ : context_views_;
    acquired_.take_matrices(part, views[places.front()]);
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
  std::vector<std::size_t> upcoming(std::size_t block, WanPart part) const {
    const auto first = std::ranges::lower_bound(blocks_, block, {}, &OnHost::block);
    const auto begin = static_cast<std::size_t>(first - blocks_.begin());
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < blocks_.size() && wanted.size() < stream_.places(); ++i)
      wanted.push_back(2 * ((begin + i) % blocks_.size()) + (part == WanPart::step ? 0 : 1));
    return wanted;
  }

  std::vector<OnHost> blocks_;
  BlockStream stream_;
  std::vector<WanBlock> views_, context_views_;  // the matrices in each place
  WanBlock acquired_;
};

namespace {

// Of `blocks` so many stay on the device; the others are spread evenly.
bool is_streamed(std::int64_t block, std::int64_t blocks, std::int64_t resident) {
  const std::int64_t streamed = blocks - std::clamp<std::int64_t>(resident, 0, blocks);
  return (block + 1) * streamed / blocks > block * streamed / blocks;
}

}  // namespace

WanBlocks WanBlocks::load(const Weights& weights, const WanConfig& config,
                          const std::optional<WanOffload>& offload,
                          const MatrixQuantization& quantization) {
  WanBlocks blocks;
  std::vector<WanBlockStream::OnHost> on_host;
  const at::Device device = weights.options().device();
  const MatrixFormat format = {c10::typeMetaToScalarType(weights.options().dtype()),
                               quantization.kind};
  const auto host_buffer = [&](WanPart part) {
    return CopyLane::host_buffer(WanBlock::matrix_bytes(part, config, format), at::kByte, device);
  };
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const Weights scope = weights.scope(fmt::format("blocks.{}", i));
    if (!offload || !is_streamed(i, config.num_layers, offload->resident)) {
      blocks.blocks_.push_back(WanBlock::load(scope, config, quantization));
      continue;
    }
    const WanBuffers buffers = {host_buffer(WanPart::step), host_buffer(WanPart::context)};
    WanBlock block = WanBlock::load(scope, config, quantization, buffers);
    block.take_matrices(WanPart::step, {});
    block.take_matrices(WanPart::context, {});
    blocks.blocks_.push_back(std::move(block));
    on_host.push_back({static_cast<std::size_t>(i), buffers});
  }
  if (!on_host.empty()) {
    blocks.stream_ = std::make_shared<WanBlockStream>(config, format, std::move(on_host),
                                                      offload->slots, device);
  }
  return blocks;
}

const WanBlock& WanBlocks::acquire(std::size_t block, WanPart part) const {
  return stream_ == nullptr ? blocks_[block] : stream_->acquire(block, blocks_[block], part);
}

void WanBlocks::release() const {
  if (stream_ != nullptr) stream_->release();
}

}  // namespace diptych
