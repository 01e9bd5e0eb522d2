#include "apps/diptych/compare/files.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/config/result_formats.h"
#include "lib/config/words.h"
#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"

namespace diptych {

namespace fs = std::filesystem;

namespace {

std::string words_of(const fs::path& answer) {
  if (!is_named_json(answer)) return read_text_file(answer);
  const nlohmann::json json = read_json_object(answer);
  const auto text = json.find("text");
  if (text == json.end() || !text->is_string())
    throw InputError("{}: has no text under \"text\"; expected an answer", answer.string());
  return text->get<std::string>();
}

// With its end, which may be all that differs.
std::string line_from(const std::string& text, std::size_t begin) {
  const std::size_t end = text.find('\n', begin);
  return text.substr(begin, end == std::string::npos ? end : end + 1 - begin);
}

}  // namespace

std::optional<Setting> CompareOptions::picture_gate() const {
  const std::string_view name = gates.first();  // the last of them is one of traces, too
  return name.empty() || name == "min_cosine" ? std::nullopt : std::optional(Setting::of(name));
}

std::optional<Setting> CompareOptions::trace_gate() const {
  if (!tolerances.empty()) return Setting::of("tolerance");
  return case_file.empty() ? std::nullopt : std::optional(Setting::of("case"));
}

CompareKind kind_of(const fs::path& path) {
  std::error_code error;
  const bool is_there = fs::exists(path, error);
  if (error) throw InputError("{}: cannot be read: {}", path.string(), error.message());
  if (!is_there) throw InputError("{}: {}", path.string(), why_missing(path, "not found"));
  if (path.extension() == ".safetensors" && !fs::is_directory(path)) return CompareKind::trace;
  if (is_clip(path)) return CompareKind::clip;
  if (fs::is_directory(path)) return CompareKind::folder;
  if (format_of_name(path) || picture_format(read_file_bytes(path))) return CompareKind::picture;
  throw InputError("{}: expected a picture ({}), a clip, a .safetensors or a folder", path.string(),
                   readable_pictures());
}

CompareKind common_kind(const fs::path& actual, const fs::path& expected) {
  const CompareKind one = kind_of(actual), other = kind_of(expected);
  if (one == other) return one;
  const auto are = [&](CompareKind first, CompareKind second) {
    return one == first && other == second;
  };
  if (are(CompareKind::clip, CompareKind::folder) || are(CompareKind::folder, CompareKind::clip))
    return CompareKind::clip;
  throw InputError(
      "{} and {}: are of different kinds; expected two pictures, two clips, two traces or two "
      "folders",
      actual.string(), expected.string());
}

CompareReport compare_texts(const fs::path& actual, const fs::path& expected,
                            const CompareOptions& options) {
  const std::string found = words_of(actual), wanted = words_of(expected);
  CompareReport report;
  report.texts = 1;
  report.json["equal"] = found == wanted;
  report.lines.emplace_back("equal");
  if (found == wanted) return report;
  const auto differs = std::ranges::mismatch(found, wanted).in1;
  const auto lines_before = std::count(found.begin(), differs, '\n');
  const std::string before(found.begin(), differs);
  const std::size_t line = before.rfind('\n') + 1;  // 0 in the first line
  // From the word that differs on, and the one before it: a line may be long.
  const auto blank_before = [&](std::size_t at) {
    return at > line ? before.rfind(' ', at - 1) : std::string::npos;
  };
  std::size_t begin = blank_before(before.size());
  if (begin != std::string::npos && begin >= line) begin = blank_before(begin);
  begin = begin == std::string::npos || begin < line ? line : begin + 1;
  report.lines.front() =
      fmt::format("line {}: found {}, expected {}", lines_before + 1,
                  in_quotes(line_from(found, begin)), in_quotes(line_from(wanted, begin)));
  report.json["difference"] = report.lines.front();
  report.pass = !options.any_gate();
  return report;
}

CompareReport compare_files(const fs::path& actual, const fs::path& expected, CompareKind kind,
                            const CompareOptions& options) {
  check_interrupted();
  switch (kind) {
    case CompareKind::trace:
      return compare_trace_files(actual, expected, options);
    case CompareKind::clip:
      return compare_clips(actual, expected, options);
    default:
      return compare_pictures(actual, expected, options);
  }
}

}  // namespace diptych
