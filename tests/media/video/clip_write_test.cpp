// Clips that are written: read back, and held to what ffprobe says of them.
#include "lib/media/video/clip_write.h"

#include <chrono>
#include <thread>

#include "lib/media/file_bytes.h"
#include "lib/media/png.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_texts.h"
#include "tests/media/video/support.h"

namespace {

using namespace diptych;
using namespace diptych::test;
namespace fs = std::filesystem;

const PictureTexts kTexts = {{"parameters", "a cat \u2014 \u732b\nSteps: 50"},
                             {"diptych",
                              "{\"schema\": \"diptych.generate\", \"seed\": 1, \"prompt\": \"<a & "
                              "\\\"b\\\">\", \"long\": \"" +
                                  std::string(6'000, 'x') + "\"}"}};

std::size_t find_box(const std::vector<std::uint8_t>& bytes, const char* name) {
  const std::string text(bytes.begin(), bytes.end());
  return text.find(name);
}

TEST_SUITE_BEGIN("needs libav");

TEST_CASE("an MP4 is what was asked for, as ffprobe sees it") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  const Tensor frames = moving_frames(25, 96, 128);
  const fs::path path = write_clip(folder, "a.mp4", frames, {.fps = {24000, 1001}}, kTexts);
  const Tensor again = read_clip(path);
  REQUIRE(again.sizes() == frames.sizes());
  CHECK(mean_gap(again, frames) < 4);
  const ClipFacts facts = ClipReader(path).facts();
  CHECK(facts.average_rate == FrameRate{24000, 1001});
  CHECK(facts.frames == 25);
  CHECK(facts.texts == kTexts);
  const std::vector<std::uint8_t> bytes = read_file_bytes(path);
  CHECK(find_box(bytes, "moov") < find_box(bytes, "mdat"));
  if (!have_ffmpeg()) return skip(kNoFfmpeg);
  const nlohmann::json probe = ffprobe(path);
  CAPTURE(probe.dump());
  CHECK(probe["codec_name"] == "h264");
  CHECK(probe["pix_fmt"] == "yuv420p");
  CHECK(probe["width"] == 128);
  CHECK(probe["height"] == 96);
  CHECK(probe["nb_frames"] == "25");
  CHECK(probe["nb_read_frames"] == "25");
  CHECK(probe["r_frame_rate"] == "24000/1001");
  CHECK(probe["avg_frame_rate"] == "24000/1001");
  CHECK(probe["color_range"] == "tv");
  CHECK(probe["color_space"] == "bt709");
  CHECK(probe["color_transfer"] == "bt709");
  CHECK(probe["color_primaries"] == "bt709");
  CHECK(probe["chroma_location"] == "left");
  CHECK(probe["format"]["tags"]["comment"] == kTexts[1].second);
  CHECK(probe["format"]["tags"]["description"] == kTexts[0].second);
  CHECK_FALSE(probe["format"]["tags"].contains("creation_time"));
}

TEST_CASE("a WebM is what was asked for, as ffprobe sees it") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  const Tensor frames = moving_frames(12, 96, 128);
  const fs::path path = write_clip(folder, "a.webm", frames, {.fps = {25, 2}}, kTexts);
  const Tensor again = read_clip(path);
  REQUIRE(again.sizes() == frames.sizes());
  CHECK(mean_gap(again, frames) < 5);
  CHECK(ClipReader(path).facts().texts == kTexts);
  if (!have_ffmpeg()) return skip(kNoFfmpeg);
  const nlohmann::json probe = ffprobe(path);
  CAPTURE(probe.dump());
  CHECK(probe["codec_name"] == "vp9");
  CHECK(probe["pix_fmt"] == "yuv420p");
  CHECK(probe["nb_read_frames"] == "12");
  CHECK(probe["r_frame_rate"] == "25/2");
  CHECK(probe["avg_frame_rate"] == "25/2");
  CHECK(probe["color_range"] == "tv");
  CHECK(probe["color_space"] == "bt709");
  CHECK(probe["color_transfer"] == "bt709");
  CHECK(probe["color_primaries"] == "bt709");
}

TEST_CASE("colours survive: BT.709 both ways") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  const int colors[][3] = {{255, 255, 255}, {0, 0, 0},       {255, 0, 0},   {0, 255, 0},
                           {0, 0, 255},     {128, 128, 128}, {200, 30, 90}, {20, 160, 220}};
  Tensor frames = at::empty({8, 32, 32, 3}, at::kByte);
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t c = 0; c < 3; ++c) frames[i].select(2, c).fill_(colors[i][c]);
  }
  for (const char* name : {"a.mp4", "a.webm"}) {
    CAPTURE(name);
    const Tensor again = read_clip(write_clip(folder, name, frames, {.crf = 4}));
    CHECK((again.to(at::kInt) - frames.to(at::kInt)).abs().max().item<int>() <= 4);
  }
}

