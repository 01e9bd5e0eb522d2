#include "lib/text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace diptych {

void AddedTokens::add(std::string text, std::int64_t id) {
  std::vector<Token>& tokens = by_first_byte_[static_cast<std::uint8_t>(text.front())];
  const auto shorter = std::ranges::find_if(
      tokens, [&](const Token& token) { return token.text.size() < text.size(); });
  tokens.insert(shorter, {std::move(text), id});
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text,
                                                    std::size_t offset) const {
  for (; offset < text.size(); ++offset) {
    const std::string_view rest = text.substr(offset);
    for (const Token& token : by_first_byte_[static_cast<std::uint8_t>(rest.front())]) {
      if (rest.starts_with(token.text)) return Match{offset, token.text.size(), token.id};
    }
  }
  return std::nullopt;
}

}  // namespace diptych
