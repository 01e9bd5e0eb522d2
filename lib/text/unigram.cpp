#include "lib/text/unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"

namespace diptych {
namespace {

// How much worse than the worst piece an unknown character is (sentencepiece, unigram_model.cc).
constexpr double kUnknownPenalty = 10;

std::size_t total_bytes(const std::vector<UnigramTables::Piece>& pieces) {
  std::size_t bytes = 0;
  for (const UnigramTables::Piece& piece : pieces) bytes += piece.text.size();
  return bytes;
}

// The text between the added tokens goes to `encode`, with whether it is at the text's start.
template <typename Encode>
void split_at_added(const AddedTokens& added, std::string_view text, bool at_start,
                    std::vector<std::int64_t>& ids, const Encode& encode) {
  std::size_t offset = 0;
  while (const auto match = added.find(text, offset)) {
    encode(text.substr(offset, match->offset - offset), at_start && offset == 0);
    ids.push_back(match->id);
    offset = match->offset + match->length;
  }
  encode(text.substr(offset), at_start && offset == 0);
}

}  // namespace

UnigramTokenizer UnigramTokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  return UnigramTokenizer(parse_unigram_file({file.string(), read_text_file(file)}));
}

UnigramTokenizer::UnigramTokenizer(UnigramTables tables)
    : tables_(std::move(tables)), trie_(total_bytes(tables_.pieces) / 2) {
  double worst = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < tables_.pieces.size(); ++i) {
    trie_.add(tables_.pieces[i].text, static_cast<std::int32_t>(i));
    worst = std::min(worst, tables_.pieces[i].score);
  }
  unknown_score_ = worst - kUnknownPenalty;
  size_ = static_cast<std::int64_t>(tables_.pieces.size());
  for (const UnigramTables::AddedToken& token : tables_.added) {
    std::string text = token.text;
    if (token.normalized) {
      for (const NormalizerStep& step : tables_.normalizer) text = step(std::move(text));
    }
    if (!text.empty()) (token.normalized ? normalised_added_ : raw_added_).add(text, token.id);
    size_ = std::max(size_, token.id + 1);
  }
  for (const auto* around : {&tables_.before, &tables_.after}) {
    for (const std::int64_t id : *around) size_ = std::max(size_, id + 1);
  }
}

std::vector<std::int64_t> UnigramTokenizer::encode(std::string_view text) const {
  check_utf8(text);
  std::vector<std::int64_t> ids = tables_.before;
  split_at_added(raw_added_, text, true, ids, [&](std::string_view part, bool at_start) {
    if (!part.empty()) encode_raw(part, at_start, ids);
  });
  ids.insert(ids.end(), tables_.after.begin(), tables_.after.end());
  return ids;
}

std::vector<std::int64_t> UnigramTokenizer::truncate(std::vector<std::int64_t> ids,
                                                     std::size_t max_length) const {
  if (ids.size() <= max_length) return ids;
  const std::size_t after = tables_.after.size();
  const std::size_t kept = std::max(max_length, tables_.before.size() + after) - after;
  ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(kept),
            ids.end() - static_cast<std::ptrdiff_t>(after));
  return ids;
}

void UnigramTokenizer::encode_raw(std::string_view text, bool at_start,
                                  std::vector<std::int64_t>& ids) const {
  std::string normalised(text);
  for (const NormalizerStep& step : tables_.normalizer) normalised = step(std::move(normalised));
  split_at_added(normalised_added_, normalised, at_start, ids,
                 [&](std::string_view part, bool first) { encode_normalised(part, first, ids); });
}

void UnigramTokenizer::encode_normalised(std::string_view text, bool at_start,
                                         std::vector<std::int64_t>& ids) const {
  std::vector<Word> words = {{std::string(text), at_start}};
  for (const SplitStep& step : tables_.pre_tokenizer) {
    std::vector<Word> cut;
    for (const Word& word : words) step(word, cut);
    words = std::move(cut);
  }
  for (const Word& word : words) encode_word(word.text, ids);
}

// The best of all ways to cut the word into pieces (Viterbi), as tokenizers/src/models/unigram
// (encode_optimized) breaks ties: the way found first.
void UnigramTokenizer::encode_word(std::string_view word, std::vector<std::int64_t>& ids) const {
  struct Path {  // the best way to an offset
    double score = 0;
    std::size_t from = 0;  // where its last piece begins
    std::int64_t id = -1;  // of its last piece; -1: no way yet
  };
  std::vector<Path> paths(word.size() + 1);
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t character = utf8_at(word, at).length;
    const auto offer = [&](std::size_t length, double score, std::int64_t id) {
      Path& path = paths[at + length];
      if (path.id < 0 || score > path.score) path = {score, at, id};
    };
    bool is_known = false;
    trie_.find_prefixes(word.substr(at), [&](std::size_t length, std::int32_t id) {
      offer(length, tables_.pieces[static_cast<std::size_t>(id)].score + paths[at].score, id);
      is_known = is_known || length == character;
    });
    if (!is_known) offer(character, unknown_score_ + paths[at].score, tables_.unknown_id);
    at += character;
  }

  std::vector<std::int64_t> backwards;
  for (std::size_t end = word.size(); end > 0; end = paths[end].from) {
    const std::int64_t id = paths[end].id;
    const bool fuses = id == tables_.unknown_id && !backwards.empty() && backwards.back() == id;
    if (!fuses) backwards.push_back(id);
  }
  ids.insert(ids.end(), backwards.rbegin(), backwards.rend());
}

}  // namespace diptych
