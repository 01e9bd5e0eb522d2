#include "lib/session/kept_steps.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

using Painters = KeptSteps<int>;  // numbers stand for painters

Painters make(std::vector<std::pair<int, std::int64_t>> kept) {
  Painters painters;
  for (const auto& [painter, bytes] : kept) painters.add(std::make_unique<int>(painter), bytes);
  return painters;
}

Painters::Matches is(int wanted) {
  return [wanted](int painter) { return painter == wanted; };
}

// What is left, the latest first.
std::vector<int> drained(Painters& painters) {
  std::vector<int> all;
  while (const auto painter = painters.take([](int) { return true; })) all.push_back(*painter);
  CHECK(painters.empty());
  return all;
}

TEST_CASE("the latest painter that matches is taken, and the oldest of five goes") {
  Painters painters = make({{1, 10}, {2, 10}, {3, 10}});
  CHECK(*painters.take(is(2)) == 2);
  CHECK(painters.take(is(2)) == nullptr);
  painters = make({{1, 10}, {2, 10}, {3, 10}, {4, 10}, {5, 10}});
  CHECK(*painters.take([](int painter) { return painter < 5; }) == 4);
  CHECK(drained(painters) == std::vector<int>{5, 3, 2});
}

TEST_CASE("painters go, the oldest first, until the others have room") {
  const auto left = [](std::int64_t room, int matching, std::int64_t own = 30) {
    Painters painters = make({{1, 10}, {2, 20}, {3, 30}});
    painters.make_room(room, is(matching), own);
    return drained(painters);
  };
  CHECK(left(60, 0) == std::vector<int>{3, 2, 1});
  CHECK(left(59, 0) == std::vector<int>{3, 2});
  CHECK(left(49, 0) == std::vector<int>{3});
  CHECK(left(29, 0).empty());
  CHECK(left(30, 3) == std::vector<int>{3, 2, 1});  // what matches does not count
  CHECK(left(0, 1) == std::vector<int>{1});
  CHECK(left(9, 3, 20).empty());  // but for what it has more
  CHECK(left(10, 3, 20) == std::vector<int>{3});
  CHECK(left(-1, 3).empty());
}

}  // namespace
}  // namespace diptych
