// Values of a tokenizer's JSON with the way to them, so that an error names its place:
// "tokenizer.json: model.vocab: expected an array, found null". All throw InputError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace diptych::json_node {

struct Node {
  const nlohmann::json* value;  // null: nothing is there
  std::string place;
};

[[noreturn]] void fail_type(const Node& node, std::string_view expected);

// The root of a file is written "file: key", what lies deeper "file: key.key".
Node member(const Node& object, const std::string& key, bool root = false);
Node element(const Node& array, std::size_t at);  // which must be there: "file: key[3]"

// The node itself, and the value, where it is of that type.
Node object_of(const Node& node);
Node array_of(const Node& node);
const std::string& string_of(const Node& node);
std::int64_t id_of(const Node& node);  // 0..kMaxTokenId

// A scalar as JSON in ASCII, cut short; of an array or object only the type.
std::string shown(const nlohmann::json& value);
std::optional<std::int64_t> as_id(const nlohmann::json& value);  // nothing: not in 0..kMaxTokenId

// Refuses what is not implemented: a value that is neither absent, null nor one of `allowed`.
// `kind`: what has those, "a Qwen2 tokenizer".
void require_one_of(const Node& node, std::initializer_list<nlohmann::json> allowed,
                    std::string_view kind);

}  // namespace diptych::json_node
