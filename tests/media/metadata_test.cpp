#include "lib/media/metadata.h"

#include <doctest/doctest.h>

#include "lib/media/exif.h"
#include "tests/media/support.h"

namespace {

using namespace diptych;
using namespace std::string_view_literals;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

TEST_CASE("parameters become EXIF's UserComment, as the web UI writes them") {
  // As piexif writes it: big-endian, UNICODE, UTF-16.
  CHECK(make_exif({{"parameters", "a\u00fc\U0001F98A"}, {"other", "x"}}) ==
        bytes_of("MM\0*\0\0\0\x08"
                 "\0\1\x87\x69\0\4\0\0\0\1\0\0\0\x1A\0\0\0\0"
                 "\0\2\x90\0\0\7\0\0\0\4"
                 "0232"
                 "\x92\x86\0\7\0\0\0\x10\0\0\0\x38\0\0\0\0"
                 "UNICODE\0\0a\0\xFC\xD8\x3E\xDD\x8A"sv));
  CHECK(make_exif({{"other", "x"}}).empty());
  const Bytes exif = make_exif({{"parameters", "a\u00fc\U0001F98A\nb"}});
  CHECK(exif_texts(exif) == PictureTexts{{"UserComment", "a\u00fc\U0001F98A\nb"}});
  CHECK(exif_orientation(exif) == 1);
}

TEST_CASE("texts of other programs' EXIF") {
  const Bytes exif = bytes_of(
      "Exif\0\0II*\0\x08\0\0\0"
      "\2\0\x0E\1\2\0\6\0\0\0\x26\0\0\0\x69\x87\4\0\1\0\0\0\x2C\0\0\0\0\0\0\0"
      "a cat\0"
      "\1\0\x86\x92\7\0\x0B\0\0\0\x3E\0\0\0\0\0\0\0"
      "ASCII\0\0\0abc"sv);
  CHECK(exif_texts(exif) == PictureTexts{{"ImageDescription", "a cat"}, {"UserComment", "abc"}});
  for (std::size_t length = 0; length < exif.size(); ++length) {
    CAPTURE(length);
    CHECK(exif_texts(std::span(exif).first(length)).size() <= 1);
  }
}

TEST_CASE("XMP holds every text and gives it back") {
  const PictureTexts texts = {{"parameters", "a <b> & \"c\"\r\n\td"}, {"diptych", "{\u72d0}"}};
  const std::string xmp = make_xmp(texts);
  CHECK(xmp.starts_with("<?xpacket begin=\"\xEF\xBB\xBF\""));
  CHECK(xmp.find("<diptych:parameters>a &lt;b&gt; &amp; \"c\"&#13;\n\td</diptych:parameters>") !=
        std::string::npos);
  CHECK(xmp_texts(xmp) == texts);
  CHECK(xmp_texts(make_xmp({{"k", "a\x01\x1b"}})) == PictureTexts{{"k", "a\uFFFD\uFFFD"}});
}

TEST_CASE("XMP that another program has written anew, or damaged") {
  CHECK(xmp_texts("<diptych:a xml:lang='x'>1&#x72D0;&quot;&apos;</diptych:a >") ==
        PictureTexts{{"a", "1\u72d0\"'"}});
  CHECK(xmp_texts("<diptych:empty/><diptych:b>2</diptych:b>") == PictureTexts{{"b", "2"}});
  CHECK(xmp_texts("<diptych:c>3").empty());
  CHECK(xmp_texts("<diptych:").empty());
  CHECK(xmp_texts("<diptych:d>&nbsp;&#xD800;&#0;&").empty());
  CHECK(xmp_texts("<diptych:d>&nbsp;&#xD800;&#0;&</diptych:d>") ==
        PictureTexts{{"d", "&nbsp;&#xD800;&#0;&"}});
  CHECK(xmp_extension_name(make_xmp_pointer("0123")).starts_with("0123"));
  CHECK(xmp_extension_name("<x/>").empty());
}

TEST_CASE("EXIF adds what XMP does not say") {
  const PictureTexts xmp = {{"parameters", "a"}};
  CHECK(merge_texts(xmp, {{"UserComment", "a"}}) == xmp);
  CHECK(merge_texts(xmp, {{"UserComment", "b"}}) ==
        PictureTexts{{"parameters", "a"}, {"UserComment", "b"}});
}

}  // namespace
