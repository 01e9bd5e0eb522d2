#include <map>
#include <utility>
#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/runtime/capture.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Memory that graphs share, and what is called before they are captured: its blocks become theirs.
class GraphPool {
 public:
  explicit GraphPool(c10::DeviceIndex device)
      : device_(device), id_(at::cuda::graph_pool_handle()) {}
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;
  ~GraphPool() {
    for (; uses_ > 0; --uses_) allocator::releasePool(device_, id_);
  }

  at::cuda::MempoolId_t id() const { return id_; }

  void call(const std::function<void()>& work, cudaStream_t stream) {
    allocator::beginAllocateToPool(device_, id_, [stream](cudaStream_t s) { return s == stream; });
    ++uses_;
    try {
      work();
    } catch (...) {
      allocator::endAllocateToPool(device_, id_);
      throw;
    }
    allocator::endAllocateToPool(device_, id_);
  }

 private:
  c10::DeviceIndex device_;
  at::cuda::MempoolId_t id_;
  int uses_ = 0;
};

class CudaLaunchGraphs final : public LaunchGraphs {
 public:
  explicit CudaLaunchGraphs(at::Device device)
      : device_(device), stream_(capture_stream(device.index())) {
    synchronize(device_);  // what the work reads was written on other streams
  }
  CudaLaunchGraphs(const CudaLaunchGraphs&) = delete;
  CudaLaunchGraphs& operator=(const CudaLaunchGraphs&) = delete;
  // What is still launched may use tensors that go with the owner's scope: later work waits for it.
  ~CudaLaunchGraphs() override {
    try {
      at::cuda::CUDAEvent launched;
      launched.record(stream_);
      launched.block(c10::cuda::getCurrentCUDAStream(device_.index()));
    } catch (const c10::Error&) {  // the device has failed: nothing runs behind this
    }
  }

  bool run(std::span<const RepeatedWork> works, const std::function<void()>& after) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    bool replayed = false;
    launched_ = 0;
    for (const RepeatedWork& work : works) {
      std::int64_t left = work.times;
      Entry& entry = entries_[work.key];
      if (left > 0 && !entry.called) {
        call(work);
        entry.called = true;
        --left;
        note_launch(after);
      }
      if (left > 0 && !entry.graph) capture(work, entry);
      replayed = replayed || left > 0;
      for (; left > 0; --left) {
        replay(entry);
        note_launch(after);
      }
    }
    follow(after);
    return replayed;
  }

  void prepare(std::span<const RepeatedWork> works) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    for (const RepeatedWork& work : works) {
      Entry& entry = entries_[work.key];
      if (!entry.called) call(work);
      entry.called = true;
      if (!entry.graph) capture(work, entry);
    }
    stream_.synchronize();
  }

 private:
  struct Entry {
    bool called = false;
    std::unique_ptr<at::cuda::CUDAGraph> graph;
    std::string scope;  // around its replays, for profiles
  };

  void call(const RepeatedWork& work) {
    if (!pool_) {
      // While a pool is allocated to, nothing that other streams have cached is given back.
      allocator::emptyCache();
      pool_ = std::make_unique<GraphPool>(device_.index());
    }
    pool_->call(work.once, stream_.stream());
  }

  void capture(const RepeatedWork& work, Entry& entry) {
    GraphLabels labels;
    try {
      entry.graph = capture_graph(pool_->id(), [&] { labels = label_nodes(work.once); });
      entry.scope = replay_scope_name(labels);
    } catch (...) {
      pool_ = std::make_unique<GraphPool>(device_.index());  // graphs that stay hold the old one
      throw;
    }
  }

  static void replay(Entry& entry) {
    RECORD_USER_SCOPE(entry.scope);
    entry.graph->replay();
  }

  void note_launch(const std::function<void()>& after) {
    if (launched_ == done_.size()) done_.emplace_back();
    done_[launched_++].record(stream_);
    if (launched_ == kMostAhead) follow(after);
  }

  void follow(const std::function<void()>& after) {
    const std::size_t count = std::exchange(launched_, 0);
    for (std::size_t i = 0; i < count; ++i) {
      done_[i].synchronize();
      after();
    }
  }

  // A stream holds only so many launches: of 2000, with an event behind each, some had to wait on
  // an H200, of 400 none.
  static constexpr std::size_t kMostAhead = 256;

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  std::unique_ptr<GraphPool> pool_;
  std::map<std::int64_t, Entry> entries_;
  std::vector<at::cuda::CUDAEvent> done_;  // behind each launch
  std::size_t launched_ = 0;               // of those that follow() has not waited for
};

}  // namespace

std::unique_ptr<LaunchGraphs> make_launch_graphs(c10::Device device) {
  return device.is_cuda() ? std::make_unique<CudaLaunchGraphs>(device) : nullptr;
}

}  // namespace diptych
