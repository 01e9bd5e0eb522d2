#include "lib/text/byte_level_bpe.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/added_tokens.h"
#include "lib/text/byte_alphabet.h"
#include "lib/text/merge_table.h"
#include "lib/text/nfc.h"
#include "lib/text/pre_tokenizer.h"

namespace diptych {

namespace {

class ByteLevelBpe final : public Tokenizer {
 public:
  explicit ByteLevelBpe(const BpeTables& tables) : place_(tables.pieces_place) {
    add_pieces(tables);
    add_added_tokens(tables);
    add_bytes(tables);
    add_merges(tables);
  }

  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;
  std::optional<std::int64_t> token_id(std::string_view token) const override;
  std::int64_t size() const override { return size_; }

  void require_made_pieces(const BpeTables& tables) const;

 private:
  struct Text {
    std::string bytes;
    bool added;
    bool made = false;  // by a merge
  };

  void add_pieces(const BpeTables& tables);
  void add_added_tokens(const BpeTables& tables);
  void add_bytes(const BpeTables& tables);
  void add_merges(const BpeTables& tables);
  void encode_words(std::string_view text, std::vector<std::int64_t>& ids) const;
  std::int64_t piece_id(const std::string& piece, const BpeTables& tables,
                        const BpeTables::Merge& merge) const;

  std::string place_;
  std::unordered_map<std::string, std::int64_t> ids_;  // as the files spell the tokens
  std::unordered_map<std::int64_t, Text> texts_;
  AddedTokens added_;
  std::array<std::int64_t, 256> byte_ids_{};
  MergeTable merges_;
  std::int64_t size_ = 0;
};

void ByteLevelBpe::add_pieces(const BpeTables& tables) {
  // A vocabulary may list added tokens too, with the same id; those need not be in the alphabet.
  std::unordered_map<std::string_view, std::int64_t> added;
  for (const BpeTables::Token& token : tables.added) added.emplace(token.text, token.id);

  ids_.reserve(tables.pieces.size() + tables.added.size());
  texts_.reserve(tables.pieces.size() + tables.added.size());
  for (const BpeTables::Token& piece : tables.pieces) {
    std::optional<std::string> bytes = alphabet_bytes(piece.text);
    const auto as_added = added.find(piece.text);
    const bool is_added = as_added != added.end() && as_added->second == piece.id;
    if (!bytes && !is_added) {
      throw InputError("{}: piece {:?} has a character that is not in the byte alphabet",
                       tables.pieces_place, piece.text);
    }
    if (bytes && is_added && *bytes != piece.text) {
      throw InputError("{}: {:?} is a piece in {} that stands for other text", tables.added_place,
                       piece.text, tables.pieces_place);
    }
    if (!texts_.emplace(piece.id, Text{bytes.value_or(piece.text), false}).second) {
      throw InputError("{}: id {} is given to two pieces, one of them {:?}", tables.pieces_place,
                       piece.id, piece.text);
    }
    ids_.emplace(piece.text, piece.id);
    size_ = std::max(size_, piece.id + 1);
  }
}

void ByteLevelBpe::add_added_tokens(const BpeTables& tables) {
  for (const BpeTables::Token& token : tables.added) {
    if (token.text.empty()) {
      throw InputError("{}: token {} has no text", tables.added_place, token.id);
    }
    const auto [known, is_new] = ids_.emplace(token.text, token.id);
    if (known->second != token.id) {
      throw InputError("{}: {:?} has id {}, but id {} elsewhere", tables.added_place, token.text,
                       token.id, known->second);
    }
    if (is_new && texts_.contains(token.id)) {
      throw InputError("{}: {:?} has id {}, which another token has too", tables.added_place,
                       token.text, token.id);
    }
    texts_.insert_or_assign(token.id, Text{token.text, true});
    added_.add(token.text, token.id);
    size_ = std::max(size_, token.id + 1);
  }
}

void ByteLevelBpe::add_bytes(const BpeTables& tables) {
  for (const std::uint8_t byte : alphabet_order()) {
    const auto found = ids_.find(alphabet_text(byte));
    if (found == ids_.end()) {
      throw InputError("{}: no piece {:?}, which stands for byte 0x{:02X}; expected all 256",
                       tables.pieces_place, alphabet_text(byte), byte);
    }
    byte_ids_[byte] = found->second;
  }
}

std::int64_t ByteLevelBpe::piece_id(const std::string& piece, const BpeTables& tables,
                                    const BpeTables::Merge& merge) const {
  const auto found = ids_.find(piece);
  if (found == ids_.end()) {
    throw InputError("{}: merge of {:?} and {:?}: {:?} is not in {}", tables.place_of(merge),
                     merge.left, merge.right, piece, place_);
  }
  return found->second;
}

void ByteLevelBpe::add_merges(const BpeTables& tables) {
  merges_.reserve(tables.merges.size());
  std::string merged;
  for (const BpeTables::Merge& merge : tables.merges) {
    if (merge.left.empty() || merge.right.empty()) {
      throw InputError("{}: a piece of the merge is empty", tables.place_of(merge));
    }
    const std::int64_t left = piece_id(merge.left, tables, merge);
    const std::int64_t right = piece_id(merge.right, tables, merge);
    merged.assign(merge.left).append(merge.right);
    const std::int64_t id = piece_id(merged, tables, merge);
    texts_.find(id)->second.made = true;
    merges_.add(left, right, id);
  }
}

// Where merges were cut off, texts would become smaller pieces than the model was trained on. Each
// piece of several bytes is in a vocabulary because a merge makes it; a released Qwen2 vocabulary
// has 151643 pieces, 256 bytes and 151387 merges.
void ByteLevelBpe::require_made_pieces(const BpeTables& tables) const {
  std::int64_t first = size_;
  std::size_t lost = 0;
  for (const auto& [id, text] : texts_) {
    if (text.added || text.made || text.bytes.size() <= 1) continue;
    first = std::min(first, id);
    ++lost;
  }
  if (lost == 0) return;
  std::string piece;
  for (const char byte : texts_.at(first).bytes)
    piece += alphabet_text(static_cast<std::uint8_t>(byte));
  throw InputError("{}: no merge makes {:?} with id {}{} in {}: truncated?", tables.merges_place,
                   piece, first, lost > 1 ? fmt::format(" nor {} more pieces", lost - 1) : "",
                   place_);
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
    const auto found = texts_.find(id);
    if (found == texts_.end()) {
      throw InputError("token id {} has no text in {}", id, place_);
    }
    if (!found->second.added) {
      run += found->second.bytes;
      continue;
    }
    text += replace_invalid_utf8(run);
    run.clear();
    text += found->second.bytes;
  }
  return text + replace_invalid_utf8(run);
}

std::optional<std::int64_t> ByteLevelBpe::token_id(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
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
  const BpeTables tables = read_bpe_files(folder);
  auto tokenizer = std::make_unique<ByteLevelBpe>(tables);
  tokenizer->require_made_pieces(tables);
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_byte_level_bpe(const BpeTables& tables) {
  return std::make_unique<ByteLevelBpe>(tables);
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
  for (const std::string_view text : kQwenAdded) tables.added.push_back({std::string(text), id++});
  return make_byte_level_bpe(tables);
}

}  // namespace diptych
