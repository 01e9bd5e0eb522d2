// What the attention backends on cuDNN share: tensors of a graph, and plans, which are graphs that
// are ready to run. cudnn-frontend: github.com/NVIDIA/cudnn-frontend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/cudnn/Handle.h>

#include "lib/base/error.h"
#include "lib/tensor/types.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace diptych {

using CudnnTensor = std::shared_ptr<cudnn_frontend::graph::Tensor_attributes>;

// Its dtype is the graph's.
inline CudnnTensor add_tensor(cudnn_frontend::graph::Graph& graph, std::int64_t uid,
                              std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
  return graph.tensor(cudnn_frontend::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim(std::move(sizes))
                          .set_stride(std::move(strides)));
}

// A number for each of `count` samples.
inline CudnnTensor add_numbers(cudnn_frontend::graph::Graph& graph, std::int64_t uid,
                               std::int64_t count, cudnn_frontend::DataType_t dtype) {
  CudnnTensor tensor = add_tensor(graph, uid, {count, 1, 1, 1}, {1, 1, 1, 1});
  tensor->set_data_type(dtype);
  return tensor;
}

struct CudnnPlan {
  cudnn_frontend::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
  std::string failure;  // why there is none, or empty
};

// Of the graph that `describe` makes, for the current device; takes some 40 ms.
template <typename Describe>
std::shared_ptr<CudnnPlan> build_cudnn_plan(const Describe& describe) {
  auto plan = std::make_shared<CudnnPlan>();
  try {  // a graph that no implementation takes is an exception, everything else an error value
    describe(plan->graph);
    cudnn_frontend::error_t status =
        plan->graph.build(at::native::getCudnnHandle(),
                          {cudnn_frontend::HeurMode_t::A, cudnn_frontend::HeurMode_t::FALLBACK});
    if (status.is_good()) status = plan->graph.get_workspace_size(plan->workspace_bytes);
    if (status.is_bad()) plan->failure = status.get_message();
    if (status.is_bad() && plan->failure.empty()) plan->failure = "no reason given";
  } catch (const std::runtime_error& error) {
    plan->failure = error.what();
  }
  std::replace(plan->failure.begin(), plan->failure.end(), '\n', ' ');
  return plan;
}

// On the current stream. Throws InputError where there is no plan, RunError where it fails.
inline void execute_cudnn_plan(CudnnPlan& plan, std::string_view backend,
                               std::unordered_map<std::int64_t, void*> pointers,
                               const at::TensorOptions& options) {
  if (!plan.failure.empty())
    throw InputError("attention backend {}: cuDNN has no plan: {}", backend, plan.failure);
  // Freed when this returns, used when the kernel runs: the caching allocator hands it on only to
  // later work of this stream.
  const Tensor workspace =
      at::empty({std::max<std::int64_t>(plan.workspace_bytes, 16)}, options.dtype(at::kByte));
  cudnn_frontend::error_t status =  // the handle is set to the current stream
      plan.graph.execute(at::native::getCudnnHandle(), pointers, workspace.data_ptr());
  if (status.is_bad()) throw RunError("cuDNN attention failed: {}", status.get_message());
}

}  // namespace diptych
