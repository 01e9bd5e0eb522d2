#include "lib/text/bpe_files.h"

#include <algorithm>
#include <charconv>
#include <future>
#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/text/flat_tables.h"
#include "lib/text/json_node.h"

namespace diptych {

namespace {

using namespace json_node;
using Json = nlohmann::json;

// The pattern of pre_tokenizer.h as tokenizer.json spells it.
constexpr std::string_view kQwen2Pattern =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

// Of what could change the ids, only what Qwen2 tokenizers have is implemented.
void require(const Node& node, std::initializer_list<Json> allowed) {
  require_one_of(node, allowed, "a Qwen2 tokenizer");
}

void require_plain_match(const Node& added_token) {
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    require(member(added_token, key), {false});
  }
}

bool is_special(const Node& added_token) {
  const Node special = member(added_token, "special");
  return special.value != nullptr && special.value->is_boolean() && special.value->get<bool>();
}

std::vector<BpeTables::Token> read_pieces(const Node& vocab) {
  std::vector<BpeTables::Token> pieces;
  pieces.reserve(vocab.value->size());
  for (const auto& [text, value] : vocab.value->items()) {
    const auto id = as_id(value);
    if (!id) {
      throw InputError("{}: {:?} has {}, expected a token id in 0..{}", vocab.place, text,
                       shown(value), kMaxTokenId);
    }
    pieces.push_back({text, *id});
  }
  return pieces;
}

// The entries of a flat object of ids, as every vocab.json is one. Of
// anything that is not in order it says nothing, and JSON's reader says what it is.
class FlatVocabulary {
 public:
  explicit FlatVocabulary(std::string_view text) : text_(text) {}

  std::optional<std::vector<BpeTables::Token>> read() {
    std::vector<BpeTables::Token> pieces;
    pieces.reserve(text_.size() / 16);
    if (!take('{')) return {};
    do {
      auto text = take_text();
      if (!text || !take(':')) return {};
      const auto id = take_id();
      if (!id) return {};
      pieces.push_back({*std::move(text), *id});
    } while (take(','));
    if (!take('}')) return {};
    skip_spaces();
    if (at_ != text_.size()) return {};
    return pieces;
  }

 private:
  bool ended() const { return at_ == text_.size(); }
  void skip_spaces() {
    while (!ended() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool take(char wanted) {
    skip_spaces();
    if (ended() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  std::optional<std::string> take_text() {
    if (!take('"')) return {};
    std::string text;
    std::size_t begin = at_;  // of what is not in `text` yet
    while (!ended() && text_[at_] != '"') {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte < 0x20) return {};
      if (byte == '\\') {
        text += text_.substr(begin, at_ - begin);
        if (!take_escape(text)) return {};
        begin = at_;
        continue;
      }
      const Utf8Character character =
          byte < 0x80 ? Utf8Character{byte, 1, true} : utf8_at(text_, at_);
      if (!character.valid) return {};
      at_ += character.length;
    }
    if (ended()) return {};
    text += text_.substr(begin, at_++ - begin);
    return text;
  }
  // Of a pair of surrogates it says nothing: the byte alphabet has none.
  bool take_escape(std::string& text) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ + 1 == text_.size()) return false;
    const std::size_t known = kNames.find(text_[at_ + 1]);
    if (known != std::string_view::npos) {
      text += kMeanings[known];
      at_ += 2;
      return true;
    }
    constexpr std::size_t kDigits = 4;
    const std::string_view digits = text_.substr(at_ + 2, kDigits);
    std::uint32_t code_point = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, code_point, 16);
    const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
    if (text_[at_ + 1] != 'u' || digits.size() != kDigits || error != std::errc() || stop != end ||
        is_surrogate)
      return false;
    append_utf8(text, code_point);
    at_ += 2 + kDigits;
    return true;
  }
  std::optional<std::int64_t> take_id() {
    skip_spaces();
    std::int64_t id = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), id);
    const bool is_plain =
        error == std::errc() && *begin != '-' && (*begin != '0' || end == begin + 1);
    if (!is_plain || id > kMaxTokenId) return {};
    at_ += static_cast<std::size_t>(end - begin);
    return id;  // of 1.5 the next take() meets ".5"
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool has_twins(const std::vector<BpeTables::Token>& pieces) {
  TextIndex seen(pieces.size());
  const auto text_at = [&](std::uint32_t place) -> std::string_view { return pieces[place].text; };
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (seen.insert(pieces[i].text, i, text_at) != TextIndex::kNone) return true;
  }
  return false;
}

