#include <array>
#include <map>
#include <optional>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/runtime/capture.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

class CudaLaunchGraphs final : public LaunchGraphs {
 public:
  explicit CudaLaunchGraphs(at::Device device)
      : device_(device),
        stream_(capture_stream(device.index())),
        pool_(at::cuda::graph_pool_handle()) {
    synchronize(device_);  // what the work reads was written on other streams
  }
  CudaLaunchGraphs(const CudaLaunchGraphs&) = delete;
  CudaLaunchGraphs& operator=(const CudaLaunchGraphs&) = delete;
  // What was launched may still use tensors that go with the owner's scope.
  ~CudaLaunchGraphs() override { C10_CUDA_IGNORE_ERROR(cudaStreamSynchronize(stream_.stream())); }

  void run(std::int64_t key, const std::function<void()>& work) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    Entry& entry = entries_[key];
    if (!entry.called) {
      work();
      entry.called = true;
    } else {
      if (!entry.graph) entry.graph = capture(work);
      entry.graph->replay();
    }
    keep_pace();
  }

  void finish() override { stream_.synchronize(); }

 private:
  struct Entry {
    bool called = false;
    std::unique_ptr<at::cuda::CUDAGraph> graph;
  };

  std::unique_ptr<at::cuda::CUDAGraph> capture(const std::function<void()>& work) {
    // The graph's memory comes beside what the first call left in the allocator's cache.
    stream_.synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    try {
      return capture_graph(pool_, work);
    } catch (...) {
      pool_ = at::cuda::graph_pool_handle();
      throw;
    }
  }

  void keep_pace() {
    at::cuda::CUDAEvent& done = done_[turn_ % done_.size()];
    if (turn_ >= done_.size()) done.synchronize();
    done.record(stream_);
    ++turn_;
  }

  at::Device device_;
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  std::map<std::int64_t, Entry> entries_;
  std::array<at::cuda::CUDAEvent, 2> done_;
  std::size_t turn_ = 0;
};

}  // namespace

std::unique_ptr<LaunchGraphs> make_launch_graphs(c10::Device device) {
  return device.is_cuda() ? std::make_unique<CudaLaunchGraphs>(device) : nullptr;
}

}  // namespace diptych
