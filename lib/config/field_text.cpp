#include "lib/config/field_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include <fmt/ranges.h>

namespace diptych {
namespace {

// `or_word`: what else is taken, "" = nothing.
std::string number_text(const YamlNode& node, std::string_view path, std::string_view or_word) {
  const bool number = node.kind == YamlNode::Kind::scalar && node.plain;
  if (number) return node.text;
  const bool is_text = node.kind == YamlNode::Kind::scalar;
  yaml_error(node.where, path,
             fmt::format("expected a number{}{}, found {}{}", or_word.empty() ? "" : " or ",
                         or_word, is_text ? "the text " : "", node.description()));
}

std::filesystem::path beside(const std::filesystem::path& file, const std::filesystem::path& path) {
  return (file.parent_path() / path).lexically_normal();
}

bool is_number(std::string_view text) {
  double value = 0;  // "nan" and "inf" are words
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::invalid_argument && end == text.data() + text.size() &&
         std::ranges::any_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The one word that a field of a number takes instead; "" where there is none.
std::string_view word_of(const Field& field) {
  if (std::holds_alternative<SeedSlot>(field.slot)) return kRandomSeed;
  return std::holds_alternative<FreeWholeSlot>(field.slot) ? kUnset : "";
}

bool takes_number(const Field& field) {
  return std::holds_alternative<WholeSlot>(field.slot) ||
         std::holds_alternative<RealSlot>(field.slot) || !word_of(field).empty();
}

// [LO, HI], or the flag's text "LO,HI".
std::string interval_text(const YamlNode& node, std::string_view path) {
  if (node.kind == YamlNode::Kind::scalar && !node.plain) return node.text;
  if (node.kind != YamlNode::Kind::sequence || node.items.size() != 2) {
    yaml_error(node.where, path, fmt::format("expected [LO, HI], found {}", node.description()));
  }
  return number_text(node.items[0], path, "") + "," + number_text(node.items[1], path, "");
}

// Of JSON true and false; of YAML also its other words for them.
std::string truth_text(const YamlNode& node, std::string_view path) {
  static constexpr std::array<std::string_view, 6> kWords = {"true", "false", "yes",
                                                             "no",   "on",    "off"};
  const bool is_scalar = node.kind == YamlNode::Kind::scalar;
  if (is_scalar && node.plain && std::ranges::find(kWords, node.text) != kWords.end())
    return node.text;
  yaml_error(node.where, path,
             fmt::format("expected true or false, found {}{}",
                         is_scalar && !node.plain ? "the text " : "", node.description()));
}

// A text, or a list of them. Files are relative to the stage config's folder.
std::string added_weights_list(const AddedWeightsSlot& slot, const YamlNode& node,
                               std::string_view path) {
  const bool is_one = node.kind == YamlNode::Kind::scalar;
  if (!is_one && node.kind != YamlNode::Kind::sequence)
    yaml_error(node.where, path, fmt::format("expected a list, found {}", node.description()));
  std::string texts;
  const auto add = [&](const YamlNode& each) {
    const std::string all = scalar_text(each, path);
    for (const std::string_view text : split_list(all)) {
      AddedWeights added =
          parse_added_weights(text, slot.parts, fmt::format("{}: {}", each.where.text(), path));
      if (each.where.in_file()) added.file = beside(*each.where.source, added.file);
      texts += (texts.empty() ? "" : ";") + added_weights_text(added);
    }
  };
  if (is_one) {
    add(node);
  } else {
    for (const YamlNode& each : node.items) add(each);
  }
  return texts;
}

}  // namespace

std::string scalar_text(const YamlNode& node, std::string_view path) {
  if (node.kind != YamlNode::Kind::scalar) {
    yaml_error(node.where, path, fmt::format("expected a text, found {}", node.description()));
  }
  return node.text;
}

std::string written_text(const YamlNode& node, std::string_view path) {
  std::string text = scalar_text(node, path);
  if (!node.plain) return text;
  const bool number = is_number(text);
  if (number || text == "true" || text == "false") {
    yaml_error(node.where, path,
               fmt::format("expected a text, found {}{}", number ? "the number " : "", text));
  }
  return text;
}

std::string path_text(const YamlNode& node, std::string_view path) {
  std::string text = scalar_text(node, path);
  if (text.empty() || !node.where.in_file()) return text;
  return beside(*node.where.source, text).string();
}

std::string field_text(const Field& field, const YamlNode& node, std::string_view path) {
  const auto* list = std::get_if<TextListSlot>(&field.slot);
  if (list != nullptr && node.kind == YamlNode::Kind::sequence) {
    std::vector<std::string> texts;
    for (const YamlNode& text : node.items)
      texts.push_back(list->exact ? written_text(text, path) : scalar_text(text, path));
    return list->exact ? list_text(texts) : fmt::format("{}", fmt::join(texts, ";"));
  }
  if (list != nullptr && list->exact) return written_text(node, path);
  if (std::holds_alternative<IntervalSlot>(field.slot)) return interval_text(node, path);
  if (std::holds_alternative<BoolSlot>(field.slot)) return truth_text(node, path);
  if (const auto* added = std::get_if<AddedWeightsSlot>(&field.slot))
    return added_weights_list(*added, node, path);
  const std::string_view word = word_of(field);
  const bool is_word = !word.empty() && node.kind == YamlNode::Kind::scalar && node.text == word;
  if (takes_number(field) && !is_word) return number_text(node, path, word);
  return std::holds_alternative<PathSlot>(field.slot) ? path_text(node, path)
                                                      : scalar_text(node, path);
}

}  // namespace diptych
