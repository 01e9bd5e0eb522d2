#include "lib/request/output_names.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/frame_names.h"
#include "lib/base/messages.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct Pattern {
  std::string before, after;
  int digits = 0;
  bool numbered = true;  // false: one result, `before` is its name
  std::string fill(std::int64_t index) const {
    return numbered ? fmt::format("{}{:0{}}{}", before, index, digits, after) : before;
  }
};

// ".png, .jpg or .webp"
std::string one_of(const Extensions& extensions) {
  const std::span<const std::string_view> all(extensions);
  if (all.size() == 1) return std::string(all.front());
  return fmt::format("{} or {}", fmt::join(all.first(all.size() - 1), ", "), all.back());
}

// The digits of a number's place, "d" or "03d", and what follows it; nothing where there is none.
std::optional<std::pair<int, std::string_view>> parse_place(std::string_view text) {
  const std::size_t end = text.find('d');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view width = text.substr(0, end);
  int digits = 0;
  const auto [rest, error] = std::from_chars(width.data(), width.data() + width.size(), digits);
  const bool number = error == std::errc{} && rest == width.data() + width.size() && digits <= 9;
  if (!width.empty() && !(number && width[0] == '0')) return std::nullopt;
  return std::pair(digits, text.substr(end + 1));
}

// "a-%03d.png" -> {"a-", ".png", 3}; "5%%.png" -> {"5%.png"} without a number.
Pattern parse_pattern(const std::string& name, const Subject& where) {
  Pattern pattern = {"", "", 0, false};
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t percent = std::min(rest.find('%'), rest.size());
    std::string& part = pattern.numbered ? pattern.after : pattern.before;
    part += rest.substr(0, percent);
    rest.remove_prefix(percent);
    if (rest.empty()) break;
    rest.remove_prefix(1);
    if (rest.starts_with('%')) {
      part += '%';
      rest.remove_prefix(1);
      continue;
    }
    const auto place = parse_place(rest);
    if (!place || pattern.numbered)
      throw where.error("{} is no pattern; expected one number such as %d or %03d (%% is a %)",
                        in_quotes(name));
    std::tie(pattern.digits, rest) = *place;
    pattern.numbered = true;
  }
  return pattern;
}

Pattern choose_pattern(const fs::path& output, std::int64_t count, const Extensions& extensions,
                       const Subject& where) {
  require_extension(output, extensions, where);
  const Pattern pattern = parse_pattern(output.filename().string(), where);
  if (pattern.numbered || count == 1) return pattern;
  const fs::path name = pattern.before;
  return {name.stem().string() + "-", name.extension().string(), 3};
}

std::vector<fs::path> fill(const fs::path& folder, const Pattern& pattern, std::int64_t count) {
  std::vector<fs::path> paths;
  for (std::int64_t i = 0; i < count; ++i) paths.push_back(folder / pattern.fill(i));
  return paths;
}

// The partial file beside a result has a shorter name, so only the last rename would fail.
void require_short_name(const fs::path& path, const Subject& where) {
  const std::size_t bytes = path.filename().native().size();
  if (bytes <= NAME_MAX) return;
  throw where.error("{}: a name of {} bytes; expected at most {}", shortened(path.string()), bytes,
                    NAME_MAX);
}

}  // namespace

void require_makable(const fs::path& folder, const Setting& setting) {
  std::error_code ignored;
  fs::path place = fs::absolute(folder);
  while (!fs::exists(place, ignored) && place.has_relative_path()) place = place.parent_path();
  if (fs::is_directory(place, ignored) && access(place.c_str(), W_OK | X_OK) == 0) return;
  throw InputError(setting, "{}: cannot be made in {}", folder.string(), place.string());
}

Extensions result_extensions(MediaKind makes, std::optional<ResultFormat> format) {
  switch (makes) {
    case MediaKind::picture:
      if (const auto picture = picture_format(format)) {
        const auto& extensions = facts_of(*picture).extensions;
        return {extensions.begin(), extensions.end()};
      }
      return written_extensions();
    case MediaKind::clip:
      if (const auto clip = clip_format(format)) return {facts_of(*clip).extension};
      return written_clip_extensions();
    case MediaKind::text:
      if (format == ResultFormat::json) return {kJsonExtension};
      return {".txt", kJsonExtension};
  }
  throw std::logic_error("a kind of result without an extension");
}

PictureFormat picture_format_of(const Options& options) {
  if (const auto format = picture_format(options.format)) return *format;
  const auto named = format_of_name(options.output);
  return named && facts_of(*named).max_side > 0 ? *named : PictureFormat::png;
}

ClipFormat clip_format_of(const Options& options) {
  if (const auto format = clip_format(options.format)) return *format;
  if (const auto named = clip_format_of_name(options.output)) return *named;
  const auto formats = clip_formats();
  return std::ranges::find(formats, true, &ClipFormatFacts::built_in)->format;
}

