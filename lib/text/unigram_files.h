// The tokenizer.json of a T5 tokenizer (a Unigram model) as tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/text/token_ids.h"
#include "lib/text/unigram_steps.h"

namespace diptych {

struct UnigramTables {
  struct Piece {
    std::string text;
    double score = 0;  // log probability
  };
  struct AddedToken {
    std::string text;
    std::int64_t id = 0;
    bool normalized = false;  // looked for behind the normalizer
  };
  std::vector<Piece> pieces;    // the id is the place
  std::int64_t unknown_id = 0;  // a place in pieces
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> pre_tokenizer;
  std::vector<std::int64_t> before, after;  // ids that stand around every text
};

// Throws InputError with the file's name and the place for what is broken, and for what would
// change the ids and is not implemented.
UnigramTables parse_unigram_file(const NamedText& tokenizer);

}  // namespace diptych
