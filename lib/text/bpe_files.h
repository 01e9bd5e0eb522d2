// The files of a byte-level BPE tokenizer as tables. Checks that they are what they should be
// (JSON, types, the Qwen2 kind); whether the tables fit together, make_byte_level_bpe checks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/token_ids.h"

namespace diptych {

struct BpeTables {
  struct Token {
    std::string text;  // of a piece in the byte alphabet, of an added token as it is
    std::int64_t id;
    bool special = false;  // of an added token: it marks structure
  };
  struct Merge {
    std::string left, right;  // in the byte alphabet
    std::size_t number;       // the line in merges.txt, or the place in tokenizer.json's list
  };
  std::string place_of(const Merge& merge) const;  // "merges.txt:3", for errors
  std::vector<Token> pieces;
  std::vector<Merge> merges;  // lowest rank first
  std::vector<Token> added;
  std::string pieces_place, merges_place, added_place;  // where they came from, for errors
  std::string merges_before, merges_after;              // around a merge's number in its place
};

// vocab.json, merges.txt and tokenizer_config.json (its added_tokens_decoder).
BpeTables parse_slow_files(const NamedText& vocab, const NamedText& merges,
                           const NamedText& config);
// tokenizer.json alone: model.vocab, model.merges ("a b" or ["a", "b"]) and added_tokens.
BpeTables parse_fast_file(const NamedText& tokenizer);

// The first kind where `folder` has all three files, else the second. All three functions throw
// InputError.
BpeTables read_bpe_files(const std::filesystem::path& folder);

}  // namespace diptych
