// What a piece of work launches on the GPU, seen with the profiler of libtorch (Kineto on CUPTI):
// kernels of any library, and those inside CUDA graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

struct GpuActivity {
  std::string name;  // of a kernel, demangled; "Memcpy DtoD (Device -> Device)", "Memset (Device)"
  bool kernel = false;  // or a copy, or a fill
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t launch = 0;  // the same for all that one call launched: the parts of a graph
  std::string label;         // of the innermost LaunchLabel (lib/ops/launch_label.h); empty: none
};

struct Launches {
  std::int64_t kernels = 0;      // that ran
  std::int64_t copies = 0;       // copies and fills, by no kernel
  std::int64_t calls = 0;        // of the host that launched kernels or graphs
  std::int64_t allocations = 0;  // calls of the host that took device memory or gave it back
  std::int64_t waits = 0;  // and that waited for the device ahead of a scope's last such launch
  // Launches of graphs that ran something else than was captured: what they ran has no labels.
  std::int64_t unlabelled_graphs = 0;
  // Of each time the scope was entered, in order of their start.
  std::vector<std::vector<GpuActivity>> scopes;
};

// Runs `work`, which is slower than without, and records what happens inside of its scopes of this
// name (RECORD_USER_SCOPE, on this thread). The device must be idle at both ends of each. Nothing
// where the profiler sees no kernel: on the CPU, or where CUPTI cannot trace.
std::optional<Launches> record_launches(std::string_view scope, const std::function<void()>& work);

}  // namespace diptych
