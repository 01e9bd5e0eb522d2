#include "lib/text/nfc.h"

#include <cstdint>

#include "lib/base/error.h"
#include "lib/base/utf8.h"

#if DIPTYCH_HAVE_UTF8PROC
#include <algorithm>
#include <vector>

#include <utf8proc.h>
#endif

namespace diptych {

#if DIPTYCH_HAVE_UTF8PROC

namespace {

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

[[noreturn]] void fail(utf8proc_ssize_t code) {
  throw RunError("utf8proc cannot normalise the text: {}", utf8proc_errmsg(code));
}

std::vector<utf8proc_int32_t> decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    utf8proc_int32_t parts[32];  // the longest canonical decomposition has 4
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(character.code_point), parts, 32, kCompose, &boundary);
    if (count < 0 || count > 32) fail(count < 0 ? count : UTF8PROC_ERROR_OVERFLOW);
    code_points.insert(code_points.end(), parts, parts + count);
    i += character.length;
  }
  return code_points;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering (Unicode 3.11, D109). Not left to utf8proc_decompose, whose bubble sort takes
// minutes on a megabyte of marks.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  auto begin = std::find_if(code_points.begin(), code_points.end(), is_mark);
  while (begin != code_points.end()) {
    const auto end = std::find_if_not(begin, code_points.end(), is_mark);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = std::find_if(end, code_points.end(), is_mark);
  }
}

// Composes ordered code points and appends them to `text`. utf8proc swallows U+11A7 behind a Hangul
// syllable as if it were a trailing consonant (those start at U+11A8). Nothing composes with it, so
// it starts a part of its own.
void compose(std::vector<utf8proc_int32_t>& code_points, std::string& text) {
  constexpr utf8proc_int32_t kBeforeTrailing = 0x11A7;
  auto begin = code_points.begin();
  while (begin != code_points.end()) {
    const auto end = std::find(begin + 1, code_points.end(), kBeforeTrailing);
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(&*begin, end - begin, kCompose);
    if (count < 0) fail(count);
    for (auto c = begin; c != begin + count; ++c) append_utf8(text, static_cast<char32_t>(*c));
    begin = end;
  }
}

}  // namespace

std::string to_nfc(std::string_view text) {
  std::vector<utf8proc_int32_t> code_points = decompose(text);
  order_marks(code_points);
  std::string composed;
  composed.reserve(text.size());
  compose(code_points, composed);
  return composed;
}

#else

std::string to_nfc(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (character.code_point >= kFirstNormalised) {
      throw InputError(
          "text has U+{:04X} at byte {}: this build has no utf8proc, so it takes only code points "
          "below U+{:04X}",
          static_cast<std::uint32_t>(character.code_point), i,
          static_cast<std::uint32_t>(kFirstNormalised));
    }
    i += character.length;
  }
  return std::string(text);
}

#endif

}  // namespace diptych
