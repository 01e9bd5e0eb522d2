#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/ops/launch_label.h"
#include "lib/runtime/capture.h"

namespace diptych {
namespace {

// What the current stream is captured into, and how far that is.
struct CapturedNodes {
  cudaGraph_t graph = nullptr;
  std::size_t count = 0;
};

// Nothing where the stream is not captured, or where the work has made the capture invalid.
std::optional<CapturedNodes> captured_nodes() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  CapturedNodes nodes;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const bool known = cudaStreamGetCaptureInfo(stream, &status, &id, &nodes.graph) == cudaSuccess &&
                     status == cudaStreamCaptureStatusActive &&
                     cudaGraphGetNodes(nodes.graph, nullptr, &nodes.count) == cudaSuccess;
  if (known) return nodes;
  (void)cudaGetLastError();  // of the questions above; the work meets its own
  return std::nullopt;
}

// Whether a profile shows one activity for each node.
bool only_activities(CapturedNodes captured) {
  std::vector<cudaGraphNode_t> nodes(captured.count);
  if (captured.count == 0) return true;
  C10_CUDA_CHECK(cudaGraphGetNodes(captured.graph, nodes.data(), &captured.count));
  return std::ranges::all_of(nodes, [](cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
           type == cudaGraphNodeTypeMemset;
  });
}

// Listens to the labels of this thread while it lives; one at a time. Callbacks of RecordFunction
// are plain functions, so they find the listener through the thread.
class LabelListener {
 public:
  LabelListener() {
    TORCH_CHECK(current() == nullptr, "[graph_labels] a capture within a capture");
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::USER_SCOPE}));
  }
  LabelListener(const LabelListener&) = delete;
  LabelListener& operator=(const LabelListener&) = delete;
  ~LabelListener() {
    at::removeCallback(handle_);
    current() = nullptr;
  }

  GraphLabels finish() {
    const std::optional<CapturedNodes> nodes = captured_nodes();
    if (lost_ || !nodes || !only_activities(*nodes)) return {};
    return recorder_.finish(nodes->count);
  }

 private:
  static LabelListener*& current() {
    static thread_local LabelListener* listener = nullptr;
    return listener;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& scope) {
    if (const auto label = LaunchLabel::read(scope.name()))
      current()->recorder_.begin(*label, current()->nodes());
    return nullptr;
  }
  static void end(const at::RecordFunction& scope, at::ObserverContext* /*context*/) {
    if (LaunchLabel::read(scope.name())) current()->recorder_.end(current()->nodes());
  }

  std::size_t nodes() {
    const std::optional<CapturedNodes> nodes = captured_nodes();
    if (!nodes) lost_ = true;
    if (nodes) counted_ = nodes->count;
    return counted_;
  }

  at::CallbackHandle handle_ = 0;
  GraphLabelRecorder recorder_;
  std::size_t counted_ = 0;
  bool lost_ = false;  // some nodes could not be counted
};

}  // namespace

GraphLabels label_nodes(const std::function<void()>& work) {
  LabelListener listener;
  work();
  return listener.finish();
}

}  // namespace diptych
