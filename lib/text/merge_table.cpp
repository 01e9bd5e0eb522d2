#include "lib/text/merge_table.h"

#include <algorithm>

namespace diptych {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr std::int64_t kSwallowed = -1;

std::uint64_t key_of(std::int64_t left, std::int64_t right) {
  return (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint64_t>(right);
}

}  // namespace

// A word while it is merged: a doubly linked list, and a heap of the pairs that can be merged. The
// heap may hold pairs that are gone; they are recognised when they come up.
class MergeTable::Word {
 public:
  Word(const MergeTable& table, const std::vector<std::int64_t>& ids) : table_(table) {
    symbols_.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      symbols_.push_back({ids[i], i == 0 ? kNone : i - 1, i + 1 == ids.size() ? kNone : i + 1});
    }
    for (std::size_t i = 0; i < ids.size(); ++i) offer(i);
  }

  bool done() const { return heap_.empty(); }

  // One round: every occurrence of the lowest rank. Pairs that arise are offered only after it:
  // one of them may have a lower rank still, and must not take a symbol from a later occurrence.
  void merge_lowest() {
    const std::size_t rank = heap_.front().rank;
    merged_.clear();
    while (!heap_.empty() && heap_.front().rank == rank) {
      const std::size_t at = take();
      const Merge* merge = merge_at(at);
      if (merge == nullptr || merge->rank != rank) continue;
      unite(at, merge->merged);
      merged_.push_back(at);
    }
    for (const std::size_t at : merged_) {
      if (symbols_[at].previous != kNone) offer(symbols_[at].previous);
      offer(at);
    }
  }

  void write(std::vector<std::int64_t>& ids) const {
    ids.clear();
    for (std::size_t i = 0; i != kNone; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  struct Symbol {
    std::int64_t id;  // kSwallowed once it is part of the symbol before it
    std::size_t previous, next;
  };
  struct Candidate {
    std::size_t rank, at;  // `at` is the left symbol of the pair
  };

  // Heap order: the lowest rank first, of equal ranks the leftmost.
  static bool later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }

  const Merge* merge_at(std::size_t at) const {
    const Symbol& left = symbols_[at];
    if (left.id == kSwallowed || left.next == kNone) return nullptr;
    return table_.find(left.id, symbols_[left.next].id);
  }

  void offer(std::size_t at) {
    const Merge* merge = merge_at(at);
    if (merge == nullptr) return;
    heap_.push_back({merge->rank, at});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  std::size_t take() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const std::size_t at = heap_.back().at;
    heap_.pop_back();
    return at;
  }

  void unite(std::size_t at, std::int64_t merged) {
    Symbol& left = symbols_[at];
    Symbol& right = symbols_[left.next];
    left.id = merged;
    left.next = right.next;
    right.id = kSwallowed;
    if (left.next != kNone) symbols_[left.next].previous = at;
  }

  const MergeTable& table_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<std::size_t> merged_;
};

void MergeTable::add(std::int64_t left, std::int64_t right, std::int64_t merged) {
  const std::uint64_t key = key_of(left, right);
  const Merge merge{next_rank_++, static_cast<std::int32_t>(merged)};
  if (!merges_.insert(key, merge)) *merges_.find(key) = merge;
}

void MergeTable::apply(std::vector<std::int64_t>& ids) const {
  if (ids.size() < 2) return;
  Word word(*this, ids);
  while (!word.done()) word.merge_lowest();
  word.write(ids);
}

const MergeTable::Merge* MergeTable::find(std::int64_t left, std::int64_t right) const {
  return merges_.find(key_of(left, right));
}

}  // namespace diptych
