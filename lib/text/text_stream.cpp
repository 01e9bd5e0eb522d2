#include "lib/text/text_stream.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string TextStream::add(std::span<const std::int64_t> ids) {
  if (stopped_) return {};
  std::ranges::copy_if(ids, std::back_inserter(ids_),
                       [&](std::int64_t id) { return !tokenizer_->is_special(id); });
  const std::string text = tokenizer_->decode(ids_);
  // Its last character may be the start of one: all before it stays.
  const bool open = std::string_view(text).ends_with(kNoCharacter);
  const std::size_t certain = text.size() - (open ? kNoCharacter.size() : 0);
  const std::string_view piece = std::string_view(text).substr(std::min(taken_, certain));
  std::string sent = take(piece.substr(0, certain - std::min(taken_, certain)));
  taken_ = certain;
  if (!open) {
    ids_.clear();
    taken_ = 0;
  }
  return sent;
}

std::string TextStream::finish() {
  if (stopped_) return {};
  const std::string text = tokenizer_->decode(ids_);
  std::string sent = take(std::string_view(text).substr(taken_));
  ids_.clear();
  taken_ = 0;
  return stopped_ ? sent : sent + give(unsent_.size());
}

std::string TextStream::take(std::string_view certain) {
  unsent_ += certain;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, unsent_.find(stop));
  if (first == std::string::npos) return give(unsent_.size() - held_back());
  stopped_ = true;
  return give(first);
}

std::string TextStream::give(std::size_t bytes) {
  std::string piece = unsent_.substr(0, bytes);
  unsent_.erase(0, bytes);
  text_ += piece;
  return piece;
}

// Bytes at the end that a stop string begins with.
std::size_t TextStream::held_back() const {
  std::size_t most = 0;
  const std::string_view text = unsent_;
  for (const std::string& stop : stops_) {
    for (std::size_t bytes = std::min(stop.size() - 1, text.size()); bytes > most; --bytes) {
      if (text.ends_with(std::string_view(stop).substr(0, bytes))) most = bytes;
    }
  }
  return most;
}

}  // namespace diptych