TEST_CASE("a smaller crf makes a larger and better file") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  const Tensor frames = moving_frames(8, 96, 128);
  for (const std::string kind : {".mp4", ".webm"}) {
    CAPTURE(kind);
    const fs::path fine = write_clip(folder, "fine" + kind, frames, {.crf = 10}),
                   coarse = write_clip(folder, "coarse" + kind, frames, {.crf = 45});
    CHECK(fs::file_size(fine) > fs::file_size(coarse));
    CHECK(mean_gap(read_clip(fine), frames) < mean_gap(read_clip(coarse), frames));
  }
}

TEST_CASE("one frame, and frames of few pixels") {
  if (!have_libav()) return skip(kNoLibav);
  const Folder folder;
  for (const char* name : {"a.mp4", "a.webm"}) {
    CAPTURE(name);
    const Tensor one = read_clip(write_clip(folder, name, moving_frames(1, 2, 4)));
    CHECK(one.sizes() == at::IntArrayRef({1, 2, 4, 3}));
  }
}

TEST_CASE("odd sides are refused, naming the size") {
  if (!have_libav()) return skip(kNoLibav);
  CHECK(message_of([] {
          ClipEncoder({.format = ClipFormat::mp4}, {64, 49});
        }) == "--width: 49 pixels are odd; MP4 needs even sides, expected 48 or 50");
  CHECK(message_of([] {
          ClipEncoder({.format = ClipFormat::webm}, {63, 48});
        }) == "--height: 63 pixels are odd; WebM needs even sides, expected 62 or 64");
}

