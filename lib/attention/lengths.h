// How many queries and keys each sample of packed sequences has.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

// Built once per plan (not per step): host values for choosing kernels, device values for them.
// follow() may change the lengths of keys later, so no choice may depend on them.
struct AttentionLengths {
  // Throws c10::Error when sizes differ, a q length is < 1, a k length is < 1 or over capacity, or
  // there are more rows than an int32 counts. All of these are errors of the programmer.
  static AttentionLengths make(std::vector<std::int64_t> q_lengths,
                               std::vector<std::int64_t> k_lengths, std::int64_t capacity,
                               at::Device device);
  std::vector<std::int64_t> q, k;  // [samples]
  std::int64_t total_q = 0, max_q = 0, max_k = 0, capacity = 0;
  Tensor q_device, k_device;  // int32 [samples]
  Tensor cu_q;                // int32 [samples + 1], running sum of q
  Tensor cu_capacity;         // int32 [samples + 1], multiples of capacity
  // Takes over the lengths of keys. The tensors keep their memory. Throws c10::Error when the other
  // has different queries or another capacity.
  void follow(const AttentionLengths& other);
  std::int64_t samples() const { return static_cast<std::int64_t>(q.size()); }
  bool equal_q() const;  // every sample has max_q queries
};

}  // namespace diptych
