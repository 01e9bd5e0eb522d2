// What a piece of work launches on the GPU, counted with the profiler of libtorch (Kineto on
// CUPTI): kernels of any library are seen, and those inside CUDA graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace diptych {

struct Launches {
  std::int64_t scopes = 0;   // how often the scope was entered
  std::int64_t kernels = 0;  // that ran
  std::int64_t copies = 0;   // copies and fills, by no kernel
  std::int64_t calls = 0;    // of the host that launched kernels or graphs
};

// Runs `work`, which is slower than without, and counts what happens inside of its scopes of this
// name (RECORD_USER_SCOPE, on this thread). The device must be idle at both ends of each. Nothing
// where the profiler sees no kernel: on the CPU, or where CUPTI cannot trace.
std::optional<Launches> count_launches(std::string_view scope, const std::function<void()>& work);

}  // namespace diptych
