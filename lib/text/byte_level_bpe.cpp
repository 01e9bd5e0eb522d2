#include "lib/text/byte_level_bpe.h"

#include <array>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/added_tokens.h"
#include "lib/text/byte_alphabet.h"
#include "lib/text/flat_tables.h"
#include "lib/text/merge_table.h"
#include "lib/text/nfc.h"
#include "lib/text/pre_tokenizer.h"

namespace diptych {

namespace {

class ByteLevelBpe final : public Tokenizer {
 public:
  explicit ByteLevelBpe(BpeTables tables)
      : tables_(std::move(tables)),
        by_text_(tables_.pieces.size() + tables_.added.size()),
        by_id_(tables_.pieces.size() + tables_.added.size()),
        merges_(tables_.merges.size()) {
    add_pieces();
    add_added_tokens();
    add_bytes();
    add_merges();
  }

  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;
  std::optional<std::int64_t> token_id(std::string_view token) const override;
  std::int64_t size() const override { return size_; }
  bool is_special(std::int64_t id) const override;

  void require_made_pieces() const;

 private:
  struct Token {
    std::string_view text;  // in tables_, as the files spell it
    std::int64_t id = 0;
    bool added = false;
    bool special = false;
    bool made = false;  // by a merge
  };
  struct MergedIds {
    std::int64_t left, right;
    std::uint32_t merged;  // a place in tokens_
  };

  void add_pieces();
  void add_added_tokens();
  void add_bytes();
  void add_merges();
  // False: a token of the id, or (which the id finds only) of the text, is there already.
  bool add(const Token& token);
  std::vector<MergedIds> find_merged(std::size_t first, std::size_t count) const;
  const Token* find(std::string_view text) const;
  const Token& piece_of(std::string_view piece, const BpeTables::Merge& merge) const;
  void encode_words(std::string_view text, std::vector<std::int64_t>& ids) const;

