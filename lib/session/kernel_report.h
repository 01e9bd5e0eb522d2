// Where the time of a picture's denoise steps goes: its GPU kernels in families, held against what
// the device can do, and the whole held against its products and attention alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/statistics.h"
#include "lib/runtime/launches.h"
#include "lib/runtime/peaks.h"
#include "lib/session/capabilities.h"

namespace diptych {

struct KernelRow {     // means of a step
  std::string family;  // the label of its launches, or a kernel's name without parameters
  double launches = 0, seconds = 0;
  double flops = 0, bytes = 0;  // 0: not known
  double share_of_peak = 0;     // of products or of copying, the larger one; 0: likewise
};

struct KernelTable {
  double seconds = 0;  // of a step, from the first kernel of a picture to the end of its last
  double idle_in_graphs = 0;  // of these without any kernel: behind one of the same CUDA graph
  double idle_between = 0;    // behind one that was launched apart
  std::int64_t unlabelled_graphs = 0;  // launches, in all: their kernels are listed by name
  DevicePeaks peaks;
  std::vector<KernelRow> rows;  // the longest first
};

// `launched`: of pictures of `steps` steps in all, one a scope. `kinds`: the steps of a picture.
// Their work is matched to what ran by the name of the family.
KernelTable make_kernel_table(const Launches& launched, std::int64_t steps,
                              std::span<const StepKindWork> kinds, const DevicePeaks& peaks);
std::string kernel_table_text(const KernelTable& table, const std::string& dtype);
nlohmann::ordered_json kernel_table_json(const KernelTable& table);

nlohmann::ordered_json spread_json(const Spread& spread);

// A run of the request, and its floor, measured behind it.
struct FloorPair {
  double denoise_seconds = 0;  // of a picture
  std::vector<StepKindWork> kinds;
  double floor_seconds() const;  // of a picture
};
std::string floor_text(std::span<const FloorPair> pairs);  // at least one
nlohmann::ordered_json floor_json(std::span<const FloorPair> pairs);

}  // namespace diptych
