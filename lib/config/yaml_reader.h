// Strict reading of small YAML files. A file becomes a tree that knows the line and column of every
// key and value; a YamlReader then takes one map of it key by key and refuses what nobody asked
// for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

// A place in a file (column 0: the whole line), or, with line 0, another source such as "--set".
struct YamlWhere {
  std::shared_ptr<const std::string> source;
  int line = 0, column = 0;  // from 1
  bool in_file() const { return line > 0; }
  std::string text() const;  // "bagel.yaml:3:5", "--set"
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { null, scalar, sequence, map };
  Kind kind = Kind::null;
  bool plain = true;  // a scalar without quotes
  std::string text;   // of a scalar
  YamlWhere where;
  std::vector<YamlNode> items;     // of a sequence
  std::vector<YamlEntry> entries;  // of a map, in file order, keys unique

  const YamlEntry* find(std::string_view key) const;
  YamlEntry* find(std::string_view key);
  bool empty() const;               // null, "", [] or {}
  std::string description() const;  // "'abc'", "a list", "a map", "nothing"
};

struct YamlEntry {
  std::string key;
  YamlWhere where;  // of the key
  YamlNode value;
};

struct YamlLimits {  // those of a configuration
  std::size_t bytes = std::size_t{1} << 20;
  std::size_t nodes = 20'000;  // aliases counted as what they stand for
};
constexpr std::size_t kMaxYamlDepth = 64;

// Files are UTF-8 without NUL, hold one document within the limits, scalar keys that do not repeat,
// and no tags. Anything else throws InputError "<source>:LINE:COLUMN: ...".
YamlNode parse_yaml(const std::string& text, std::string source, YamlLimits limits = {});
YamlNode load_yaml(const std::filesystem::path& file, YamlLimits limits = {});

// Throws InputError "<where>: <path>: <message>".
[[noreturn]] void yaml_error(const YamlWhere& where, std::string_view path,
                             std::string_view message);

// One map, read key by key. `path` is its place in the file ("stages.1"), "" for the whole file.
class YamlReader {
 public:
  // Throws InputError where `map` is not a map.
  YamlReader(const YamlNode& map, std::string path);
  const YamlNode* optional(std::string_view key);  // null where the key is missing
  const YamlNode& required(std::string_view key);  // throws InputError where it is missing
  // A key that others know and this version cannot serve: passes where it is missing, empty or one
  // of `off` ("1|none"), throws InputError with the reason otherwise.
  void refuse(std::string_view key, std::string_view off, std::string_view why);
  bool asked_for(std::string_view key) const;  // by optional() or required()
  void finish() const;  // throws InputError for the first key that was not asked for
  std::string path_of(std::string_view key) const;
  const YamlNode& node() const { return map_; }

 private:
  const YamlNode& map_;
  std::string path_;
  std::vector<std::string_view> known_;  // offered in messages
  std::vector<std::string_view> refused_;
};

}  // namespace diptych
