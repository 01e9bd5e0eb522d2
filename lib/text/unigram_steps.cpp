#include "lib/text/unigram_steps.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/charsmap.h"
#include "lib/text/pre_tokenizer.h"

namespace diptych {
namespace {

using namespace json_node;

bool is_space(const Utf8Character& character) {
  return character_class(character.code_point) == CharacterClass::whitespace;
}

// Bytes of the whitespace at the start.
std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Character character = utf8_at(text, length);
    if (!is_space(character)) break;
    length += character.length;
  }
  return length;
}

// Where the whitespace at the end begins.
std::size_t trailing_space(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    i += character.length;
    if (!is_space(character)) end = i;
  }
  return end;
}

bool flag_of(const Node& node, bool otherwise) {
  if (!node.value || node.value->is_null()) return otherwise;
  if (!node.value->is_boolean()) fail_type(node, "true or false");
  return node.value->get<bool>();
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string replaced;
  for (std::size_t found; (found = text.find(from)) != std::string_view::npos;) {
    replaced += text.substr(0, found);
    replaced += to;
    text.remove_prefix(found + from.size());
  }
  replaced += text;
  return replaced;
}

// The pattern " {2,}".
std::string replace_runs(std::string_view text, std::string_view to) {
  std::string replaced;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find(' '), text.size());
    const std::size_t end = std::min(text.find_first_not_of(' ', begin), text.size());
    replaced += text.substr(0, begin);
    replaced += end - begin < 2 ? text.substr(begin, end - begin) : to;
    text.remove_prefix(end);
  }
  return replaced;
}

NormalizerStep read_strip(const Node& step) {
  const bool left = flag_of(member(step, "strip_left"), true),
             right = flag_of(member(step, "strip_right"), true);
  return [left, right](std::string text) {
    if (right) text.resize(trailing_space(text));
    if (left) text.erase(0, leading_space(text));
    return text;
  };
}

NormalizerStep read_replace(const Node& step) {
  const std::string to = string_of(member(step, "content"));
  const Node pattern = object_of(member(step, "pattern"));
  const Node plain = member(pattern, "String"), regex = member(pattern, "Regex");
  if (plain.value) {
    const std::string from = string_of(plain);
    if (from.empty()) throw InputError("{}: is empty, expected a text", plain.place);
    return [from, to](std::string text) { return replace_all(text, from, to); };
  }
  string_of(regex);
  require_one_of(regex, {" {2,}"}, "a T5 tokenizer");
  return [to](std::string text) { return replace_runs(text, to); };
}

NormalizerStep read_normalizer_step(const Node& step) {
  const Node type = member(step, "type");
  const std::string& name = string_of(type);
  if (name == "Strip") return read_strip(step);
  if (name == "Replace") return read_replace(step);
  require_one_of(type, {"Precompiled", "Strip", "Replace"}, "a T5 tokenizer");
  const Node map = member(step, "precompiled_charsmap");
  return [charsmap = Charsmap::parse(string_of(map), map.place)](std::string text) {
    return charsmap.apply(text);
  };
}

void split_at_whitespace(const Word& word, std::vector<Word>& words) {
  const std::string_view text = word.text;
  for (std::size_t begin = 0; begin < text.size();) {
    begin += leading_space(text.substr(begin));
    std::size_t end = begin;
    while (end < text.size()) {
      const Utf8Character character = utf8_at(text, end);
      if (is_space(character)) break;
      end += character.length;
    }
    if (end > begin)
      words.push_back({std::string(text.substr(begin, end - begin)), word.at_start && begin == 0});
    begin = end;
  }
}

// Spaces become a mark that is part of the word behind it, and the first word gets one, too.
struct Metaspace {
  enum class Prepend { always, first, never };
  std::string mark;
  Prepend prepend = Prepend::always;
  bool split = true;

  void operator()(const Word& word, std::vector<Word>& words) const {
    std::string text = replace_all(word.text, " ", mark);
    const bool wanted = prepend == Prepend::always || (prepend == Prepend::first && word.at_start);
    if (wanted && !text.empty() && !text.starts_with(mark)) text.insert(0, mark);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t next = split ? text.find(mark, begin + 1) : text.size();
      const std::size_t end = std::min(next, text.size());
      words.push_back({text.substr(begin, end - begin), word.at_start && begin == 0});
      begin = end;
    }
  }
};

SplitStep read_metaspace(const Node& step) {
  Metaspace metaspace;
  const Node mark = member(step, "replacement"), scheme = member(step, "prepend_scheme");
  metaspace.mark = string_of(mark);
  if (metaspace.mark.empty() || utf8_at(metaspace.mark, 0).length != metaspace.mark.size())
    throw InputError("{}: found {}, expected one character", mark.place, shown(*mark.value));
  // Files from before prepend_scheme have add_prefix_space alone.
  if (!flag_of(member(step, "add_prefix_space"), true))
    metaspace.prepend = Metaspace::Prepend::never;
  if (scheme.value) {
    require_one_of(scheme, {"always", "first", "never"}, "a T5 tokenizer");
    if (*scheme.value == "first") metaspace.prepend = Metaspace::Prepend::first;
    if (*scheme.value == "never") metaspace.prepend = Metaspace::Prepend::never;
  }
  metaspace.split = flag_of(member(step, "split"), true);
  return metaspace;
}

SplitStep read_split_step(const Node& step) {
  const Node type = member(step, "type");
  const std::string& name = string_of(type);
  if (name == "Metaspace") return read_metaspace(step);
  require_one_of(type, {"Metaspace", "WhitespaceSplit"}, "a T5 tokenizer");
  return split_at_whitespace;
}

// The steps of a Sequence, which are under `list`, or the one step.
template <typename Step>
std::vector<Step> read_steps(const Node& node, const char* list, Step (*read)(const Node&)) {
  if (!node.value || node.value->is_null()) return {};
  const Node type = member(object_of(node), "type");
  if (string_of(type) != "Sequence") return {read(node)};
  const Node steps = array_of(member(node, list));
  std::vector<Step> all;
  for (std::size_t i = 0; i < steps.value->size(); ++i)
    all.push_back(read(object_of(element(steps, i))));
  return all;
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const Node& node) {
  return read_steps(node, "normalizers", read_normalizer_step);
}

std::vector<SplitStep> read_pre_tokenizer(const Node& node) {
  return read_steps(node, "pretokenizers", read_split_step);
}

}  // namespace diptych
