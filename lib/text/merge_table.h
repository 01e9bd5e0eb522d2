// The merges of a BPE vocabulary and their use on one word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace diptych {

class MergeTable {
 public:
  void reserve(std::size_t merges) { merges_.reserve(merges); }
  // Left and right become `merged`. Later calls have a higher rank; a pair given twice keeps the
  // later one. Ids fit 32 bits.
  void add(std::int64_t left, std::int64_t right, std::int64_t merged);

  // Replaces all occurrences, left to right, of the pair of lowest rank, again and again until no
  // pair has one. O(n log n), whatever the word.
  void apply(std::vector<std::int64_t>& ids) const;

 private:
  struct Merge {
    std::size_t rank;
    std::int64_t merged;
  };
  class Word;

  const Merge* find(std::int64_t left, std::int64_t right) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
  std::size_t next_rank_ = 0;
};

}  // namespace diptych
