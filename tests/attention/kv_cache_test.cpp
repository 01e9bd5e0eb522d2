#include "lib/attention/kv_cache.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

constexpr KvShape kShape = {2, 3, 4};  // layers, kv_heads, head_dim

KvCache make_cache(std::int64_t rows, std::int64_t capacity) {
  return KvCache(kShape, rows, capacity, at::TensorOptions(at::kFloat));
}

}  // namespace

TEST_CASE("capacities come in steps of 64 rows") {
  CHECK(KvCache::rounded_capacity(1) == 64);
  CHECK(KvCache::rounded_capacity(64) == 64);
  CHECK(KvCache::rounded_capacity(65) == 128);
  CHECK(KvCache::rounded_capacity(4112) == 4160);
}

TEST_CASE("kv cache: starts empty, and its layers are views of one buffer") {
  const KvCache cache = make_cache(2, 5);
  CHECK(cache.rows() == 2);
  CHECK(cache.capacity() == 5);
  CHECK(cache.length(0) == 0);
  CHECK(cache.keys(1).sizes() == at::IntArrayRef({2, 5, 3, 4}));
  cache.keys(1).fill_(7);
  CHECK(cache.keys(1).sum().item<float>() == 7 * 2 * 5 * 3 * 4);
  CHECK(cache.keys(0).sum().item<float>() == 0);
  CHECK(cache.values(1).sum().item<float>() == 0);
}

TEST_CASE("kv cache: lengths grow to the capacity and no further") {
  KvCache cache = make_cache(2, 5);
  cache.advance(1, 3);
  cache.advance(1, 2);
  CHECK(cache.length(0) == 0);
  CHECK(cache.length(1) == 5);
  CHECK_THROWS_AS(cache.advance(1, 1), c10::Error);
  CHECK(cache.length(1) == 5);
  cache.truncate(1, 2);
  CHECK(cache.length(1) == 2);
  CHECK_THROWS_AS(cache.truncate(1, -1), c10::Error);
  CHECK_THROWS_AS(cache.truncate(1, 6), c10::Error);
  CHECK_THROWS_AS(cache.truncate(2, 0), std::out_of_range);
  CHECK_THROWS_AS(make_cache(0, 5), c10::Error);
  CHECK_THROWS_AS(make_cache(1, 0), c10::Error);
}

TEST_CASE("kv cache: a row copies the front of another cache's row, in every layer") {
  KvCache from = make_cache(2, 5);
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    const auto base = static_cast<double>(layer * 1000);
    from.keys(layer).copy_(at::arange(120).view({2, 5, 3, 4}) + base);
    from.values(layer).copy_(at::arange(120).view({2, 5, 3, 4}) * -1 - base);
  }
  from.advance(1, 4);
  KvCache to = make_cache(3, 9);
  to.advance(2, 9);
  to.copy_row(2, from, 1, 3);
  CHECK(to.length(2) == 3);
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    CHECK(at::equal(to.keys(layer)[2].narrow(0, 0, 3), from.keys(layer)[1].narrow(0, 0, 3)));
    CHECK(at::equal(to.values(layer)[2].narrow(0, 0, 3), from.values(layer)[1].narrow(0, 0, 3)));
    CHECK(to.keys(layer)[2].narrow(0, 3, 6).abs().max().item<float>() == 0);
    CHECK(to.keys(layer).narrow(0, 0, 2).abs().max().item<float>() == 0);
  }
  to.copy_row(0, from, 0, 0);
  CHECK(to.length(0) == 0);
  CHECK_THROWS_AS(to.copy_row(0, from, 1, 5), c10::Error);  // it holds 4
  KvCache small = make_cache(1, 2);
  CHECK_THROWS_AS(small.copy_row(0, from, 1, 3), c10::Error);  // room for 2
}

}  // namespace diptych
