// The groups of a rank.
#include "lib/runtime/comm.h"

#include <set>
#include <tuple>

#include <c10/util/Exception.h>

#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

TEST_CASE("one rank is alone in every group") {
  const Comm comm = Comm::of_rank(0, 1, {});
  for (const RankGroup& group : {comm.data, comm.cfg, comm.ulysses, comm.ring, comm.request})
    CHECK((group == RankGroup{1, 0}));
}

TEST_CASE("ranks that share nothing are a data group each") {
  for (const std::size_t world : {2, 8}) {
    for (std::size_t rank = 0; rank < world; ++rank) {
      const Comm comm = Comm::of_rank(rank, world, {});
      CHECK((comm.data == RankGroup{world, rank}));
      CHECK((comm.cfg == RankGroup{1, 0}));
    }
  }
}

TEST_CASE("two ranks share one request") {
  CHECK((Comm::of_rank(1, 2, {.cfg = 2}).cfg == RankGroup{2, 1}));
  CHECK((Comm::of_rank(1, 2, {.ulysses = 2}).ulysses == RankGroup{2, 1}));
  CHECK((Comm::of_rank(1, 2, {.ring = 2}).ring == RankGroup{2, 1}));
  CHECK((Comm::of_rank(1, 2, {.ring = 2}).data == RankGroup{1, 0}));
}

TEST_CASE("of eight ranks, neighbours exchange heads, then keys, then branches") {
  const ParallelDegrees all = {.cfg = 2, .ulysses = 2, .ring = 2};
  const Comm five = Comm::of_rank(5, 8, all);
  CHECK((five.data == RankGroup{1, 0}));
  CHECK((five.cfg == RankGroup{2, 1}));
  CHECK((five.ring == RankGroup{2, 0}));
  CHECK((five.ulysses == RankGroup{2, 1}));
  CHECK((five.request == RankGroup{8, 5}));
  const Comm six = Comm::of_rank(6, 8, {.cfg = 1, .ulysses = 2, .ring = 1});
  CHECK((six.data == RankGroup{4, 3}));
  CHECK((six.ulysses == RankGroup{2, 0}));
  CHECK((six.request == RankGroup{2, 0}));
}

TEST_CASE("every rank has a place of its own") {
  for (const ParallelDegrees& degrees :
       {ParallelDegrees{}, {.cfg = 2}, {.ulysses = 4}, {.cfg = 2, .ulysses = 2, .ring = 2}}) {
    std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> places;
    for (std::size_t rank = 0; rank < 8; ++rank) {
      const Comm c = Comm::of_rank(rank, 8, degrees);
      CHECK(c.data.index == rank / degrees.ranks_per_request());  // as list items are dealt out
      CHECK(c.data.size * degrees.ranks_per_request() == 8);
      places.insert({c.data.index, c.cfg.index, c.ulysses.index, c.ring.index});
    }
    CHECK(places.size() == 8);
  }
}

TEST_CASE("ranks that cannot be divided are refused") {
  CHECK(message_of([] { Comm::of_rank(0, 8, {.cfg = 3}); }) ==
        "found 8 rank(s), expected a multiple of 3 (cfg 3, ulysses 1, ring 1)");
  CHECK(message_of([] { Comm::of_rank(0, 1, {.ulysses = 2}); }) ==
        "found 1 rank(s), expected a multiple of 2 (cfg 1, ulysses 2, ring 1)");
  CHECK_THROWS_AS(Comm::of_rank(2, 2, {}), c10::Error);
  CHECK_THROWS_AS(Comm::of_rank(0, 2, {.ring = 0}), c10::Error);
}

}  // namespace
}  // namespace diptych