TEST_CASE("what no encoder takes is refused") {
  if (!have_libav()) return skip(kNoLibav);
  const auto refusal = [](const ClipEncoding& encoding, ImageSize size = {64, 64}) {
    return message_of([&] { require_writable_clip(encoding, size); });
  };
  CHECK(refusal({.fps = {121, 1}}) == "--fps: 121 is out of range; expected 1 to 120 for MP4");
  CHECK(refusal({.fps = {1, 2}}) == "--fps: 1/2 is out of range; expected 1 to 120 for MP4");
  CHECK(refusal({.format = ClipFormat::gif, .fps = {60, 1}}) ==
        "--fps: 60 is out of range; expected 1 to 50 for GIF");
  CHECK(refusal({.crf = 0}) == "--crf: 0 is out of range; expected 1 to 51 for MP4");
  CHECK(refusal({.format = ClipFormat::webm, .crf = 64}) ==
        "--crf: 64 is out of range; expected 0 to 63 for WebM");
  CHECK(refusal({.format = ClipFormat::gif, .crf = 20}) == "--crf: has no meaning for GIF");
  CHECK(refusal({}, {64, 20'000}) == "--width: 20000 pixels, expected 1 to 16384 for MP4");
  CHECK(refusal({}) == "no error");
}

TEST_SUITE_END();

std::vector<std::string> written_kinds() {
  std::vector<std::string> names;
  for (const ClipFormatFacts& facts : clip_formats()) {
    if (facts.built_in && facts.format != ClipFormat::png)
      names.push_back("a" + std::string(facts.extension));
  }
  return names;
}

TEST_CASE("equal frames give equal bytes, however they come") {
  const Tensor frames = moving_frames(40, 64, 96);
  for (const std::string& name : written_kinds()) {
    CAPTURE(name);
    const ClipEncoding encoding{.format = clip_format_of_name(name).value_or(ClipFormat::png)};
    ClipEncoder at_once(encoding, {64, 96}), one_by_one(encoding, {64, 96});
    at_once.add(frames);
    for (std::int64_t i = 0; i < 40; ++i) one_by_one.add(frames[i]);
    const auto first = at_once.finish(kTexts), second = one_by_one.finish(kTexts);
    CHECK(first == second);
  }
}

// Large frames have more threads.
TEST_CASE("large frames give equal bytes, too, and all of them") {
  const Folder folder;
  const Tensor frames = moving_frames(40, 480, 96);
  for (const char* name : {"a.mp4", "b.mp4"}) {
    ClipWriter writer(folder / name, {.format = ClipFormat::mp4}, {480, 96});
    writer.add(frames);
    writer.finish({});
  }
  CHECK(read_file_bytes(folder / "a.mp4") == read_file_bytes(folder / "b.mp4"));
  CHECK(count_clip_frames(folder / "a.mp4") == 40);
}

TEST_CASE("frames may change once they are added") {
  const Folder folder;
  const Tensor frames = moving_frames(20, 16, 16);
  ClipWriter writer(folder / "a", {.format = ClipFormat::png}, {16, 16});
  Tensor reused = at::empty({16, 16, 3}, at::kByte);
  for (std::int64_t i = 0; i < 20; ++i) {
    reused.copy_(frames[i]);
    writer.add(reused);
  }
  writer.finish({});
  CHECK(at::equal(read_clip(folder / "a"), frames));
}

TEST_SUITE_BEGIN("needs webp");

TEST_CASE("an animated WebP loops, keeps its rate and its texts; 100 loses nothing") {
  if (!have_webp()) return skip(kNoWebp);
  const Folder folder;
  const Tensor frames = moving_frames(17, 33, 47);
  const fs::path lossless = write_clip(folder, "a.webp", frames, {.quality = 100}, kTexts);
  CHECK(at::equal(read_clip(lossless), frames));
  ClipReader clip(lossless);
  CHECK(clip.facts().frames == 17);
  CHECK(clip.facts().average_rate == FrameRate{24, 1});
  CHECK(clip.facts().texts == kTexts);
  clip.skip();
  CHECK(clip.next()->seconds == doctest::Approx(0.042));
  const fs::path lossy = write_clip(folder, "b.webp", frames, {.quality = 60});
  CHECK(fs::file_size(lossy) < fs::file_size(lossless));
  CHECK(mean_gap(read_clip(lossy)[16], frames[16]) < 6);  // what moves slowly does not drift away
}

TEST_SUITE_END();

TEST_CASE("a folder of frames has the pixels, the texts and the rate") {
  const Folder folder;
  const Tensor frames = moving_frames(5, 13, 21);
  const fs::path path = write_clip(folder, "frames", frames, {.fps = {25, 2}}, kTexts);
  CHECK(at::equal(read_clip(path), frames));
  const ClipFacts facts = ClipReader(path).facts();
  CHECK(facts.average_rate == FrameRate{25, 2});
  CHECK(facts.texts == kTexts);
  const Image third = read_png(path / "frame_00002.png");
  PictureTexts expected = kTexts;
  expected.emplace_back("frame", "2");
  expected.emplace_back("fps", "25/2");
  CHECK(third.text == expected);
}

TEST_CASE("a folder replaces frames of an earlier clip, and nothing else") {
  const Folder folder;
  write_clip(folder, "frames", moving_frames(5, 8, 8));
  const Tensor fewer = moving_frames(2, 8, 8);
  const fs::path path = write_clip(folder, "frames", fewer);
  CHECK(at::equal(read_clip(path), fewer));
  folder.write("frames/notes.txt", "mine");
  CHECK(
      message_of([&] {
        write_clip(folder, "frames", fewer);
      }).ends_with("frames: holds notes.txt; expected an empty folder, or one with frames alone"));
  folder.write("file", "mine");
  CHECK(message_of([&] {
          write_clip(folder, "file", fewer);
        }).ends_with("file: is a file; expected a folder, or nothing yet"));
  CHECK(message_of([&] {
          write_clip(folder, "no/frames", fewer);
        }).ends_with("no/frames: cannot be written: No such file or directory"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);
}

TEST_CASE("nothing is left of a clip that was not finished") {
  const Folder folder;
  std::vector<std::string> names = written_kinds();
  names.push_back("frames");
  for (const std::string& name : names) {
    CAPTURE(name);
    const ClipEncoding encoding{.format = clip_format_of_name(name).value_or(ClipFormat::png)};
    {
      ClipWriter writer(folder / name, encoding, {16, 16});
      writer.add(moving_frames(30, 16, 16));
    }
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("what goes wrong in the thread reaches the caller") {
  const Folder folder;
  ClipWriter writer(folder / "frames", {.format = ClipFormat::png}, {16, 16});
  for (const auto& entry : fs::directory_iterator(folder.path())) fs::remove_all(entry.path());
  const auto write = [&] {
    for (int i = 0; i < 50; ++i) writer.add(moving_frames(1, 16, 16));
    writer.finish({});
  };
  CHECK_THROWS_AS(write(), WriteError);
}

TEST_CASE("texts that a clip cannot hold are refused") {
  CHECK(message_of([] {
          clip_tags({{"poem", "x"}});
        }) == "text 'poem': a clip holds diptych and parameters");
  CHECK(message_of([] {
          clip_tags({{"diptych", std::string("a\0b", 3)}});
        }) == "text 'diptych': holds NUL, which a clip cannot");
  CHECK(message_of([] { clip_tags({{"diptych", "\xFF"}}); }).starts_with("text 'diptych': "));
}

TEST_CASE("tags of other programs keep their names") {
  const ClipTags tags = {{"COMMENT", "blue"}, {"description", "the sea"}, {"major_brand", "isom"}};
  CHECK(texts_of_tags(tags) == PictureTexts{{"comment", "blue"}, {"description", "the sea"}});
  const std::string record = "{\"schema\": \"diptych.generate\"}";
  CHECK(texts_of_tags({{"COMMENT", record}, {"DESCRIPTION", "a cat"}, {"title", "t"}}) ==
        PictureTexts{{"parameters", "a cat"}, {"diptych", record}, {"title", "t"}});
}

}  // namespace
