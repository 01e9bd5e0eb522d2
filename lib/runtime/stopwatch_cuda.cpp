#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/runtime/gpu.h"
#include "lib/runtime/stopwatch.h"

namespace diptych {
namespace {

class StreamStopwatch final : public Stopwatch {
 public:
  explicit StreamStopwatch(at::Device device) : device_(device) {}

  void start() override { mark(started_); }
  void stop() override { mark(stopped_); }
  double seconds() override {
    double milliseconds = 0;
    for (std::size_t i = 0; i < stopped_.size(); ++i) {
      stopped_[i].synchronize();
      milliseconds += static_cast<double>(started_[i].elapsed_time(stopped_[i]));
    }
    return milliseconds / 1e3;
  }

 private:
  void mark(std::vector<at::cuda::CUDAEvent>& marks) const {
    marks.emplace_back(cudaEventDefault);  // one that can be timed
    marks.back().record(c10::cuda::getCurrentCUDAStream(device_.index()));
  }

  at::Device device_;
  std::vector<at::cuda::CUDAEvent> started_, stopped_;
};

}  // namespace

std::unique_ptr<Stopwatch> gpu::make_stopwatch(at::Device device) {
  return std::make_unique<StreamStopwatch>(device);
}

}  // namespace diptych