  BpeTables tables_;
  std::vector<Token> tokens_;
  TextIndex by_text_;             // places in tokens_
  FlatMap<std::uint32_t> by_id_;  // likewise
  AddedTokens added_;
  std::array<std::int64_t, 256> byte_ids_{};
  MergeTable merges_;
  std::int64_t size_ = 0;
};

const ByteLevelBpe::Token* ByteLevelBpe::find(std::string_view text) const {
  const auto text_at = [this](std::uint32_t place) { return tokens_[place].text; };
  const std::uint32_t place = by_text_.find(text, text_at);
  return place == TextIndex::kNone ? nullptr : &tokens_[place];
}

bool ByteLevelBpe::add(const Token& token) {
  const auto place = static_cast<std::uint32_t>(tokens_.size());
  if (!by_id_.insert(static_cast<std::uint64_t>(token.id), place)) return false;
  tokens_.push_back(token);
  by_text_.insert(token.text, place, [this](std::uint32_t at) { return tokens_[at].text; });
  size_ = std::max(size_, token.id + 1);
  return true;
}

void ByteLevelBpe::add_pieces() {
  // A vocabulary may list added tokens too, with the same id; those need not be in the alphabet.
  std::unordered_map<std::string_view, std::int64_t> added;
  for (const BpeTables::Token& token : tables_.added) added.emplace(token.text, token.id);

  tokens_.reserve(tables_.pieces.size() + tables_.added.size());
  for (const BpeTables::Token& piece : tables_.pieces) {
    const bool spells_bytes = is_in_alphabet(piece.text);
    const auto as_added = added.find(piece.text);
    const bool is_added = as_added != added.end() && as_added->second == piece.id;
    if (!spells_bytes && !is_added) {
      throw InputError("{}: piece {:?} has a character that is not in the byte alphabet",
                       tables_.pieces_place, piece.text);
    }
    if (spells_bytes && is_added && alphabet_bytes(piece.text) != piece.text) {
      throw InputError("{}: {:?} is a piece in {} that stands for other text", tables_.added_place,
                       piece.text, tables_.pieces_place);
    }
    if (!add({piece.text, piece.id})) {
      throw InputError("{}: id {} is given to two pieces, one of them {:?}", tables_.pieces_place,
                       piece.id, piece.text);
    }
  }
}

void ByteLevelBpe::add_added_tokens() {
  for (const BpeTables::Token& token : tables_.added) {
    if (token.text.empty()) {
      throw InputError("{}: token {} has no text", tables_.added_place, token.id);
    }
    const Token* const known = find(token.text);
    if (known != nullptr && known->id != token.id) {
      throw InputError("{}: {:?} has id {}, but id {} elsewhere", tables_.added_place, token.text,
                       token.id, known->id);
    }
    if (known == nullptr && !add({token.text, token.id})) {
      throw InputError("{}: {:?} has id {}, which another token has too", tables_.added_place,
                       token.text, token.id);
    }
    Token& own = tokens_[*by_id_.find(static_cast<std::uint64_t>(token.id))];
    own.added = true;
    own.special = token.special;
    added_.add(token.text, token.id);
  }
}

void ByteLevelBpe::add_bytes() {
  for (const std::uint8_t byte : alphabet_order()) {
    const Token* const found = find(alphabet_text(byte));
    if (found == nullptr) {
      throw InputError("{}: no piece {:?}, which stands for byte 0x{:02X}; expected all 256",
                       tables_.pieces_place, alphabet_text(byte), byte);
    }
    byte_ids_[byte] = found->id;
  }
}

const ByteLevelBpe::Token& ByteLevelBpe::piece_of(std::string_view piece,
                                                  const BpeTables::Merge& merge) const {
  const Token* const found = find(piece);
  if (found == nullptr) {
    throw InputError("{}: merge of {:?} and {:?}: {:?} is not in {}", tables_.place_of(merge),
                     merge.left, merge.right, piece, tables_.pieces_place);
  }
  return *found;
}

std::vector<ByteLevelBpe::MergedIds> ByteLevelBpe::find_merged(std::size_t first,
                                                               std::size_t count) const {
  std::vector<MergedIds> found;
  found.reserve(count);
  std::string merged;
  for (const BpeTables::Merge& merge : std::span(tables_.merges).subspan(first, count)) {
    if (merge.left.empty() || merge.right.empty()) {
      throw InputError("{}: a piece of the merge is empty", tables_.place_of(merge));
    }
    const std::int64_t left = piece_of(merge.left, merge).id;
    const std::int64_t right = piece_of(merge.right, merge).id;
    merged.assign(merge.left).append(merge.right);
    const auto place = static_cast<std::uint32_t>(&piece_of(merged, merge) - tokens_.data());
    found.push_back({left, right, place});
  }
  return found;
}

// Several threads look up what the merges are of, which takes longest.
void ByteLevelBpe::add_merges() {
  constexpr std::size_t kPart = 16384;
  std::vector<std::future<std::vector<MergedIds>>> parts;
  for (std::size_t first = 0; first < tables_.merges.size(); first += kPart) {
    const std::size_t count = std::min(kPart, tables_.merges.size() - first);
    parts.push_back(std::async([this, first, count] { return find_merged(first, count); }));
  }
  for (auto& part : parts) {
    for (const MergedIds& merge : part.get()) {
      Token& piece = tokens_[merge.merged];
      piece.made = true;
      merges_.add(merge.left, merge.right, piece.id);
    }
  }
  tables_.merges.clear();
}

// Where merges were cut off, texts would become smaller pieces than the model was trained on. Each
// piece of several bytes is in a vocabulary because a merge makes it; a released Qwen2 vocabulary
// has 151643 pieces, 256 bytes and 151387 merges.
void ByteLevelBpe::require_made_pieces() const {
  const Token* first = nullptr;
  std::size_t lost = 0;
  for (const Token& token : tokens_) {
    if (token.added || token.made || alphabet_bytes(token.text)->size() <= 1) continue;
    if (first == nullptr || token.id < first->id) first = &token;
    ++lost;
  }
  if (lost == 0) return;
  throw InputError("{}: no merge makes {:?} with id {}{} in {}: truncated?", tables_.merges_place,
                   first->text, first->id,
                   lost > 1 ? fmt::format(" nor {} more pieces", lost - 1) : "",
                   tables_.pieces_place);
}

void ByteLevelBpe::encode_words(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<std::int64_t> word;
  while (!text.empty()) {
    const std::size_t length = first_word_length(text);
    word.clear();
    for (const char byte : text.substr(0, length)) {
      word.push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
    }
    merges_.apply(word);
    ids.insert(ids.end(), word.begin(), word.end());
    text.remove_prefix(length);
  }
}

std::vector<std::int64_t> ByteLevelBpe::encode(std::string_view text) const {
  std::string normalised;
  if (check_utf8(text) >= kFirstNormalised) {
    normalised = to_nfc(text);
    text = normalised;
  }
  std::vector<std::int64_t> ids;
  std::size_t offset = 0;
  while (const auto match = added_.find(text, offset)) {
    encode_words(text.substr(offset, match->offset - offset), ids);
    ids.push_back(match->id);
    offset = match->offset + match->length;
  }
  encode_words(text.substr(offset), ids);
  return ids;
}

std::string ByteLevelBpe::decode(std::span<const std::int64_t> ids) const {
  std::string text, run;  // `run`: bytes since the last added token
  for (const std::int64_t id : ids) {
    const std::uint32_t* const place = by_id_.find(static_cast<std::uint64_t>(id));
    if (place == nullptr || id < 0) {
      throw InputError("token id {} has no text in {}", id, tables_.pieces_place);
    }
    const Token& token = tokens_[*place];
    if (!token.added) {
      run += *alphabet_bytes(token.text);
      continue;
    }
    text += replace_invalid_utf8(run);
    run.clear();
    text += token.text;
  }
  return text + replace_invalid_utf8(run);
}

std::optional<std::int64_t> ByteLevelBpe::token_id(std::string_view token) const {
  const Token* const found = find(token);
  if (found == nullptr) return std::nullopt;
  return found->id;
}

bool ByteLevelBpe::is_special(std::int64_t id) const {
  const std::uint32_t* const place = id < 0 ? nullptr : by_id_.find(static_cast<std::uint64_t>(id));
  return place != nullptr && tokens_[*place].special;
}

// Qwen2.5's, in the order of their ids from 151643 on.
constexpr std::int64_t kFirstQwenAddedId = 151643;
constexpr std::string_view kQwenAdded[] = {
    "<|endoftext|>",      "<|im_start|>",     "<|im_end|>",     "<|object_ref_start|>",
    "<|object_ref_end|>", "<|box_start|>",    "<|box_end|>",    "<|quad_start|>",
    "<|quad_end|>",       "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>",      "<|video_pad|>",    "<tool_call>",    "</tool_call>",
    "<|fim_prefix|>",     "<|fim_middle|>",   "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>",      "<|file_sep|>"};

}  // namespace

std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::filesystem::path& folder) {
  auto tokenizer = std::make_unique<ByteLevelBpe>(read_bpe_files(folder));
  tokenizer->require_made_pieces();
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_byte_level_bpe(BpeTables tables) {
  return std::make_unique<ByteLevelBpe>(std::move(tables));
}

std::unique_ptr<Tokenizer> byte_tokenizer() {
  BpeTables tables;
  tables.pieces_place = tables.added_place = "the byte tokenizer";
  for (std::int64_t id = 0; id < 256; ++id) {
    tables.pieces.push_back({alphabet_text(alphabet_order()[static_cast<std::size_t>(id)]), id});
  }
  std::int64_t id = 256;
  for (; id < kFirstQwenAddedId; ++id) {
    // A word of the vocabulary that is not there; without merges no text leads to it.
    std::string piece;
    for (const char byte : fmt::format(" #{}", id))
      piece += alphabet_text(static_cast<std::uint8_t>(byte));
    tables.pieces.push_back({std::move(piece), id});
  }
  constexpr std::size_t kSpecial = 14;  // the first of them
  for (std::size_t i = 0; i < std::size(kQwenAdded); ++i)
    tables.added.push_back({std::string(kQwenAdded[i]), id++, i < kSpecial});
  return make_byte_level_bpe(std::move(tables));
}

}  // namespace diptych
