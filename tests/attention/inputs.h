// Attention calls for tests, and what they should give, in double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/attention/attention.h"

namespace diptych::attention_cases {

struct Case {
  std::string name;
  std::int64_t heads, kv_heads, head_dim;
  std::vector<std::int64_t> q, k;  // lengths
  std::int64_t capacity;
};

struct Inputs {
  Tensor q, k, v;  // as in AttentionCall
  AttentionLengths lengths;
  AttentionCall call(bool causal) const;
  Inputs to(at::Device device, at::ScalarType dtype) const;
  // The same values as slices of larger buffers: q of a fused qkv, k and v of a cache with more
  // layers, rows and capacity.
  Inputs sliced() const;
};

// Normal values, float32 on the CPU, the same for the same case and seed; rows of k and v behind a
// sample's keys hold `behind`.
Inputs make_inputs(const Case& shape, double behind, std::uint64_t seed = 1);
// [total_q, heads, head_dim], double, by loops over float32 CPU inputs.
Tensor reference(const Inputs& inputs, bool causal);

double relative_max(const Tensor& got, const Tensor& wanted);   // max |difference| / max |wanted|
double relative_norm(const Tensor& got, const Tensor& wanted);  // |difference| / |wanted|, 2-norms

}  // namespace diptych::attention_cases
