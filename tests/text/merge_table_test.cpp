#include "lib/text/merge_table.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

using namespace diptych;

namespace {

using Ids = std::vector<std::int64_t>;

struct Rule {
  std::int64_t left, right, merged;
};

// The definition, as slowly as it reads.
Ids merge_by_rounds(Ids ids, const std::vector<Rule>& rules) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> ranks;
  for (std::size_t i = 0; i < rules.size(); ++i) ranks[{rules[i].left, rules[i].right}] = i;
  while (true) {
    std::size_t lowest = rules.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end()) lowest = std::min(lowest, found->second);
    }
    if (lowest == rules.size()) return ids;
    const Rule& rule = rules[lowest];
    Ids merged;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool here = i + 1 < ids.size() && ids[i] == rule.left && ids[i + 1] == rule.right;
      merged.push_back(here ? rule.merged : ids[i]);
      i += here ? 1 : 0;
    }
    ids = std::move(merged);
  }
}

Ids merge(Ids ids, const std::vector<Rule>& rules) {
  MergeTable table;
  for (const Rule& rule : rules) table.add(rule.left, rule.right, rule.merged);
  table.apply(ids);
  return ids;
}

}  // namespace

TEST_CASE("merges by rank, left to right") {
  CHECK(merge({}, {{1, 1, 2}}) == Ids{});
  CHECK(merge({1}, {{1, 1, 2}}) == Ids{1});
  CHECK(merge({1, 1, 1}, {{1, 1, 2}}) == Ids{2, 1});
  CHECK(merge({1, 1, 1, 1, 1}, {{1, 1, 2}, {2, 2, 3}}) == Ids{3, 1});
  CHECK(merge({1, 2, 3}, {{2, 3, 4}, {1, 2, 5}}) == Ids{1, 4});
  CHECK(merge({1, 2, 3}, {{1, 2, 5}, {2, 3, 4}}) == Ids{5, 3});
}

TEST_CASE("a round ends before the pairs it makes are considered") {
  // 12 -> 5 makes (5, 1), which ranks lower; it must not take the 1 of the second (1, 2).
  CHECK(merge({1, 2, 1, 2}, {{5, 1, 6}, {1, 2, 5}}) == Ids{5, 5});
}

TEST_CASE("a pair given twice has its later rank") {
  CHECK(merge({1, 2, 3}, {{1, 2, 5}, {2, 3, 4}, {1, 2, 5}}) == Ids{1, 4});
}

TEST_CASE("equals the definition on random words and rules") {
  std::mt19937 random(20240131);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::size_t merged = 0;
  for (int round = 0; round < 3000; ++round) {
    // Rules over strings of a few letters, so that an id stands for one string, in random order.
    std::vector<std::string> names = {"a", "b", "c"};
    std::vector<Rule> rules;
    for (std::size_t i = below(12); i > 0; --i) {
      const std::size_t left = below(names.size()), right = below(names.size());
      const std::string name = names[left] + names[right];
      const auto known = std::find(names.begin(), names.end(), name);
      const auto id = known - names.begin();
      if (known == names.end()) names.push_back(name);
      rules.push_back({static_cast<std::int64_t>(left), static_cast<std::int64_t>(right), id});
    }
    std::shuffle(rules.begin(), rules.end(), random);
    Ids word(below(40));
    for (std::int64_t& id : word) id = static_cast<std::int64_t>(below(3));
    const Ids result = merge(word, rules);
    REQUIRE(result == merge_by_rounds(word, rules));
    merged += word.size() - result.size();
  }
  CHECK(merged > 10000);
}

TEST_CASE("a megabyte word takes no time") {
  std::vector<Rule> rules;
  for (std::int64_t i = 0; i < 8; ++i) rules.push_back({i, i, i + 1});
  Ids word(1 << 20, 0);
  const auto start = std::chrono::steady_clock::now();
  word = merge(std::move(word), rules);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(word == Ids(1 << 12, 8));
  CHECK(seconds.count() < 10);  // 0.3 s; a quadratic one takes hours
}
