#include "lib/config/yaml_reader.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

// Is `word` one of "a|b|c"?
bool is_one_of(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == word) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

std::string spoken(std::string_view choices) {
  std::string text;
  for (const char letter : choices)
    text += letter == '|' ? std::string(" or ") : std::string(1, letter);
  return text;
}

}  // namespace

std::string YamlWhere::text() const {
  if (!in_file()) return *source;
  return column > 0 ? fmt::format("{}:{}:{}", *source, line, column)
                    : fmt::format("{}:{}", *source, line);
}

const YamlEntry* YamlNode::find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, &YamlEntry::key);
  return found == entries.end() ? nullptr : &*found;
}

YamlEntry* YamlNode::find(std::string_view key) {
  return const_cast<YamlEntry*>(std::as_const(*this).find(key));
}

bool YamlNode::empty() const {
  return kind == Kind::null || (text.empty() && items.empty() && entries.empty());
}

std::string YamlNode::description() const {
  switch (kind) {
    case Kind::null:
      return "nothing";
    case Kind::scalar:
      return in_quotes(text);
    case Kind::sequence:
      return "a list";
    case Kind::map:
      return "a map";
  }
  return {};
}

void yaml_error(const YamlWhere& where, std::string_view path, std::string_view message) {
  if (path.empty()) throw InputError("{}: {}", where.text(), message);
  throw InputError("{}: {}: {}", where.text(), path, message);
}

YamlReader::YamlReader(const YamlNode& map, std::string path) : map_(map), path_(std::move(path)) {
  if (map.kind != YamlNode::Kind::map) {
    yaml_error(map.where, path_,
               fmt::format("expected a map of keys, found {}", map.description()));
  }
}

std::string YamlReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const YamlNode* YamlReader::optional(std::string_view key) {
  if (std::ranges::find(known_, key) == known_.end()) known_.push_back(key);
  const YamlEntry* entry = map_.find(key);
  return entry == nullptr ? nullptr : &entry->value;
}

const YamlNode& YamlReader::required(std::string_view key) {
  const YamlNode* found = optional(key);
  if (found == nullptr) {
    std::vector<std::string_view> unasked;
    for (const YamlEntry& entry : map_.entries) {
      if (std::ranges::find(known_, entry.key) == known_.end()) unasked.push_back(entry.key);
    }
    const std::string_view near = nearest_word(key, unasked);
    yaml_error(map_.where, path_,
               fmt::format("key '{}' is missing{}", key,
                           near.empty() ? "" : fmt::format("; found {}", in_quotes(near))));
  }
  return *found;
}

void YamlReader::refuse(std::string_view key, std::string_view off, std::string_view why) {
  refused_.push_back(key);
  const YamlEntry* entry = map_.find(key);
  if (entry == nullptr || entry->value.empty()) return;
  const YamlNode& value = entry->value;
  if (value.kind == YamlNode::Kind::scalar && is_one_of(value.text, off)) return;
  const std::string expected =
      off.empty() ? std::string("remove the key") : fmt::format("expected {}", spoken(off));
  yaml_error(entry->where, path_of(key),
             fmt::format("{} is not supported by this version: {}; {}", value.description(), why,
                         expected));
}

bool YamlReader::asked_for(std::string_view key) const {
  return std::ranges::find(known_, key) != known_.end();
}

void YamlReader::finish() const {
  for (const YamlEntry& entry : map_.entries) {
    const bool asked =
        asked_for(entry.key) || std::ranges::find(refused_, entry.key) != refused_.end();
    if (asked) continue;
    yaml_error(
        entry.where, path_,
        fmt::format("unknown key {}{}", in_quotes(entry.key), suggestion(entry.key, known_)));
  }
}

}  // namespace diptych
