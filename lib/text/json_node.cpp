#include "lib/text/json_node.h"

#include "lib/base/error.h"
#include "lib/text/token_ids.h"

namespace diptych::json_node {

using Json = nlohmann::json;

[[noreturn]] void fail_type(const Node& node, std::string_view expected) {
  throw InputError("{}: expected {}, found {}", node.place, expected,
                   node.value ? node.value->type_name() : "nothing");
}

Node member(const Node& object, const std::string& key, bool root) {
  const std::string place = fmt::format("{}{}{}", object.place, root ? ": " : ".", key);
  const auto found = object.value->find(key);
  return {found == object.value->end() ? nullptr : &*found, place};
}

Node element(const Node& array, std::size_t at) {
  return {&(*array.value)[at], fmt::format("{}[{}]", array.place, at)};
}

Node object_of(const Node& node) {
  if (!node.value || !node.value->is_object()) fail_type(node, "an object");
  return node;
}

Node array_of(const Node& node) {
  if (!node.value || !node.value->is_array()) fail_type(node, "an array");
  return node;
}

const std::string& string_of(const Node& node) {
  if (!node.value || !node.value->is_string()) fail_type(node, "a string");
  return node.value->get_ref<const std::string&>();
}

std::string shown(const Json& value) {
  if (value.is_structured()) return value.type_name();
  return value.dump(-1, ' ', true).substr(0, 80);
}

std::optional<std::int64_t> as_id(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<std::uint64_t>();  // so negative ones are beyond the limit too
  if (id > static_cast<std::uint64_t>(kMaxTokenId)) return std::nullopt;
  return static_cast<std::int64_t>(id);
}

std::int64_t id_of(const Node& node) {
  const auto id = node.value ? as_id(*node.value) : std::nullopt;
  if (!id) {
    throw InputError("{}: found {}, expected a token id in 0..{}", node.place,
                     node.value ? shown(*node.value) : "nothing", kMaxTokenId);
  }
  return *id;
}

void require_one_of(const Node& node, std::initializer_list<Json> allowed, std::string_view kind) {
  if (!node.value || node.value->is_null()) return;
  std::string expected;
  for (const Json& value : allowed) {
    if (*node.value == value) return;
    expected += (expected.empty() ? "" : " or ") + value.dump();
  }
  throw InputError("{}: found {}, expected {} ({})", node.place, shown(*node.value), expected,
                   kind);
}

}  // namespace diptych::json_node
