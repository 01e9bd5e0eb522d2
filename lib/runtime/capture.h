// One CUDA graph of launched work, and the labels of its parts. Only in builds with CUDA.
#pragma once

#include <functional>
#include <memory>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/runtime/launch_labels.h"

namespace diptych {

// Where work is captured and graphs are replayed, and nothing else is: one stream for each device,
// since torch keeps the cuBLAS workspace (32 MiB on Hopper) of every stream that it has seen for as
// long as it runs.
c10::cuda::CUDAStream capture_stream(c10::DeviceIndex device);

// Captures the work's launches on the current stream, which is not the default one. Graphs that are
// replayed one after the other may have one `pool` (at::cuda::graph_pool_handle()). Where the work
// fails its exception passes, stream and allocators are out of capture mode, and the pool must not
// be captured into again: torch 2.11's allocator for pinned memory keeps one without graphs as used
// up.
std::unique_ptr<at::cuda::CUDAGraph> capture_graph(at::cuda::MempoolId_t pool,
                                                   const std::function<void()>& work);

// Does `work` on this thread while capture_graph() captures it. -> the labels of the graph's nodes,
// or none at all where it has nodes that a profile does not show.
GraphLabels label_nodes(const std::function<void()>& work);

}  // namespace diptych