// Of two entries of one text JSON's reader keeps the last; what is no flat object of ids, its tree
// says best.
std::vector<BpeTables::Token> read_vocabulary(const NamedText& file) {
  auto pieces = FlatVocabulary(file.text).read();
  if (pieces && !has_twins(*pieces)) return *std::move(pieces);
  const Json json = parse_json(file.text, file.name);
  return read_pieces(object_of({&json, file.name}));
}

// "left right"; nothing if `line` is not two words with one space between.
std::optional<std::pair<std::string, std::string>> split_merge(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) return {};
  const std::string_view right = line.substr(space + 1);
  if (right.find(' ') != std::string_view::npos) return {};
  return std::pair(std::string(line.substr(0, space)), std::string(right));
}

std::vector<BpeTables::Merge> read_merges_text(const NamedText& file) {
  std::vector<BpeTables::Merge> merges;
  merges.reserve(static_cast<std::size_t>(std::ranges::count(file.text, '\n')) + 1);
  std::string_view rest = file.text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::size_t last = line.find_last_not_of(" \t\r");
    line = line.substr(0, last == std::string_view::npos ? 0 : last + 1);
    if (line.empty() || (number == 1 && line.starts_with("#version:"))) continue;

    auto merge = split_merge(line);
    if (!merge) {
      throw InputError("{}:{}: found {:?}, expected two pieces", file.name, number,
                       line.substr(0, 80));
    }
    merges.push_back({std::move(merge->first), std::move(merge->second), number});
  }
  return merges;
}

BpeTables::Merge read_merge(const Node& node, std::size_t number) {
  if (node.value->is_string()) {
    const auto merge = split_merge(string_of(node));
    if (!merge) {
      throw InputError("{}: found {:?}, expected two pieces", node.place, string_of(node));
    }
    return {merge->first, merge->second, number};
  }
  if (!node.value->is_array() || node.value->size() != 2) fail_type(node, "two pieces");
  return {string_of({&(*node.value)[0], node.place}), string_of({&(*node.value)[1], node.place}),
          number};
}

std::int64_t parse_id(const std::string& digits, const std::string& place) {
  std::int64_t id = -1;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, id);
  if (error != std::errc() || stop != end || id < 0 || id > kMaxTokenId) {
    throw InputError("{}: found key {:?}, expected a token id", place, digits);
  }
  return id;
}

NamedText read_text(const std::filesystem::path& path) {
  return {path.string(), read_text_file(path)};
}

// A vocabulary without merges cuts every text into its bytes, silently.
void require_merges(const BpeTables& tables) {
  if (tables.merges.empty())
    throw InputError("{}: holds no merges: truncated?", tables.merges_place);
}

// The parts of tokenizer.json that say how text is cut up before the merges.
void require_qwen2_steps(const Node& root) {
  const Node normalizer = object_of(member(root, "normalizer", true));
  require(member(normalizer, "type"), {"NFC"});
  const Node steps = member(object_of(member(root, "pre_tokenizer", true)), "pretokenizers");
  if (array_of(steps).value->size() != 2) fail_type(steps, "two steps, Split and ByteLevel");
  const Node split = object_of({&(*steps.value)[0], steps.place + "[0]"});
  const Node bytes = object_of({&(*steps.value)[1], steps.place + "[1]"});
  require(member(split, "type"), {"Split"});
  require(member(split, "behavior"), {"Isolated"});
  require(member(split, "invert"), {false});
  const Node pattern = member(object_of(member(split, "pattern")), "Regex");
  string_of(pattern);
  require(pattern, {std::string(kQwen2Pattern)});
  require(member(bytes, "type"), {"ByteLevel"});
  require(member(bytes, "add_prefix_space"), {false});
  require(member(bytes, "use_regex"), {false});
}

