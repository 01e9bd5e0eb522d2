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

// Of each replay. They are queued one behind the other: where the device waited for one, the time
// that the host takes to launch it would count.
std::vector<double> replay_milliseconds(at::cuda::CUDAGraph& graph, int replays) {
  std::vector<at::cuda::CUDAEvent> marks;
  marks.emplace_back(cudaEventDefault);
  marks.back().record();
  for (int i = 0; i < replays; ++i) {
    graph.replay();
    marks.emplace_back(cudaEventDefault);
    marks.back().record();
  }
  marks.back().synchronize();
  std::vector<double> times;
  for (std::size_t i = 1; i < marks.size(); ++i)
    times.push_back(static_cast<double>(marks[i - 1].elapsed_time(marks[i])));
  return times;
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
    times = replay_milliseconds(*graph, kWarmUp + repeats);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();  // of the graph's own memory, which went with it
  times.erase(times.begin(), times.begin() + kWarmUp);
  return spread_of(std::move(times)).median / static_cast<double>(rounds * works.size());
}

}  // namespace diptych
