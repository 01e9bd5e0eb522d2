#include <map>
#include <mutex>
#include <tuple>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/runtime/capture.h"

namespace diptych {
namespace {

// CUDAGraph::capture_end (pytorch, aten/src/ATen/cuda/CUDAGraph.cpp) stops at a capture that work
// has made invalid before it tells the allocators, which would go on asking the graph about every
// allocation, even when it is gone.
void end_invalid_capture(c10::cuda::CUDAStream stream, at::cuda::MempoolId_t pool) {
  cudaGraph_t none = nullptr;
  C10_CUDA_IGNORE_ERROR(cudaStreamEndCapture(stream.stream(), &none));
  c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(), pool);
  c10::cuda::CUDACachingAllocator::releasePool(stream.device_index(), pool);
  at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
  host->end_allocate_to_pool(pool);
  host->release_pool(pool);
}

void end_failed_capture(at::cuda::CUDAGraph& graph, at::cuda::MempoolId_t pool) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream.stream(), &status));
  if (status == cudaStreamCaptureStatusActive) {
    graph.capture_end();
  } else {
    end_invalid_capture(stream, pool);
  }
}

// Not of torch's pool, which hands its 32 streams out in turn: a thread that reads weights could be
// given the one that another thread is capturing. Its copies would fail, or become nodes of that
// graph.
c10::cuda::CUDAStream make_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  const int greatest = std::get<1>(c10::cuda::CUDAStream::priority_range());  // as torch's
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return c10::cuda::getStreamFromExternal(stream, device);
}

}  // namespace

c10::cuda::CUDAStream capture_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, make_stream(device)).first->second;
}

std::unique_ptr<at::cuda::CUDAGraph> capture_graph(at::cuda::MempoolId_t pool,
                                                   const std::function<void()>& work) {
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Other threads go on meanwhile: some read weights to the device (lib/tensor/device_reader.h).
  graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    work();
    graph->capture_end();  // this, too, fails where the work made the capture invalid
  } catch (...) {
    try {
      end_failed_capture(*graph, pool);
    } catch (const c10::Error&) {  // why the work failed is what is said
    }
    throw;
  }
  return graph;
}

}  // namespace diptych
