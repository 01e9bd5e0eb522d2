// Hash tables for vocabularies: one block of memory each, no node for every entry, so that 150,000
// entries are there in milliseconds. Open addressing with linear probing, at most half full.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace diptych {

// From numbers below 2^64 - 1.
template <typename Value>
class FlatMap {
 public:
  explicit FlatMap(std::size_t entries = 0) : slots_(std::bit_ceil(2 * entries + 16)) {}

  const Value* find(std::uint64_t key) const {
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  Value* find(std::uint64_t key) {
    Slot& slot = slots_[slot_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  // False, and the value stays as it was, where the key is there already.
  bool insert(std::uint64_t key, const Value& value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    if (slot.key == key) return false;
    slot = {key, value};
    ++size_;
    return true;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Value value{};
  };

  // Where the key is, or would be.
  std::size_t slot_of(std::uint64_t key) const {
    // Fibonacci hashing (D. E. Knuth, The Art of Computer Programming 3, 6.4).
    std::size_t at = (key * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(slots_.size()));
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

// From texts to the places of entries in a list, which holds the texts: `text_at(place)`.
class TextIndex {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  explicit TextIndex(std::size_t entries = 0) : slots_(std::bit_ceil(2 * entries + 16)) {}

  template <typename TextAt>
  std::uint32_t find(std::string_view text, const TextAt& text_at) const {
    return slots_[slot_of(text, hash_of(text), text_at)].place;
  }
  // The place where the text was before; kNone, and it is at `place` now, where it was at none.
  template <typename TextAt>
  std::uint32_t insert(std::string_view text, std::uint32_t place, const TextAt& text_at) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    const std::uint32_t hash = hash_of(text);
    Slot& slot = slots_[slot_of(text, hash, text_at)];
    if (slot.place != kNone) return slot.place;
    slot = {hash, place};
    ++size_;
    return kNone;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0, place = kNone;
  };

  static std::uint32_t hash_of(std::string_view text) {
    const std::uint64_t hash = std::hash<std::string_view>()(text);
    return static_cast<std::uint32_t>(hash ^ (hash >> 32));
  }
  template <typename TextAt>
  std::size_t slot_of(std::string_view text, std::uint32_t hash, const TextAt& text_at) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    while (slots_[at].place != kNone &&
           (slots_[at].hash != hash || text_at(slots_[at].place) != text))
      at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.place == kNone) continue;
      std::size_t at = slot.hash & mask;
      while (slots_[at].place != kNone) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace diptych
