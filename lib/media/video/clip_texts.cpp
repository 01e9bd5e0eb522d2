#include "lib/media/video/clip_texts.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/utf8.h"

namespace diptych {
namespace {

constexpr std::string_view kRecord = "diptych", kParameters = "parameters";
constexpr std::string_view kComment = "comment", kDescription = "description";
// What libav shows among the tags, but muxers write unasked.
constexpr std::array<std::string_view, 4> kOfTheContainer = {"major_brand", "minor_version",
                                                             "compatible_brands", "encoder"};

// A JSON object with a schema of this program; else null.
nlohmann::json parse_record(const std::string& text) {
  if (!text.starts_with('{')) return nullptr;
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return nullptr;
  const auto schema = json.find("schema");
  const bool own = schema != json.end() && schema->is_string() &&
                   schema->get_ref<const std::string&>().starts_with("diptych.");
  return own ? json : nullptr;
}

const std::string& checked(const std::pair<std::string, std::string>& text) {
  about(Subject("text '" + text.first + "'"), [&] { check_utf8(text.second); });
  if (text.second.find('\0') != std::string::npos)
    throw InputError("text '{}': holds NUL, which a clip cannot", text.first);
  return text.second;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// As pictures have them: the parameters, the record, and what others have written.
PictureTexts ordered(PictureTexts texts) {
  std::ranges::stable_sort(texts, {}, [](const auto& text) {
    return text.first == kParameters ? 0 : text.first == kRecord ? 1 : 2;
  });
  return texts;
}

}  // namespace

ClipTags clip_tags(const PictureTexts& texts) {
  ClipTags tags;
  for (const auto& text : texts) {
    const auto& [keyword, value] = text;
    if (keyword != kRecord && keyword != kParameters)
      throw InputError("text '{}': a clip holds {} and {}", keyword, kRecord, kParameters);
    tags.emplace_back(keyword == kRecord ? kComment : kDescription, checked(text));
  }
  return tags;
}

PictureTexts texts_of_tags(const ClipTags& tags) {
  PictureTexts texts;
  bool record = false;
  for (const auto& [key, value] : tags) {
    if (std::ranges::find(kOfTheContainer, key) != kOfTheContainer.end()) continue;
    texts.emplace_back(lower_case(key), replace_invalid_utf8(value));
    auto& [keyword, text] = texts.back();
    if (keyword != kComment || parse_record(text).is_null()) continue;
    keyword = kRecord;
    record = true;
  }
  for (auto& [keyword, text] : texts) {
    if (record && keyword == kDescription) keyword = kParameters;
  }
  return ordered(std::move(texts));
}

std::vector<std::string> gif_comments(const PictureTexts& texts) {
  std::vector<std::string> comments;
  for (const auto& [key, value] : clip_tags(texts)) {
    comments.insert(key == kComment ? comments.end() : comments.begin(), value);
  }
  return comments;
}

PictureTexts texts_of_comments(const std::vector<std::string>& comments) {
  ClipTags tags;
  for (const std::string& comment : comments) tags.emplace_back(kComment, comment);
  PictureTexts texts = texts_of_tags(tags);
  const bool record = std::ranges::any_of(texts, [](const auto& t) { return t.first == kRecord; });
  for (auto& [keyword, text] : texts) {
    if (record && keyword == kComment) keyword = kParameters;
  }
  return ordered(std::move(texts));
}

std::optional<FrameRate> recorded_rate(const PictureTexts& texts) {
  const auto found = std::ranges::find(texts, kRecord, [](const auto& text) { return text.first; });
  if (found == texts.end()) return std::nullopt;
  const nlohmann::json record = parse_record(found->second);
  if (record.is_null() || !record.contains("frames") || !record.contains("fps"))
    return std::nullopt;
  const nlohmann::json& rate = record["fps"];
  return parse_frame_rate(rate.is_string() ? rate.get<std::string>() : rate.dump());
}

}  // namespace diptych
