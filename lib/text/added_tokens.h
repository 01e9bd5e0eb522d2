// Finds added tokens in text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

class AddedTokens {
 public:
  struct Match {
    std::size_t offset, length;  // bytes
    std::int64_t id;
  };

  void add(std::string text, std::int64_t id);  // `text` is not empty

  // The leftmost token in `text` from `offset` on, the longest of those that start there.
  std::optional<Match> find(std::string_view text, std::size_t offset) const;

 private:
  struct Token {
    std::string text;
    std::int64_t id;
  };
  std::array<std::vector<Token>, 256> by_first_byte_;  // each longest first
};

}  // namespace diptych
