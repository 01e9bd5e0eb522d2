// Ranks on threads of one process: each has its connection, and Gloo does not know the difference.
// What c10d keeps once a process is its list of past exchanges (FlightRecorder), which threads
// corrupt for each other: it is off here.
#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "lib/runtime/ranks.h"
#include "tests/support/free_port.h"

namespace diptych::test {

// Runs `work` as each of so many ranks at once; fails where one of them throws. `finish`: whether
// `work` leaves that to this function.
inline void as_ranks(const ParallelDegrees& degrees, std::size_t size,
                     const std::function<void(Ranks& ranks)>& work, bool finish = true) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // c10d reads it when the first group opens
  const std::uint16_t port = free_port();
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::InferenceMode inference;
      try {
        const std::shared_ptr<Ranks> ranks =
            Ranks::meet({rank, size, "127.0.0.1", port}, degrees, at::kCPU, at::kCPU);
        work(*ranks);
        if (finish) ranks->finish(0);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace diptych::test
