#include "apps/diptych/inspect/media.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "apps/diptych/record/recorded_text.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/config/words.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/tensor/trace.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

// An object or list where the text is one in JSON, else the text.
Json parsed_text(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_object() || value.is_array() ? value : Json(text);
}

// The entries that match, by their names. A keyword that is there more than once, which PNG for one
// allows, has a list of its values.
Json matching_texts(const PictureTexts& all, const MediaToInspect& media) {
  Json texts = Json::object();
  std::set<std::string> repeated;
  for (const auto& [keyword, text] : all) {
    if (!glob_matches(media.filter, keyword)) continue;
    Json value = parsed_text(text);
    if (!texts.contains(keyword)) {
      texts[keyword] = std::move(value);
      continue;
    }
    Json& known = texts[keyword];
    if (repeated.insert(keyword).second) known = Json::array({std::move(known)});
    known.push_back(std::move(value));
  }
  require_match(media.path, media.filter, texts.size(), "text entries");
  return texts;
}

void print_texts(const Json& texts) {
  for (const auto& [keyword, value] : texts.items()) {
    fmt::print("{}:\n{}\n", printable(keyword),
               printable_lines(value.is_string() ? value.get<std::string>() : dump(value)));
  }
}

Json or_null(const auto& value) {
  return value ? Json(*value) : Json();
}

// The container's word where it has one; else the packets, so that nothing is decoded.
std::int64_t frames_of(const std::filesystem::path& path, const ClipFacts& facts) {
  return facts.frames ? *facts.frames : count_clip_packets(path);
}

// Throws as the reader of the frames would, so that a damaged clip does not look like a whole one.
// Frames are decoded for that where it takes a second or so; of a longer clip the packets are read.
void require_whole(const std::filesystem::path& path, const ClipFacts& facts, std::int64_t frames) {
  constexpr std::int64_t kMostFrames = 2000, kMostPixels = std::int64_t{1} << 30;
  constexpr ClipLimits kAnyLength{.max_frames = std::numeric_limits<std::int64_t>::max()};
  const std::int64_t pixels = std::max<std::int64_t>(facts.size.width * facts.size.height, 1);
  if (frames <= std::min(kMostFrames, kMostPixels / pixels)) {
    ClipReader clip(path, kAnyLength);
    while (clip.next()) {
    }
  } else {
    count_clip_packets(path, kAnyLength);
  }
}

}  // namespace

std::string printable_lines(std::string_view text) {
  return printable(text, "\n\t");
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

void require_match(const std::filesystem::path& path, const std::string& filter,
                   std::size_t matches, std::string_view things) {
  if (matches > 0 || filter == kEveryEntry) return;
  throw InputError(Setting::of("filter"), "{} matches none of the {} of {}", in_quotes(filter),
                   things, path.string());
}

int inspect_picture(const MediaToInspect& media) {
  const auto [image, format] = read_picture(media.path);
  Json texts = matching_texts(image.text, media);
  const std::string file = media.path.string();
  if (media.json) {
    const Json all = {{"file", file},
                      {"format", facts_of(format).name},
                      {"width", image.rgb.size(1)},
                      {"height", image.rgb.size(0)},
                      {"text", std::move(texts)}};
    fmt::print("{}\n", dump(all));
    return 0;
  }
  fmt::print("{}: {}, {}x{}, {}\n", printable(file), facts_of(format).name, image.rgb.size(1),
             image.rgb.size(0), counted(texts.size(), "text entry", "text entries"));
  print_texts(texts);
  return 0;
}

int inspect_recorded_text(const MediaToInspect& media) {
  const RecordedText recorded = read_recorded_text(media.path);
  Json texts = matching_texts(recorded.texts, media);
  const std::string file = media.path.string();
  if (media.json) {
    const Json all = {
        {"file", file}, {"format", "JSON"}, {"answer", recorded.text}, {"text", std::move(texts)}};
    fmt::print("{}\n", dump(all));
    return 0;
  }
  fmt::print("{}: JSON, an answer of {}, {}\n", printable(file),
             counted(recorded.text.size(), "byte"),
             counted(texts.size(), "text entry", "text entries"));
  fmt::print("answer:\n{}\n", printable_lines(recorded.text));
  print_texts(texts);
  return 0;
}

int inspect_clip(const MediaToInspect& media) {
  const ClipFacts facts = ClipReader(media.path).facts();
  Json texts = matching_texts(facts.texts, media);
  const std::string file = media.path.string();
  const std::int64_t frames = frames_of(media.path, facts);
  require_whole(media.path, facts, frames);
  const auto rate =
      facts.average_rate ? std::optional(frame_rate_text(*facts.average_rate)) : std::nullopt;
  if (media.json) {
    const Json all = {{"file", file},
                      {"format", facts.format},
                      {"codec", facts.codec},
                      {"pixels", facts.pixels},
                      {"width", facts.size.width},
                      {"height", facts.size.height},
                      {"orientation", facts.orientation},
                      {"frames", frames},
                      {"fps", or_null(rate)},
                      {"seconds", or_null(facts.seconds)},
                      {"text", std::move(texts)}};
    fmt::print("{}\n", dump(all));
    return 0;
  }
  fmt::print("{}: {} {}, {}x{}, {}{}{}, {}\n", printable(file), printable(facts.codec),
             facts.pixels, facts.size.width, facts.size.height,
             counted(static_cast<std::size_t>(frames), "frame"),
             rate ? fmt::format(", {} fps", *rate) : "",
             facts.seconds ? fmt::format(", {:.3f} s", *facts.seconds) : "",
             counted(texts.size(), "text entry", "text entries"));
  print_texts(texts);
  return 0;
}

}  // namespace diptych
