#include "lib/runtime/ranks.h"

#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "lib/attention/attention.h"
#include "lib/runtime/metered_ranks.h"
#include "lib/runtime/row_share.h"
#include "lib/runtime/shared_branches.h"
#include "tests/support/rank_threads.h"

namespace diptych {
namespace {

using test::as_ranks;

Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

}  // namespace

TEST_CASE("every rank of a group gets the parts of all, in their order") {
  std::vector<Tensor> gathered(4), swapped(4);
  as_ranks({.cfg = 2, .ulysses = 2}, 4, [&](Ranks& ranks) {
    const auto rank = static_cast<std::int64_t>(ranks.rank());
    gathered[ranks.rank()] = ranks.all_gather(RankAxis::cfg, at::full({2}, rank, at::kInt));
    const Tensor parts = at::tensor({10 * rank, 10 * rank + 1}, at::kLong).view({2, 1});
    swapped[ranks.rank()] = ranks.all_to_all(RankAxis::ulysses, parts);
    CHECK(ranks.leads() == (rank == 0));
  });
  // Rank = 2 * place among the branches + place among the rows.
  for (const std::size_t rank : {0, 2})
    CHECK(gathered[rank].equal(at::tensor({0, 0, 2, 2}, at::kInt).view({2, 2})));
  for (const std::size_t rank : {1, 3})
    CHECK(gathered[rank].equal(at::tensor({1, 1, 3, 3}, at::kInt).view({2, 2})));
  CHECK(swapped[0].equal(at::tensor({0, 10}, at::kLong).view({2, 1})));
  CHECK(swapped[1].equal(at::tensor({1, 11}, at::kLong).view({2, 1})));
  CHECK(swapped[3].equal(at::tensor({21, 31}, at::kLong).view({2, 1})));
}

TEST_CASE("neighbours exchange their edges") {
  struct Case {
    ParallelDegrees degrees;
    std::size_t size;
    RankAxis axis;
  };
  for (const Case& each : {Case{{.ring = 3}, 3, RankAxis::ring}, Case{{.cfg = 2}, 4, RankAxis::cfg},
                           Case{{.cfg = 2}, 2, RankAxis::request},
                           Case{{.cfg = 2, .ring = 2}, 4, RankAxis::request}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      std::vector<Tensor> got(each.size);
      as_ranks(each.degrees, each.size, [&](Ranks& ranks) {
        const auto rank = static_cast<double>(ranks.rank());
        const Tensor edges = at::tensor({10 * rank, 10 * rank + 1}).view({2, 1, 1}).to(dtype);
        got[ranks.rank()] = ranks.exchange(each.axis, edges.expand({2, 3, 5}).contiguous());
      });
      const std::size_t shared = each.degrees.ranks_per_request();
      for (std::size_t rank = 0; rank < each.size; ++rank) {
        const auto number = static_cast<double>(rank);
        const std::size_t place = rank % shared;
        const double above = place == 0 ? 0 : 10 * (number - 1) + 1;
        const double below = place + 1 == shared ? 0 : 10 * (number + 1);
        const Tensor expected = at::tensor({above, below}).view({2, 1, 1}).to(dtype);
        CHECK(got[rank].equal(expected.expand({2, 3, 5})));
      }
    }
  }
}

TEST_CASE("ranks divide a request anew, and as before") {
  std::vector<Tensor> pairs(4), all(4), again(4);
  as_ranks({.cfg = 2, .ring = 2}, 4, [&](Ranks& ranks) {
    const Tensor own = at::full({1}, static_cast<std::int64_t>(ranks.rank()), at::kInt);
    MeteredRanks metered(std::shared_ptr<Ranks>(&ranks, [](Ranks*) {}));
    pairs[ranks.rank()] = metered.all_gather(RankAxis::ring, own);
    metered.regroup({.ulysses = 4});
    CHECK(metered.comm().cfg.size == 1);
    CHECK(ranks.comm().ulysses == RankGroup{4, ranks.rank()});
    all[ranks.rank()] = metered.all_gather(RankAxis::ulysses, own);
    metered.regroup({.cfg = 2, .ring = 2});
    again[ranks.rank()] = metered.all_gather(RankAxis::ring, own);
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(pairs[rank].equal(
        at::tensor(rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, at::kInt).view({2, 1})));
    CHECK(all[rank].equal(at::arange(4, at::kInt).view({4, 1})));
    CHECK(again[rank].equal(pairs[rank]));
  }
}

TEST_CASE("the ranks that share a request are one group, in their order") {
  as_ranks({.cfg = 2, .ulysses = 2}, 8, [](Ranks& ranks) {
    const auto rank = static_cast<std::int64_t>(ranks.rank());
    const Tensor all = ranks.all_gather(RankAxis::request, at::full({1}, rank, at::kLong));
    const std::int64_t first = rank < 4 ? 0 : 4;
    CHECK(all.flatten().equal(at::arange(first, first + 4)));
  });
}

TEST_CASE("branches are computed once where they divide, and known to all") {
  for (const std::int64_t count : {1, 2, 3}) {
    CAPTURE(count);
    std::vector<std::vector<std::int64_t>> computed(2);
    as_ranks({.cfg = 2}, 2, [&](Ranks& ranks) {
      const std::vector<Tensor> all = share_branches(ranks, count, [&](std::int64_t branch) {
        computed[ranks.rank()].push_back(branch);
        return at::full({3}, static_cast<double>(branch), at::kFloat);
      });
      CHECK(std::ssize(all) == count);
      for (std::int64_t i = 0; i < std::ssize(all); ++i)
        CHECK(all[static_cast<std::size_t>(i)].equal(
            at::full({3}, static_cast<double>(i), at::kFloat)));
    });
    CHECK(computed[0] ==
          (count == 3 ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{0}));
    CHECK(computed[1] == (count == 3   ? std::vector<std::int64_t>{1, 2}
                          : count == 2 ? std::vector<std::int64_t>{1}
                                       : std::vector<std::int64_t>{0}));
  }
}

TEST_CASE("a text is that of rank 0, or of the leading one of those that share a request") {
  as_ranks({.cfg = 2}, 4, [](Ranks& ranks) {
    const auto own = [&] { return std::to_string(40 + ranks.rank()); };
    CHECK(ranks.common_text("one", own) == "40");
    CHECK(ranks.group_text("one", own) == (ranks.rank() < 2 ? "40" : "42"));
  });
}

TEST_CASE("a meter counts what a rank sends, while it is asked to") {
  as_ranks({.cfg = 1, .ulysses = 3}, 3, [](Ranks& ranks) {
    MeteredRanks metered(std::shared_ptr<Ranks>(std::shared_ptr<void>(), &ranks));
    CHECK(metered.rank() == ranks.rank());
    CHECK(metered.comm().ulysses == ranks.comm().ulysses);
    const Tensor part = at::ones({5}, at::kFloat);
    const auto all = [&] { return metered.all_gather(RankAxis::ulysses, part); };
    CHECK(all().equal(at::ones({3, 5})));
    CHECK(metered.stop().empty());  // was not asked to
    metered.start();
    CHECK(all().equal(at::ones({3, 5})));
    CHECK(metered.all_to_all(RankAxis::ulysses, at::ones({3, 2}, at::kDouble))
              .equal(at::ones({3, 2}, at::kDouble)));
    metered.exchange(RankAxis::request, at::ones({2, 7}, at::kHalf));
    const std::map<RankAxis, ExchangeCost> costs = metered.stop();
    REQUIRE(costs.size() == 2);
    const ExchangeCost& rows = costs.at(RankAxis::ulysses);
    CHECK(rows.count == 2);
    CHECK(rows.sent_bytes == 2 * 5 * 4 + 2 * 2 * 8);  // to two others
    CHECK(rows.seconds > 0);
    const ExchangeCost& edges = costs.at(RankAxis::request);
    CHECK(edges.count == 1);
    CHECK(edges.sent_bytes == (ranks.rank() == 1 ? 2 : 1) * 7 * 2);  // to the neighbours
    metered.start();
    all();
    CHECK(metered.stop().at(RankAxis::ulysses).count == 1);
    all();
    CHECK(metered.stop().empty());
  });
}

TEST_CASE("all ranks end with the greatest of their exit codes") {
  as_ranks(
      {.cfg = 2}, 2, [](Ranks& ranks) { CHECK(ranks.finish(ranks.rank() == 0 ? 0 : 4) == 4); },
      false);
}

TEST_CASE("only rank 0 makes the common text") {
  as_ranks({.ulysses = 3}, 3, [](Ranks& ranks) {
    CHECK(ranks.common_text("seed", [&] { return std::to_string(40 + ranks.rank()); }) == "40");
  });
}

TEST_CASE("rows and heads that are divided attend as they do whole") {
  const auto attention = make_attention("math", at::kCPU);
  constexpr std::int64_t kSamples = 2, kHeadDim = 8;
  constexpr double kScale = 0.3;
  struct Case {
    std::size_t ulysses, ring;
    std::int64_t rows, heads;
  };
  for (const auto& [ulysses, ring, rows, heads] :
       {Case{2, 1, 10, 4}, Case{2, 1, 7, 3}, Case{4, 1, 9, 6}, Case{3, 1, 4, 2}, Case{1, 2, 10, 4},
        Case{1, 3, 7, 3}, Case{2, 2, 9, 3}}) {
    CAPTURE(ulysses);
    CAPTURE(ring);
    CAPTURE(rows);
    CAPTURE(heads);
    const Tensor qkv = random({kSamples, rows, 3, heads, kHeadDim}, 7);
    const std::vector<std::int64_t> whole(kSamples, rows);
    const AttentionLengths lengths = AttentionLengths::make(whole, whole, rows, at::kCPU);
    const Tensor expected = attention
                                ->forward({qkv.select(2, 0).flatten(0, 1), qkv.select(2, 1),
                                           qkv.select(2, 2), &lengths, false, kScale})
                                .view({kSamples, rows, heads * kHeadDim});
    as_ranks({.ulysses = ulysses, .ring = ring}, ulysses * ring, [&](Ranks& ranks) {
      const RowShare share = {&ranks};
      const AttentionLengths of_all = share.lengths(kSamples, rows, at::kCPU);
      const Tensor own = shared_attention(share, share.cut(qkv, 1), of_all, kScale, *attention);
      const Tensor all = share.join(own.view({kSamples, share.own(rows), heads * kHeadDim}), rows);
      CHECK(at::allclose(all, expected, 1e-5, 1e-6));
    });
  }
}

}  // namespace diptych
