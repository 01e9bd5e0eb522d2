#include "lib/batch/json_tree.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

// Numbers keep the digits of the text; nlohmann's own tree would drop all but one of equal keys.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(YamlWhere where) : where_(std::move(where)) {}
  YamlNode take() { return std::move(root_); }

  bool null() override { return put(node(YamlNode::Kind::null)); }
  bool boolean(bool value) override { return put_plain(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return put_plain(fmt::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return put_plain(fmt::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& digits) override {
    return put_plain(digits);
  }
  bool string(string_t& value) override {
    YamlNode scalar = node(YamlNode::Kind::scalar);
    scalar.plain = false;
    scalar.text = std::move(value);
    return put(std::move(scalar));
  }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON texts have none

  bool start_object(std::size_t /*size*/) override { return open(YamlNode::Kind::map); }
  bool key(string_t& name) override {
    Open& map = open_.back();
    if (map.node.find(name) != nullptr) fail(fmt::format("duplicate key {}", in_quotes(name)));
    map.key = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(YamlNode::Kind::sequence); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    fail(error.id == kNumberOverflow
             ? fmt::format("a number that ends before byte {} is out of range", position)
             : fmt::format("is not valid JSON at byte {}", position));
  }

 private:
  struct Open {
    YamlNode node;
    std::string key;  // of a map: read, its value is still to come
  };

  [[noreturn]] void fail(std::string_view message) const {
    throw InputError("{}: {}", where_.text(), message);
  }

  YamlNode node(YamlNode::Kind kind) const {
    YamlNode made;
    made.kind = kind;
    made.where = where_;
    return made;
  }

  bool put_plain(std::string text) {
    YamlNode scalar = node(YamlNode::Kind::scalar);
    scalar.text = std::move(text);
    return put(std::move(scalar));
  }

  bool put(YamlNode value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.node.kind == YamlNode::Kind::sequence) {
      parent.node.items.push_back(std::move(value));
    } else {
      parent.node.entries.push_back({std::move(parent.key), where_, std::move(value)});
    }
    return true;
  }

  bool open(YamlNode::Kind kind) {
    if (open_.size() >= kMaxYamlDepth)
      fail(fmt::format("nested deeper than {} levels", kMaxYamlDepth));
    open_.push_back({node(kind), {}});
    return true;
  }

  bool close() {
    YamlNode done = std::move(open_.back().node);
    open_.pop_back();
    return put(std::move(done));
  }

  YamlWhere where_;
  YamlNode root_;
  std::vector<Open> open_;
};

}  // namespace

YamlNode parse_json_tree(std::string_view text, const YamlWhere& where) {
  TreeBuilder builder(where);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace diptych
