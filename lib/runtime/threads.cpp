#include "lib/runtime/threads.h"

#include <algorithm>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "lib/base/error.h"

namespace diptych {

void require_threads() {
  const int wanted = at::get_num_threads();
  std::latch all_tried(1);  // they live at once, as libgomp's will
  std::vector<std::jthread> threads;
  std::error_code problem;
  try {
    while (static_cast<int>(threads.size()) + 1 < wanted)
      threads.emplace_back([&] { all_tried.wait(); });
  } catch (const std::system_error& error) {
    problem = error.code();
  }
  all_tried.count_down();
  const std::size_t started = threads.size() + 1;
  threads.clear();
  if (problem) {
    throw RunError("{} threads: the system starts no more than {} ({}); fewer: OMP_NUM_THREADS={}",
                   wanted, started, problem.message(), std::max<std::size_t>(1, started / 2));
  }
}

void set_up_vector_functions() {
  at::zeros({16}, at::kFloat).exp_();  // by one thread
}

}  // namespace diptych