void require_plain_model(const Node& model) {
  require(member(model, "type"), {"BPE"});
  require(member(model, "dropout"), {0});
  require(member(model, "continuing_subword_prefix"), {""});
  require(member(model, "end_of_word_suffix"), {""});
  require(member(model, "byte_fallback"), {false});
  require(member(model, "ignore_merges"), {false});
}

}  // namespace

std::string BpeTables::place_of(const Merge& merge) const {
  return fmt::format("{}{}{}", merges_before, merge.number, merges_after);
}

BpeTables parse_slow_files(const NamedText& vocab, const NamedText& merges,
                           const NamedText& config) {
  BpeTables tables;
  // Each takes as long as the other.
  auto reading = std::async([&merges] { return read_merges_text(merges); });
  tables.pieces = read_vocabulary(vocab);
  tables.pieces_place = vocab.name;
  tables.merges = reading.get();
  tables.merges_place = merges.name;
  tables.merges_before = merges.name + ":";

  const Json config_json = parse_json(config.text, config.name);
  const Node root = object_of({&config_json, config.name});
  require(member(root, "tokenizer_class", true), {"Qwen2Tokenizer", "Qwen2TokenizerFast"});
  const Node decoder = object_of(member(root, "added_tokens_decoder", true));
  for (const auto& [id, token] : decoder.value->items()) {
    const Node node = object_of({&token, fmt::format("{}[{:?}]", decoder.place, id)});
    require_plain_match(node);
    tables.added.push_back(
        {string_of(member(node, "content")), parse_id(id, decoder.place), is_special(node)});
  }
  tables.added_place = decoder.place;
  return tables;
}

BpeTables parse_fast_file(const NamedText& tokenizer) {
  BpeTables tables;
  const Json json = parse_json(tokenizer.text, tokenizer.name);
  const Node root = object_of({&json, tokenizer.name});
  require_qwen2_steps(root);

  const Node model = object_of(member(root, "model", true));
  require_plain_model(model);
  const Node vocab = object_of(member(model, "vocab"));
  tables.pieces = read_pieces(vocab);
  tables.pieces_place = vocab.place;
  const Node merges = array_of(member(model, "merges"));
  tables.merges_place = merges.place;
  tables.merges_before = merges.place + "[";
  tables.merges_after = "]";
  for (std::size_t i = 0; i < merges.value->size(); ++i) {
    const Node merge{&(*merges.value)[i], fmt::format("{}[{}]", merges.place, i)};
    tables.merges.push_back(read_merge(merge, i));
  }

  const Node added = array_of(member(root, "added_tokens", true));
  for (std::size_t i = 0; i < added.value->size(); ++i) {
    const Node token = object_of({&(*added.value)[i], fmt::format("{}[{}]", added.place, i)});
    require_plain_match(token);
    tables.added.push_back(
        {string_of(member(token, "content")), id_of(member(token, "id")), is_special(token)});
  }
  tables.added_place = added.place;
  return tables;
}

BpeTables read_bpe_files(const std::filesystem::path& folder) {
  // A link that leads nowhere counts as there: reading it says so.
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::symlink_status(folder / name, ignored));
  };
  if (has("vocab.json") && has("merges.txt") && has("tokenizer_config.json")) {
    const NamedText vocab = read_text(folder / "vocab.json");
    const NamedText merges = read_text(folder / "merges.txt");
    BpeTables tables = parse_slow_files(vocab, merges, read_text(folder / "tokenizer_config.json"));
    require_merges(tables);
    return tables;
  }
  if (has("tokenizer.json")) {
    const NamedText tokenizer = read_text(folder / "tokenizer.json");
    BpeTables tables = parse_fast_file(tokenizer);
    require_merges(tables);
    return tables;
  }
  std::string missing;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    if (!has(name)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  }
  throw InputError("{}: {} not found, nor tokenizer.json; expected a tokenizer", folder.string(),
                   missing);
}

}  // namespace diptych
