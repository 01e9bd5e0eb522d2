// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Throws InputError for text that is not valid UTF-8 (says the byte offset).
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  // Bytes that are not UTF-8 become U+FFFD. Throws InputError for an id without a text.
  virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
  virtual std::optional<std::int64_t> token_id(
      std::string_view token) const = 0;  // added tokens and vocabulary
  virtual std::int64_t size() const = 0;  // one past the largest id
  // Whether it marks structure and is no part of a text that is shown (skip_special_tokens).
  virtual bool is_special(std::int64_t) const { return false; }
};

}  // namespace diptych
