// The pieces of a vocabulary as a trie over their bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/text/flat_tables.h"

namespace diptych {

class PieceTrie {
 public:
  explicit PieceTrie(std::size_t expected_nodes = 0) : children_(expected_nodes), ids_(1, kNone) {}

  // Of two pieces of one text the later one counts.
  void add(std::string_view piece, std::int32_t id) {
    std::uint32_t node = 0;
    for (const char byte : piece) {
      const std::uint64_t key = key_of(node, byte);
      const auto next = static_cast<std::uint32_t>(ids_.size());
      if (const std::uint32_t* const child = children_.find(key)) {
        node = *child;
        continue;
      }
      children_.insert(key, next);
      ids_.push_back(kNone);
      node = next;
    }
    ids_[node] = id;
  }

  // Calls see(length in bytes, id) for each piece with which `text` starts, shortest first.
  template <typename See>
  void find_prefixes(std::string_view text, const See& see) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t* const child = children_.find(key_of(node, text[i]));
      if (child == nullptr) return;
      node = *child;
      if (ids_[node] != kNone) see(i + 1, ids_[node]);
    }
  }

 private:
  static constexpr std::int32_t kNone = -1;

  static std::uint64_t key_of(std::uint32_t node, char byte) {
    return std::uint64_t{node} << 8 | static_cast<std::uint8_t>(byte);
  }

  FlatMap<std::uint32_t> children_;
  std::vector<std::int32_t> ids_;  // of the piece that ends at a node
};

}  // namespace diptych
