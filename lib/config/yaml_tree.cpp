// From text to the tree of YamlNodes, through yaml-cpp's parser events. Its own node type is not
// used: it accepts repeated keys, keeps no place for keys and expands aliases without limit.
#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/config/words.h"
#include "lib/config/yaml_reader.h"

namespace diptych {
namespace {

struct Extent {
  std::size_t nodes = 1, depth = 1;
};

Extent extent(const YamlNode& node) {
  Extent total;
  const auto add = [&](const YamlNode& child) {
    const Extent inner = extent(child);
    total.nodes += inner.nodes;
    total.depth = std::max(total.depth, inner.depth + 1);
  };
  for (const YamlNode& item : node.items) add(item);
  for (const YamlEntry& entry : node.entries) add(entry.value);
  return total;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::shared_ptr<const std::string> source, std::size_t max_nodes)
      : source_(std::move(source)), max_nodes_(max_nodes) {}
  YamlNode take() { return std::move(root_); }
  // Of the last scalar, where it may be in quotes.
  const YamlWhere& last_quoted() const { return last_quoted_; }

  void OnDocumentStart(const YAML::Mark& mark) override { root_.where = place(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    put(node(YamlNode::Kind::null, mark), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    YamlNode scalar = node(YamlNode::Kind::scalar, mark);
    scalar.plain = tag != "!";  // yaml-cpp's mark of quoted and block scalars
    last_quoted_ = scalar.plain ? YamlWhere{} : scalar.where;
    scalar.text = value;
    put(std::move(scalar), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "an alias inside its own anchor");
    const Extent size = extent(found->second);
    count(mark, size.nodes);
    check_depth(mark, open_.size() + size.depth);
    put(found->second, YAML::NullAnchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open_.push_back({node(YamlNode::Kind::sequence, mark), anchor, std::nullopt});
    check_depth(mark, open_.size());
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open_.push_back({node(YamlNode::Kind::map, mark), anchor, std::nullopt});
    check_depth(mark, open_.size());
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    std::optional<YamlEntry> entry;  // its key has been read, its value has not
  };

  YamlWhere place(const YAML::Mark& mark) const {
    return {source_, mark.line + 1, mark.column + 1};
  }

  [[noreturn]] void fail(const YAML::Mark& mark, std::string_view message) const {
    throw InputError("{}: {}", place(mark).text(), message);
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    fail(mark, fmt::format("tags such as {} are not supported", in_quotes(tag)));
  }

  void count(const YAML::Mark& mark, std::size_t nodes) {
    nodes_ += nodes;
    if (nodes_ > max_nodes_) {
      fail(mark,
           fmt::format("more than {} values (aliases counted as what they stand for)", max_nodes_));
    }
  }

  void check_depth(const YAML::Mark& mark, std::size_t depth) const {
    if (depth > kMaxYamlDepth)
      fail(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
  }

  YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark) {
    count(mark, 1);
    YamlNode made;
    made.kind = kind;
    made.where = place(mark);
    return made;
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    put(std::move(done.node), done.anchor);
  }

  // Where a finished node belongs: the anchors, then the open list or map, or the document.
  void put(YamlNode value, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      nodes_ += extent(value).nodes;
      anchors_[anchor] = value;
    }
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.node.kind == YamlNode::Kind::sequence) {
      parent.node.items.push_back(std::move(value));
    } else if (!parent.entry) {
      parent.entry = start_entry(parent.node, std::move(value));
    } else {
      // Of a value that is left out yaml-cpp marks what comes next.
      const YamlWhere& key = parent.entry->where;
      if (value.kind == YamlNode::Kind::null && value.where.line > key.line) value.where = key;
      parent.entry->value = std::move(value);
      parent.node.entries.push_back(*std::exchange(parent.entry, std::nullopt));
    }
  }

  YamlEntry start_entry(const YamlNode& map, YamlNode key) const {
    if (key.kind != YamlNode::Kind::scalar) {
      throw InputError("{}: a key is {}, expected a name", key.where.text(), key.description());
    }
    if (const YamlEntry* first = map.find(key.text)) {
      throw InputError("{}: duplicate key {}, first at line {}", key.where.text(),
                       in_quotes(key.text), first->where.line);
    }
    return {std::move(key.text), std::move(key.where), {}};
  }

  std::shared_ptr<const std::string> source_;
  std::size_t max_nodes_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  std::size_t nodes_ = 0;
  YamlWhere last_quoted_;
};

// Is a quoted scalar at the start of `text`, behind its anchor, left open? False for other scalars.
bool is_left_open(std::string_view text) {
  while (text.starts_with('&') || text.starts_with('!') || text.starts_with(' ')) {
    const std::size_t end = text.starts_with(' ') ? 1 : text.find_first_of(" \n");
    text.remove_prefix(std::min(end, text.size()));
  }
  if (!text.starts_with('\'') && !text.starts_with('"')) return false;
  const char quote = text.front();
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      const bool doubled = quote == '\'' && i + 1 < text.size() && text[i + 1] == quote;
      if (!doubled) return false;
      ++i;
    }
  }
  return true;
}

// yaml-cpp takes a text without its closing quote up to the end of the file.
void check_last_quote(std::string_view text, const YamlWhere& where) {
  if (!where.in_file()) return;
  for (int line = 1; line < where.line; ++line) text.remove_prefix(text.find('\n') + 1);
  text.remove_prefix(std::min(static_cast<std::size_t>(where.column - 1), text.size()));
  if (!is_left_open(text)) return;
  throw InputError("{}: broken YAML: the quote is never closed", where.text());
}

void check_text(const std::string& text, const std::string& source, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    throw InputError("{}: larger than {} MiB, which no such file is", source, max_bytes >> 20);
  }
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (!character.valid || character.code_point == 0) {
      const auto line =
          1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n');
      const std::size_t start = i == 0 ? std::string::npos : text.rfind('\n', i - 1);
      const std::size_t column = start == std::string::npos ? i + 1 : i - start;
      throw InputError("{}:{}:{}: {}", source, line, column,
                       character.valid ? "a NUL character" : "not valid UTF-8");
    }
    i += character.length;
  }
}

}  // namespace

YamlNode parse_yaml(const std::string& text, std::string source, YamlLimits limits) {
  check_text(text, source, limits.bytes);
  const auto shared = std::make_shared<const std::string>(std::move(source));
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    TreeBuilder builder(shared, limits.nodes);
    if (!parser.HandleNextDocument(builder)) {
      YamlNode nothing;
      nothing.where = {shared, 1, 1};
      return nothing;
    }
    TreeBuilder second(shared, limits.nodes);
    if (parser.HandleNextDocument(second)) {
      throw InputError("{}: a second document; expected one", second.take().where.text());
    }
    check_last_quote(text, builder.last_quoted());
    return builder.take();
  } catch (const YAML::Exception& error) {
    const YamlWhere where{shared, error.mark.line + 1, error.mark.column + 1};
    throw InputError("{}: broken YAML: {}", where.text(), error.msg);
  }
}

YamlNode load_yaml(const std::filesystem::path& file, YamlLimits limits) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    throw InputError("{}: is a folder, expected a YAML file", file.string());
  }
  if (std::error_code unknown; !std::filesystem::exists(file, unknown) && !unknown)
    throw InputError("{}: {}", file.string(), why_missing(file));
  return parse_yaml(read_text_start(file, limits.bytes + 1), file.string(), limits);
}

}  // namespace diptych
