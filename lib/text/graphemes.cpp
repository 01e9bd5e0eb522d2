#include "lib/text/graphemes.h"

#include <cstdint>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/nfc.h"

#if DIPTYCH_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace diptych {
namespace {

bool is_below_marks(const Utf8Character& a, const Utf8Character& b) {
  return a.code_point < kFirstNormalised && b.code_point < kFirstNormalised;
}

#if DIPTYCH_HAVE_UTF8PROC
bool breaks(const Utf8Character& a, const Utf8Character& b, std::int32_t& state) {
  return utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(a.code_point),
                                          static_cast<utf8proc_int32_t>(b.code_point), &state);
}
#else
bool breaks(const Utf8Character& a, const Utf8Character& b, std::int32_t& /*state*/) {
  const char32_t beyond = a.code_point < kFirstNormalised ? b.code_point : a.code_point;
  throw InputError(
      "text has U+{:04X}: this build has no utf8proc, so it takes only code points below U+{:04X}",
      static_cast<std::uint32_t>(beyond), static_cast<std::uint32_t>(kFirstNormalised));
}
#endif

}  // namespace

std::size_t first_cluster_length(std::string_view text) {
  Utf8Character last = utf8_at(text, 0);
  std::size_t length = last.length;
  std::int32_t state = 0;
  while (length < text.size()) {
    const Utf8Character next = utf8_at(text, length);
    const bool ends = is_below_marks(last, next)
                          ? last.code_point != U'\r' || next.code_point != U'\n'
                          : breaks(last, next, state);
    if (ends) break;
    length += next.length;
    last = next;
  }
  return length;
}

}  // namespace diptych
