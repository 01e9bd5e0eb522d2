#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/base/statistics.h"
#include "lib/runtime/capture.h"
#include "lib/runtime/launch_times.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

double replay_milliseconds(at::cuda::CUDAGraph& graph) {
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  begin.record();
  graph.replay();
  end.record();
  end.synchronize();
  return static_cast<double>(begin.elapsed_time(end));
}

}  // namespace

double launch_milliseconds(std::span<const std::function<void()>> works, int repeats,
                           c10::Device device) {
  constexpr std::size_t kLeastLaunches = 16;
  constexpr int kWarmUp = 2;
  synchronize(device);  // what the works read was written on other streams
  const c10::cuda::CUDAStream stream = capture_stream(device.index());
  const c10::cuda::CUDAStreamGuard guard(stream);
  for (const auto& work : works) work();  // makes the handles and plans that no graph may hold
  stream.synchronize();
  const std::size_t rounds = (kLeastLaunches + works.size() - 1) / works.size();
  std::vector<double> times;
  {
    const auto graph = capture_graph(at::cuda::graph_pool_handle(), [&] {
      for (std::size_t round = 0; round < rounds; ++round) {
        for (const auto& work : works) work();
      }
    });
    for (int i = -kWarmUp; i < repeats; ++i) {
      const double time = replay_milliseconds(*graph);
      if (i >= 0) times.push_back(time);
    }
  }
  c10::cuda::CUDACachingAllocator::emptyCache();  // of the graph's own memory, which went with it
  return spread_of(std::move(times)).median / static_cast<double>(rounds * works.size());
}

}  // namespace diptych
