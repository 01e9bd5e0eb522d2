#include "apps/diptych/record/encoding.h"

#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/request/output_names.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

template <typename Format>
Format read_format(const Json& json, const std::string& where) {
  const auto name = json.at("format").get<std::string>();
  if (const auto format = parse_choice<Format>(name)) return *format;
  throw InputError("{}: encoding: found '{}', expected {}", where, shortened(name),
                   fmt::join(kChoiceNames<Format>, ", "));
}

int read_number(const Json& json, const char* key, int low, int high, const std::string& where) {
  const int found = json.at(key).get<int>();
  if (found < low || found > high)
    throw InputError("{}: {}: found {}, expected {} to {}", where, key, found, low, high);
  return found;
}

constexpr int kMostQuality = 100;

}  // namespace

ClipEncoding clip_encoding(const Options& options, ClipFormat format, FrameRate fps) {
  ClipEncoding encoding;
  encoding.format = format;
  encoding.fps = fps;
  if (const auto& crf = facts_of(format).crf)
    encoding.crf = static_cast<int>(options.crf.value_or(crf->usual));
  if (facts_of(format).has_quality) encoding.quality = static_cast<int>(options.quality);
  return encoding;
}

ResultEncoding encoding_of(const Options& options, const Media& media,
                           const std::filesystem::path& name) {
  if (const auto* clip = std::get_if<Clip>(&media)) {
    const ClipFormat format =
        name.empty() ? clip_format_of(options) : clip_format_of_name(name).value();
    return clip_encoding(options, format, clip->shape.fps);
  }
  if (std::holds_alternative<Text>(media)) return TextEncoding{records_text(options, name)};
  const PictureFormat format =
      name.empty() ? picture_format_of(options) : format_of_name(name).value();
  return PictureEncoding{format, static_cast<int>(options.quality)};
}

bool records_text(const Options& options, const std::filesystem::path& name) {
  if (!options.run.answers()) return false;
  return name.empty() ? options.format == ResultFormat::json : is_named_json(name);
}

bool keeps_pixels(const ResultEncoding& encoding) {
  if (std::holds_alternative<TextEncoding>(encoding)) return true;
  if (const auto* clip = std::get_if<ClipEncoding>(&encoding))
    return facts_of(clip->format).keeps_pixels;
  return !facts_of(std::get<PictureEncoding>(encoding).format).has_quality;
}

bool is_folder(const ResultEncoding& encoding) {
  const auto* clip = std::get_if<ClipEncoding>(&encoding);
  return clip != nullptr && clip->format == ClipFormat::png;
}

ResultFormat format_of(const ResultEncoding& encoding) {
  const auto named = [](const auto& each) {
    return parse_choice<ResultFormat>(name_of(each.format)).value();
  };
  if (const auto* clip = std::get_if<ClipEncoding>(&encoding)) return named(*clip);
  if (const auto* picture = std::get_if<PictureEncoding>(&encoding)) return named(*picture);
  return ResultFormat::json;
}

Json encoding_json(const ResultEncoding& encoding) {
  if (std::holds_alternative<TextEncoding>(encoding)) return nullptr;
  const auto* clip = std::get_if<ClipEncoding>(&encoding);
  if (clip == nullptr) {
    const auto& picture = std::get<PictureEncoding>(encoding);
    if (!facts_of(picture.format).has_quality) return nullptr;
    return {{"format", name_of(picture.format)}, {"quality", picture.quality}};
  }
  Json json = {{"format", name_of(clip->format)}};
  if (clip->crf) json["crf"] = *clip->crf;
  if (facts_of(clip->format).has_quality) json["quality"] = clip->quality;
  return json;
}

ResultEncoding read_picture_encoding(const Json& json, const std::string& where) {
  const auto format = read_format<PictureFormat>(json, where);
  return PictureEncoding{format, read_number(json, "quality", 1, kMostQuality, where)};
}

ResultEncoding read_clip_encoding(const Json& json, FrameRate fps, const std::string& where) {
  ClipEncoding encoding;
  encoding.format = read_format<ClipFormat>(json, where);
  encoding.fps = fps;
  const ClipFormatFacts& facts = facts_of(encoding.format);
  if (facts.crf) encoding.crf = read_number(json, "crf", facts.crf->min, facts.crf->max, where);
  if (facts.has_quality) encoding.quality = read_number(json, "quality", 1, kMostQuality, where);
  return encoding;
}

FrameRate read_rate(const Json& json, const std::string& where) {
  const std::string text = json.is_string() ? json.get<std::string>() : json.dump();
  if (const auto rate = parse_frame_rate(text)) return *rate;
  throw InputError("{}: fps: found '{}', expected a rate", where, shortened(text));
}

}  // namespace diptych
