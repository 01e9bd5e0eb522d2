#include "lib/base/frame_rate.h"

#include <doctest/doctest.h>

#include "lib/base/clip_formats.h"

namespace {

using namespace diptych;

TEST_CASE("the ways to write a frame rate") {
  CHECK(parse_frame_rate("24") == FrameRate{24, 1});
  CHECK(parse_frame_rate("12.5") == FrameRate{25, 2});
  CHECK(parse_frame_rate("29.97") == FrameRate{2997, 100});
  CHECK(parse_frame_rate("30000/1001") == FrameRate{30000, 1001});
  CHECK(parse_frame_rate("50/2") == FrameRate{25, 1});
  for (const char* text : {"", "0", "-24", "24.", ".", "1/0", "0/1", "24 ", "24fps", "1e3",
                           "24/1/1", "1000001", "nan", "12.1234567", "+24", "24/-1", "0x18"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_frame_rate(text).has_value());
  }
}

TEST_CASE("a frame rate as text is read back") {
  for (const FrameRate rate : {FrameRate{24, 1}, {25, 2}, {30000, 1001}})
    CHECK(parse_frame_rate(frame_rate_text(rate)) == rate);
  CHECK(frame_rate_text({24, 1}) == "24");
  CHECK(frame_rate_text({30000, 1001}) == "30000/1001");
  CHECK(FrameRate{30000, 1001}.value() == doctest::Approx(29.97).epsilon(1e-4));
}

TEST_CASE("the format of a clip by its name") {
  CHECK(clip_format_of_name("a/b.mp4") == ClipFormat::mp4);
  CHECK(clip_format_of_name("B.WEBM") == ClipFormat::webm);
  CHECK(clip_format_of_name("b.gif") == ClipFormat::gif);
  CHECK(clip_format_of_name("b.webp") == ClipFormat::webp);
  CHECK(clip_format_of_name("a.b/c.frames") == ClipFormat::png);
  CHECK(clip_format_of_name("c.frames/") == ClipFormat::png);
  CHECK_FALSE(clip_format_of_name("c.mp4/").has_value());
  CHECK_FALSE(clip_format_of_name("/").has_value());
  CHECK_FALSE(clip_format_of_name("a.frames/b").has_value());
  CHECK_FALSE(clip_format_of_name("a.png").has_value());
  CHECK_FALSE(clip_format_of_name("a.mkv").has_value());
  for (const ClipFormatFacts& facts : clip_formats()) {
    CHECK(&facts_of(facts.format) == &facts);
    CHECK(parse_choice<ClipFormat>(name_of(facts.format)) == facts.format);
    if (!facts.crf) continue;
    CHECK(facts.crf->min <= facts.crf->usual);
    CHECK(facts.crf->usual <= facts.crf->max);
  }
}

}  // namespace
