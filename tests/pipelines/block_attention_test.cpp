// Attention that reads lengths on the device, held against torch's own on the CPU.
#include "lib/pipelines/drafting/block_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>

namespace diptych {
namespace {

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 16, kCapacity = 64;
constexpr double kScale = 0.25;

// A layer of a cache with a row more than there are texts.
struct Rows {
  Tensor q, k, v;
  AttentionLengths lengths;
};

Rows make_rows(const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto samples = static_cast<std::int64_t>(keys.size());
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, generator); };
  Rows rows;
  rows.lengths = AttentionLengths::make(queries, keys, kCapacity, at::kCPU);
  rows.q = random({rows.lengths.total_q, kHeads, kHeadDim});
  rows.k = random({samples + 1, kCapacity, kKeyHeads, kHeadDim}).narrow(0, 0, samples);
  rows.v = random({samples + 1, kCapacity, kKeyHeads, kHeadDim}).narrow(0, 0, samples);
  return rows;
}

AttentionCall call_of(const Rows& rows, bool causal) {
  return {rows.q, rows.k, rows.v, &rows.lengths, causal, kScale};
}

}  // namespace

TEST_CASE("block attention: masked and unmasked rows see the keys that torch shows them") {
  const auto sdpa = make_attention("sdpa", at::kCPU);
  const BlockAttention block({at::kCPU, at::kFloat, kHeadDim}, KernelPolicy::automatic);
  struct Case {
    std::vector<std::int64_t> queries, keys;
  };
  for (const Case& c :
       {Case{{1}, {1}}, Case{{1, 1, 1}, {9, 64, 1}}, Case{{16}, {16}}, Case{{5, 5}, {64, 21}}}) {
    const Rows rows = make_rows(c.queries, c.keys);
    for (const bool causal : {false, true}) {
      const Tensor expected = sdpa->forward(call_of(rows, causal));
      const Tensor found = block.forward(call_of(rows, causal));
      CHECK(found.sizes() == rows.q.sizes());
      CHECK((found - expected).abs().max().item<float>() < 1e-5F);
    }
  }
}

TEST_CASE("block attention: lengths that change on the device alone are followed") {
  const auto sdpa = make_attention("sdpa", at::kCPU);
  const BlockAttention block({at::kCPU, at::kFloat, kHeadDim}, KernelPolicy::automatic);
  Rows rows = make_rows({4, 4}, {10, 20});
  const Rows longer = make_rows({4, 4}, {33, 61});
  rows.lengths.k_device.copy_(longer.lengths.k_device);  // as a captured forward is replayed
  for (const bool causal : {false, true}) {
    const Tensor expected = sdpa->forward(call_of(longer, causal));
    CHECK((block.forward(call_of(rows, causal)) - expected).abs().max().item<float>() < 1e-5F);
  }
}

TEST_CASE("block attention: a CPU has none, and says so") {
  Runtime runtime;
  runtime.read_attention = StageBackends(make_attention("auto", at::kCPU));
  QwenConfig config;
  CHECK(why_not_on_device(config, nullptr, runtime, 1) == "the CPU has no graphs");
}

}  // namespace diptych
