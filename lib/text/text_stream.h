// A text while its tokens come: what of it is certain, as pieces of whole characters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer.h"

namespace diptych {

// Special tokens are left out. The bytes of a character may come in several tokens; they are held
// back until it is whole, and so is what may be the start of a stop string. The text ends in front
// of the first stop string.
class TextStream {
 public:
  // `stops`: texts that are not empty.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(&tokenizer), stops_(std::move(stops)) {}

  // The piece that these tokens make certain; may be empty. Nothing where a stop string was met.
  // Throws as Tokenizer::decode.
  std::string add(std::span<const std::int64_t> ids);
  // No more tokens come: what was held back. Bytes that are no character are U+FFFD.
  std::string finish();

  bool stopped() const { return stopped_; }          // a stop string was met
  const std::string& text() const { return text_; }  // all pieces so far

 private:
  std::string take(std::string_view certain);
  std::string give(std::size_t bytes);
  std::size_t held_back() const;

  const Tokenizer* tokenizer_;
  std::vector<std::string> stops_;
  std::vector<std::int64_t> ids_;  // of the character that is not whole, and what came with it
  std::size_t taken_ = 0;          // bytes of their text that are certain
  std::string unsent_;             // certain, but may be the start of a stop string
  std::string text_;
  bool stopped_ = false;
};

}  // namespace diptych
