// What kernels have to do, counted from the shapes they are given.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace diptych {

struct KernelWork {
  std::string family;  // of kernels that do the same: "qkv_proj gen"
  double flops = 0;    // of products, a multiplication and an addition counted as two; 0: of none
  double bytes = 0;    // every tensor once for each call: read, or written
  bool fp8 = false;    // the products are of e4m3 values
  bool operator==(const KernelWork&) const = default;
};

// sum += times * work, family by family; those that are new come behind the others.
inline void add_work(std::vector<KernelWork>& sum, double times, std::span<const KernelWork> work) {
  for (const KernelWork& each : work) {
    auto known = std::ranges::find(sum, each.family, &KernelWork::family);
    if (known == sum.end()) known = sum.insert(sum.end(), {each.family, 0, 0, each.fp8});
    known->flops += times * each.flops;
    known->bytes += times * each.bytes;
  }
}

}  // namespace diptych
