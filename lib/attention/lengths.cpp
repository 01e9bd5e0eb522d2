#include "lib/attention/lengths.h"

#include <algorithm>
#include <limits>

namespace diptych {
namespace {

Tensor device_int32(const std::vector<std::int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(at::kInt).to(device);
}

}  // namespace

AttentionLengths AttentionLengths::make(std::vector<std::int64_t> q_lengths,
                                        std::vector<std::int64_t> k_lengths, std::int64_t capacity,
                                        at::Device device) {
  TORCH_CHECK(!q_lengths.empty() && q_lengths.size() == k_lengths.size(), "[attention] ",
              q_lengths.size(), " query lengths and ", k_lengths.size(), " key lengths");
  AttentionLengths lengths;
  lengths.capacity = capacity;
  std::vector<std::int64_t> cu_q = {0}, cu_capacity = {0};
  for (std::size_t i = 0; i < q_lengths.size(); ++i) {
    const std::int64_t q = q_lengths[i], k = k_lengths[i];
    TORCH_CHECK(q >= 1, "[attention] sample ", i, " has ", q, " queries");
    TORCH_CHECK(k >= 1 && k <= capacity, "[attention] sample ", i, " has ", k,
                " keys in a capacity of ", capacity);
    lengths.total_q += q;
    lengths.max_q = std::max(lengths.max_q, q);
    lengths.max_k = std::max(lengths.max_k, k);
    cu_q.push_back(lengths.total_q);
    cu_capacity.push_back(cu_capacity.back() + capacity);
  }
  TORCH_CHECK(
      std::max(lengths.total_q, cu_capacity.back()) <= std::numeric_limits<std::int32_t>::max(),
      "[attention] ", lengths.total_q, " queries and ", cu_capacity.back(),
      " rows of keys do not fit 32 bits");
  lengths.q_device = device_int32(q_lengths, device);
  lengths.k_device = device_int32(k_lengths, device);
  lengths.cu_q = device_int32(cu_q, device);
  lengths.cu_capacity = device_int32(cu_capacity, device);
  lengths.q = std::move(q_lengths);
  lengths.k = std::move(k_lengths);
  return lengths;
}

void AttentionLengths::follow(const AttentionLengths& other) {
  TORCH_CHECK(q == other.q && capacity == other.capacity,
              "[attention] other queries or another capacity");
  k = other.k;
  max_k = other.max_k;
  if (k_device.defined()) k_device.copy_(other.k_device);
}

bool AttentionLengths::equal_q() const {
  return std::all_of(q.begin(), q.end(), [this](std::int64_t length) { return length == max_q; });
}

}  // namespace diptych