EncodingFacts encoding_facts(const Options& options) {
  if (options.run.makes == MediaKind::clip) {
    const ClipFormatFacts& facts = facts_of(clip_format_of(options));
    return {facts.name,     facts.library,    facts.built_in,    facts.max_side,
            facts.max_rate, facts.even_sides, facts.has_quality, facts.crf};
  }
  const PictureFormatFacts& facts = facts_of(picture_format_of(options));
  return {.name = facts.name,
          .library = facts.library,
          .built_in = facts.built_in,
          .max_side = facts.max_side,
          .has_quality = facts.has_quality};
}

void require_extension(const fs::path& name, const Extensions& extensions, const Subject& where) {
  std::string found = name.extension().string();
  std::ranges::transform(found, found.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::ranges::find(extensions, found) != extensions.end()) return;
  std::string problem =
      found.empty() ? "has no extension" : "unknown extension " + in_quotes(found);
  const auto named_as = [&](const auto& facts, std::string_view what) {
    problem = facts.built_in ? fmt::format("is named as a {}", what)
                             : fmt::format("this build does not write {} (it is without {})",
                                           facts.name, facts.library);
  };
  const auto format = format_of_name(name);
  const auto clip = clip_format_of_name(name);
  if (format && facts_of(*format).max_side > 0) {
    named_as(facts_of(*format), fmt::format("{} file", facts_of(*format).name));
  } else if (clip) {
    named_as(facts_of(*clip), fmt::format("video ({})", facts_of(*clip).name));
  }
  throw where.error("{}: {}; expected {}", name.string(), problem, one_of(extensions));
}

fs::path trace_file(const fs::path& name, const fs::path& base) {
  if (name.empty()) return name;
  std::error_code ignored;
  const bool folder = !name.has_extension() || fs::is_directory(base / name, ignored);
  return folder ? name / kTraceName : name;
}

std::string numbered_name(std::size_t number) {
  return fmt::format("{:04}", number);
}

void probe_output(const fs::path& path) {
  if (clip_format_of_name(path) != ClipFormat::png) {
    AtomicFile{path};
    return;
  }
  require_place_for_frames(path);
  const fs::path beside = partial_path(path);
  if (mkdir(beside.c_str(), 0777) != 0 && errno != EEXIST)
    throw InputError("{}: cannot be written: {}", path.string(), std::strerror(errno));
  std::error_code ignored;
  fs::remove(beside, ignored);
}

void require_writable(const fs::path& path, const Subject& where) {
  require_short_name(path, where);
  about(where, [&] { probe_output(path); });
}

void check_relative_name(const fs::path& name, const Subject& where) {
  if (name.native().find('\0') != std::string::npos) throw where.error("a name with a NUL");
  const bool climbs = std::ranges::find(name, fs::path("..")) != name.end();
  if (name.is_absolute() || climbs || !name.has_filename() || name.filename() == ".") {
    throw where.error("{} is no name below the output folder", in_quotes(name.string()));
  }
}

std::vector<fs::path> output_names(const fs::path& name, std::int64_t count,
                                   const Extensions& extensions, const Subject& where) {
  auto names = fill(name.parent_path(), choose_pattern(name, count, extensions, where), count);
  for (const fs::path& each : names) require_short_name(each, where);
  return names;
}

std::vector<fs::path> plan_outputs(const fs::path& name, std::int64_t count,
                                   const Extensions& extensions) {
  const Setting setting = Setting::of("output");
  std::error_code ignored;
  const bool is_frames = clip_format_of_name(name) == ClipFormat::png;
  const fs::path output = is_frames && !name.has_filename() ? name.parent_path() : name;
  // A device or a pipe is one whatever its name ends in; this says so.
  if (fs::is_other(output, ignored)) require_writable(output, setting);
  const bool is_folder = fs::is_directory(output, ignored) && !is_frames;
  const bool no_name = is_folder || output.filename().empty();
  const Pattern pattern = no_name ? Pattern{"", std::string(extensions.front()), 4}
                                  : choose_pattern(output, count, extensions, setting);
  const fs::path folder = is_folder ? output : output.parent_path();
  if (output.filename().empty() && !fs::exists(folder, ignored)) {
    require_makable(folder, setting);
    return fill(folder, pattern, count);
  }
  if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    throw InputError(
        setting, "{}: {}: {}", output.string(),
        fs::exists(folder, ignored) ? "not a folder" : why_missing(folder, "no such folder"),
        folder.string());
  }
  std::vector<fs::path> paths = fill(folder, pattern, count);
  for (const auto& path : paths) require_writable(path, setting);
  return paths;
}

}  // namespace diptych
