// One CUDA graph of launched work. Only in builds with CUDA.
#pragma once

#include <functional>
#include <memory>

#include <ATen/cuda/CUDAGraph.h>

namespace diptych {

// Captures the work's launches on the current stream, which is not the default one. Graphs that are
// replayed one after the other may have one `pool` (at::cuda::graph_pool_handle()). Where the work
// fails its exception passes, stream and allocators are out of capture mode, and the pool must not
// be captured into again: torch 2.11's allocator for pinned memory keeps one without graphs as used
// up.
std::unique_ptr<at::cuda::CUDAGraph> capture_graph(at::cuda::MempoolId_t pool,
                                                   const std::function<void()>& work);

}  // namespace diptych
