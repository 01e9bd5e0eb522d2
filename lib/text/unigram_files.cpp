#include "lib/text/unigram_files.h"

#include <cstddef>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/text/json_node.h"

namespace diptych {
namespace {

using namespace json_node;
using Json = nlohmann::json;

constexpr std::string_view kKind = "a T5 tokenizer";

// Takes the entries of model.vocab, [text, score], while the file is read, so that a quarter of a
// million of them never stand in the tree.
class PieceTaker {
 public:
  PieceTaker(std::string_view file, std::vector<UnigramTables::Piece>& pieces)
      : file_(file), pieces_(pieces) {}

  // An event of nlohmann's parser; false: the value is taken.
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::key && depth == 1) in_model_ = value == "model";
    if (event == Event::key && depth == 2) {
      in_vocab_ = in_model_ && value == "vocab";
      if (in_vocab_) pieces_.clear();  // of a key that appears twice the last counts
    }
    if (event != Event::array_end || depth != 3 || !in_vocab_) return true;
    take(value);
    return false;
  }

 private:
  void take(Json& entry) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      throw InputError("{}: model.vocab[{}]: expected a text and its score", file_, pieces_.size());
    if (pieces_.size() > static_cast<std::size_t>(kMaxTokenId))
      throw InputError("{}: model.vocab: has more than {} pieces", file_, kMaxTokenId);
    pieces_.push_back({std::move(entry[0].get_ref<std::string&>()), entry[1].get<double>()});
  }

  std::string_view file_;
  std::vector<UnigramTables::Piece>& pieces_;
  bool in_model_ = false, in_vocab_ = false;
};

void read_model(const Node& model, UnigramTables& tables) {
  const Node type = member(model, "type");
  string_of(type);
  require_one_of(type, {"Unigram"}, kKind);
  require_one_of(member(model, "byte_fallback"), {false}, kKind);
  const Node vocab = array_of(member(model, "vocab"));
  if (!vocab.value->empty()) fail_type(element(vocab, 0), "a text and its score");
  const auto count = static_cast<std::int64_t>(tables.pieces.size());
  const Node unknown = member(model, "unk_id");
  tables.unknown_id = id_of(unknown);
  if (tables.unknown_id >= count) {
    throw InputError("{}: found {}, expected one of the {} pieces", unknown.place,
                     tables.unknown_id, count);
  }
}

void read_added_tokens(const Node& added, UnigramTables& tables) {
  for (std::size_t i = 0; i < added.value->size(); ++i) {
    const Node token = object_of(element(added, i));
    for (const char* key : {"lstrip", "rstrip", "single_word"})
      require_one_of(member(token, key), {false}, kKind);
    const Node text = member(token, "content"), normalized = member(token, "normalized");
    if (string_of(text).empty()) throw InputError("{}: is empty, expected a text", text.place);
    require_one_of(normalized, {true, false}, kKind);
    const bool behind = normalized.value != nullptr && *normalized.value == true;
    tables.added.push_back({string_of(text), id_of(member(token, "id")), behind});
  }
}

std::vector<std::int64_t> read_special_ids(const Node& processor, const std::string& name) {
  const Node token = object_of(member(object_of(member(processor, "special_tokens")), name));
  const Node ids = array_of(member(token, "ids"));
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < ids.value->size(); ++i) values.push_back(id_of(element(ids, i)));
  return values;
}

// TemplateProcessing: special tokens around the text.
void read_post_processor(const Node& processor, UnigramTables& tables) {
  if (!processor.value || processor.value->is_null()) return;
  const Node type = member(object_of(processor), "type");
  string_of(type);
  require_one_of(type, {"TemplateProcessing"}, kKind);
  const Node parts = array_of(member(processor, "single"));
  bool behind = false;
  for (std::size_t i = 0; i < parts.value->size(); ++i) {
    const Node part = object_of(element(parts, i)), special = member(part, "SpecialToken");
    if (!special.value) {
      if (behind) fail_type(part, "one Sequence");
      object_of(member(part, "Sequence"));
      behind = true;
      continue;
    }
    const std::string name = string_of(member(object_of(special), "id"));
    for (const std::int64_t id : read_special_ids(processor, name))
      (behind ? tables.after : tables.before).push_back(id);
  }
  if (!behind) fail_type(parts, "a Sequence and the tokens around it");
}

}  // namespace

UnigramTables parse_unigram_file(const NamedText& tokenizer) {
  UnigramTables tables;
  const Json json =
      parse_json(tokenizer.text, tokenizer.name, PieceTaker(tokenizer.name, tables.pieces));
  const Node root = object_of({&json, tokenizer.name});
  read_model(object_of(member(root, "model", true)), tables);
  tables.normalizer = read_normalizer(member(root, "normalizer", true));
  tables.pre_tokenizer = read_pre_tokenizer(member(root, "pre_tokenizer", true));
  read_post_processor(member(root, "post_processor", true), tables);
  const Node added = member(root, "added_tokens", true);
  if (added.value && !added.value->is_null()) read_added_tokens(array_of(added), tables);
  return tables;
}

}  // namespace diptych
