// Clips of many kinds, as the ffmpeg program makes them: held to what it decodes itself.
#include "lib/media/video/clip_read.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "lib/base/text_file.h"
#include "lib/media/image_read.h"
#include "lib/media/png.h"
#include "tests/media/video/support.h"

namespace {

using namespace diptych;
using namespace diptych::test;
namespace fs = std::filesystem;

bool ready() {
  if (!have_libav()) skip(kNoLibav);
  if (have_libav() && !have_ffmpeg()) skip(kNoFfmpeg);
  return have_libav() && have_ffmpeg();
}

std::string without_folder(const std::string& message, const fs::path& path) {
  const std::string folder = path.parent_path().string() + "/";
  return message.starts_with(folder) ? message.substr(folder.size()) : message;
}

std::string read_error(const fs::path& path, const ClipLimits& limits = {}) {
  return without_folder(message_of([&] { read_clip(path, limits); }), path);
}

// Before a frame is asked for.
std::string open_error(const fs::path& path) {
  return without_folder(message_of([&] { ClipReader{path}; }), path);
}

void cut(const fs::path& path, double share) {
  fs::resize_file(path,
                  static_cast<std::uintmax_t>(static_cast<double>(fs::file_size(path)) * share));
}

constexpr const char* kSource = "-f lavfi -i testsrc2=size=66x50:rate=25 ";

TEST_SUITE_BEGIN("needs libav");

TEST_CASE("every kind of clip gives the frames that ffmpeg and decord give") {
  if (!ready()) return;
  struct Kind {
    std::string name;
    const char *arguments, *pixels;
    std::int64_t height = 50, width = 66;
  };
  const Kind kinds[] = {
      {"h264.mp4", "-c:v libx264 -pix_fmt yuv420p", "yuv420p"},
      {"odd.mp4", "-vf scale=65:49 -c:v libx264 -pix_fmt yuv444p", "yuv444p", 49, 65},
      {"odd.mkv", "-vf scale=65:49 -c:v ffv1 -pix_fmt yuv420p", "yuv420p", 49, 65},
      {"hevc10.mp4", "-c:v libx265 -x265-params log-level=0 -pix_fmt yuv420p10le", "yuv420p10le"},
      {"vp9.webm", "-c:v libvpx-vp9 -cpu-used 8 -pix_fmt yuv420p", "yuv420p"},
      {"vp9_10.webm", "-c:v libvpx-vp9 -cpu-used 8 -pix_fmt yuv420p10le", "yuv420p10le"},
      {"prores.mov", "-c:v prores_ks -pix_fmt yuv422p10le", "yuv422p10le"},
      {"mpeg4.avi", "-c:v mpeg4 -pix_fmt yuv420p", "yuv420p"},
      {"mpeg2.ts", "-c:v mpeg2video -pix_fmt yuv420p", "yuv420p"},
      {"mpeg1.mpg", "-c:v mpeg1video -pix_fmt yuv420p", "yuv420p"},
      {"full.avi", "-c:v mjpeg -pix_fmt yuvj422p", "yuvj422p"},
      {"full.mp4", "-c:v libx264 -pix_fmt yuv420p -vf scale=out_range=full -color_range pc",
       "yuvj420p"},
      {"bt709.mp4",
       "-c:v libx264 -pix_fmt yuv420p -vf scale=out_color_matrix=bt709 -colorspace bt709",
       "yuv420p"},
      {"bt2020.mp4",
       "-c:v libx264 -pix_fmt yuv420p10le -vf scale=out_color_matrix=bt2020 -colorspace bt2020nc",
       "yuv420p10le"},
      {"rgb.mkv", "-c:v ffv1 -pix_fmt gbrp10le", "gbrp10le"},
      {"bgr.mkv", "-c:v ffv1 -pix_fmt bgr0", "bgr0"},
      {"gray.mkv", "-c:v ffv1 -pix_fmt gray", "gray"},
      {"theora.ogv", "-c:v libtheora -pix_fmt yuv420p", "yuv420p"},
      {"small.y4m", "-pix_fmt yuv420p", "yuv420p"},
      {"bare.h264", "-c:v libx264 -pix_fmt yuv420p -bf 2", "yuv420p"},
      {"flash.flv", "-c:v flv -pix_fmt yuv420p", "yuv420p"},
      {"sound.mkv", "-f lavfi -i sine=duration=1 -c:v libx264 -pix_fmt yuv420p -c:a aac",
       "yuv420p"},
  };
  const Folder folder;
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    const fs::path path =
        make_clip(folder, kind.name, std::string(kSource) + kind.arguments + " -frames:v 7");
    CHECK(is_clip(path));
    ClipReader clip(path);
    CHECK(clip.facts().size.height == kind.height);
    CHECK(clip.facts().size.width == kind.width);
    CHECK(clip.facts().pixels == kind.pixels);
    CHECK(clip.facts().frames.value_or(7) == 7);
    const Tensor expected = ffmpeg_frames(path, kind.height, kind.width);
    const Tensor found = read_clip(path);
    CHECK(found.sizes() == expected.sizes());
    CHECK(at::equal(found, expected));
    CHECK(count_clip_packets(path) == found.size(0));
  }
}

TEST_CASE("frames keep their times; the rate is a fraction") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path = make_clip(folder, "a.mp4", gray_source(9, "64x48", 24) + " -c:v libx264");
  ClipReader clip(path);
  CHECK(clip.facts().codec == "h264");
  CHECK(clip.facts().average_rate == FrameRate{24, 1});
  CHECK(clip.facts().seconds.value() == doctest::Approx(9.0 / 24));
  for (std::int64_t i = 0; i < 9; ++i) {
    CHECK(clip.position() == i);
    const auto frame = clip.next();
    REQUIRE(frame.has_value());
    CHECK(frame->seconds == doctest::Approx(static_cast<double>(i) / 24));
    CHECK(std::abs(frame->rgb.to(at::kFloat).mean().item<double>() - gray_level(i)) < 1.5);
  }
  CHECK_FALSE(clip.next().has_value());
  CHECK_FALSE(clip.skip());
  CHECK(count_clip_frames(path) == 9);

  const fs::path ntsc = make_clip(
      folder, "ntsc.mp4", "-f lavfi -i testsrc2=s=64x48:r=30000/1001 -frames:v 5 -c:v libx264");
  CHECK(ClipReader(ntsc).facts().average_rate == FrameRate{30000, 1001});
}

TEST_CASE("with a variable frame rate every frame comes once, at its time") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path =
      make_clip(folder, "vfr.mp4",
                gray_source(9, "64x48", 20) +
                    " -vf \"select='not(eq(mod(n,4),1))'\" -fps_mode vfr -c:v libx264");
  ClipReader clip(path);
  std::vector<double> seconds;
  while (const auto frame = clip.next()) seconds.push_back(frame->seconds);
  REQUIRE(seconds.size() == 9);
  const double ticks[] = {0, 2, 3, 4, 6, 7, 8, 10, 11};
  for (std::size_t i = 0; i < seconds.size(); ++i)
    CHECK(seconds[i] == doctest::Approx(ticks[i] / 20));
  CHECK(at::equal(read_clip(path), ffmpeg_frames(path, 48, 64)));
}

TEST_CASE("picked frames are those of a full read") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path =
      make_clip(folder, "a.mp4", gray_source(20, "64x48", 10) + " -c:v libx264 -bf 3");
  const Tensor all = read_clip(path);
  const std::vector<std::int64_t> indices = {0, 3, 3, 11, 19};
  const Tensor picked = read_clip_frames(path, indices);
  REQUIRE(picked.size(0) == 5);
  for (std::size_t i = 0; i < indices.size(); ++i)
    CHECK(at::equal(picked[static_cast<std::int64_t>(i)], all[indices[i]]));
  CHECK(message_of([&] {
          read_clip_frames(path, std::vector<std::int64_t>{5, 20});
        }).ends_with("a.mp4: frame 20 was asked for, but it has 20 frames"));
}

TEST_CASE("turned and mirrored clips come upright") {
  if (!ready()) return;
  const Folder folder;
  const fs::path plain = make_clip(
      folder, "plain.mp4", std::string(kSource) + "-c:v libx264 -pix_fmt yuv420p -frames:v 7");
  const Tensor stored = read_clip(plain);
  for (const int degrees : {90, 180, 270}) {
    CAPTURE(degrees);
    const fs::path path =
        make_clip(folder, "turned.mp4",
                  fmt::format("-i '{}' -c copy -metadata:s:v rotate={}", plain.string(), degrees));
    ClipReader clip(path);
    const bool swapped = degrees != 180;
    CHECK(clip.facts().size.height == (swapped ? 66 : 50));
    CHECK(clip.facts().size.width == (swapped ? 50 : 66));
    const Tensor found = read_clip(path);
    CHECK(at::equal(found, at::rot90(stored, degrees / 90, {1, 2})));
    CHECK(at::equal(found, ffmpeg_frames(path, found.size(1), found.size(2))));
  }
}

TEST_CASE("a first frame that a cut has hidden is not shown") {
  if (!ready()) return;
  const Folder folder;
  const fs::path whole =
      make_clip(folder, "whole.mp4", gray_source(20, "64x48", 10) + " -c:v libx264 -g 20");
  const fs::path part =
      make_clip(folder, "part.mp4", fmt::format("-ss 0.5 -i '{}' -c copy", whole.string()));
  const Tensor expected = ffmpeg_frames(part, 48, 64);
  CHECK(at::equal(read_clip(part), expected));
  CHECK(count_clip_frames(part) == expected.size(0));
  CHECK(count_clip_packets(part) > expected.size(0));
}

TEST_CASE("a clip that is cut off is refused") {
  if (!ready()) return;
  struct Kind {
    std::string name;
    const char* arguments;
    std::string message;  // where it is more than "cut off"
  };
  const Kind kinds[] = {
      {"fast.mp4", "-c:v libx264 -movflags +faststart", "it ends after "},
      {"plain.mp4", "-c:v libx264", "a broken or cut off QuickTime / MOV file: "},
      {"pieces.mp4", "-c:v libx264 -g 5 -movflags +frag_keyframe+empty_moov", ""},
      {"a.webm", "-c:v libvpx-vp9 -cpu-used 8", "bytes are there"},
      {"a.mkv", "", "bytes are there"},
      {"a.avi", "", "bytes are there"},
      {"a.ts", "", "bytes are there"},
      {"a.ogv", "-c:v libtheora -pix_fmt yuv420p", "bytes are there"},
      {"a.gif", "", "the file is broken or cut off after "},
      {"a.flv", "", "bytes are there"},
      {"a.mpg", "", ""},
      {"a.wmv", "", ""},
  };
  const Folder folder;
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    const fs::path path = make_clip(
        folder, kind.name,
        fmt::format("-f lavfi -i testsrc2=size=160x120:rate=25 {} -frames:v 15", kind.arguments));
    CHECK(read_error(path) == "no error");
    cut(path, 0.6);
    const std::string message = read_error(path);
    CAPTURE(message);
    CHECK(message.starts_with(kind.name + ": "));
    CHECK(message.find(kind.message) != std::string::npos);
  }
  // An index that is cut.
  const fs::path path = make_clip(
      folder, "index.mp4", "-f lavfi -i testsrc2=size=160x120:rate=25 -c:v libx264 -frames:v 15");
  fs::resize_file(path, fs::file_size(path) - 9);
  CHECK(read_error(path) == fmt::format("index.mp4: the file is cut off: {} of {} bytes are there",
                                        fs::file_size(path), fs::file_size(path) + 9));
}

// What is there of a clip whose end is cut off, whatever frames are asked for.
TEST_CASE("a clip without its end is refused before its first frame") {
  if (!ready()) return;
  struct Kind {
    std::string name;
    const char* arguments;
    std::string message;
  };
  const std::string raw = "the file is cut off or damaged at its end: a picture is not whole";
  const Kind kinds[] = {
      {"a.flv", "", "bytes are there"},
      {"a.mpg", "", "bytes are there"},
      {"a.vob", "", "bytes are there"},
      {"a.wmv", "", "bytes are there"},
      {"a.y4m", "", "bytes are there"},
      {"odd.y4m", "-vf crop=159:119 -pix_fmt yuv422p10le -strict -1", "bytes are there"},
      {"gray.y4m", "-pix_fmt gray16le -strict -1", "bytes are there"},
      {"a.h264", "-c:v libx264", raw},
      {"open.h264", "-c:v libx264 -g 8 -x264-params open-gop=1:slices=3:cabac=0", raw},
      {"a.m2v", "-c:v mpeg2video -f mpeg2video", raw},
      {"open.m2v", "-c:v mpeg2video -bf 2 -g 9 -f mpeg2video", raw},
      {"a.m4v", "-c:v mpeg4 -bf 2 -f m4v", raw},
  };
  const Folder folder;
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    const fs::path path = make_clip(
        folder, kind.name,
        fmt::format("-f lavfi -i testsrc2=size=160x120:rate=25 {} -frames:v 30", kind.arguments));
    CHECK(open_error(path) == "no error");
    CHECK(count_clip_frames(path) == 30);
    cut(path, 0.93);
    const std::string message = open_error(path);
    CAPTURE(message);
    CHECK(message.starts_with(kind.name + ": "));
    CHECK(message.find(kind.message) != std::string::npos);
  }
}

TEST_CASE("an FLV that ends behind a whole tag is held to its metadata") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path =
      make_clip(folder, "a.flv", "-f lavfi -i testsrc2=size=160x120:rate=25 -frames:v 15");
  const std::string bytes = read_text_file(path);
  const auto size = [&](std::size_t at, int count) {
    std::size_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes[at++]);
    return value;
  };
  const std::size_t last = size(bytes.size() - 4, 4) + 4;
  fs::resize_file(path, bytes.size() - last);
  CHECK(open_error(path) == fmt::format("a.flv: the file is cut off: {} of {} bytes are there",
                                        bytes.size() - last, bytes.size()));
}

TEST_CASE("what is no clip is refused in one line") {
  if (!ready()) return;
  const Folder folder;
  folder.write("empty.mp4", "");
  CHECK(read_error(folder / "empty.mp4") == "empty.mp4: empty, expected a clip");
  CHECK(read_error(folder / "none.mp4") == "none.mp4: cannot be read: No such file or directory");
  folder.write("text.mp4", "once upon a time there was a file of text that no player would show\n");
  CHECK(read_error(folder / "text.mp4") == "text.mp4: not a clip that libav knows");
  folder.write("list.m3u8",
               "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n");
  CHECK(read_error(folder / "list.m3u8").starts_with("list.m3u8: not a clip"));
  folder.write("list.ffconcat", "ffconcat version 1.0\nfile '/etc/passwd'\n");
  CHECK(read_error(folder / "list.ffconcat").starts_with("list.ffconcat: not a clip"));

  const fs::path sound = make_clip(folder, "sound.mp4", "-f lavfi -i sine=duration=1 -c:a aac");
  CHECK(read_error(sound) == "sound.mp4: holds sound alone, expected a clip");
  write_png(folder / "cover.png", at::zeros({16, 16, 3}, at::kByte));
  const fs::path song = make_clip(
      folder, "song.mp3",
      fmt::format(
          "-f lavfi -i sine=duration=1 -i '{}' -map 0 -map 1 -c:v png -disposition:v attached_pic",
          (folder / "cover.png").string()));
  CHECK(read_error(song) == "song.mp3: holds sound with a cover picture, expected a clip");
  CHECK(read_error(folder / "cover.png") == "cover.png: a PNG picture, expected a clip");

  REQUIRE(mkfifo((folder / "pipe.mp4").c_str(), 0600) == 0);
  CHECK(read_error(folder / "pipe.mp4") == "pipe.mp4: is a pipe, expected a file");
  fs::create_directory(folder / "nothing");
  CHECK(read_error(folder / "nothing") == "nothing: a folder without PNG frames, expected a clip");
  CHECK(read_error("/dev/zero") == "zero: is a device, expected a file");
}

TEST_CASE("limits of frames and pixels") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path = make_clip(folder, "a.mp4", gray_source(9, "64x48", 24) + " -c:v libx264");
  ClipLimits limits;
  limits.max_frames = 9;
  CHECK(read_clip(path, limits).size(0) == 9);
  limits.max_frames = 8;
  CHECK(read_error(path, limits) == "a.mp4: more than 8 frames, which are not read");
  limits = {};
  limits.max_pixels = 64 * 48 - 1;
  CHECK(read_error(path, limits) == "a.mp4: frames of 64x48 pixels, at most 3071 pixels are read");
}

TEST_CASE("transparent pixels are white") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path = make_clip(folder, "a.mov",
                                  "-f lavfi -i \"color=red@0.5:s=32x32:r=5,format=yuva444p10le\" "
                                  "-frames:v 2 -c:v prores_ks -profile:v 4444");
  const Tensor rgb = read_clip(path)[0][16][16].to(at::kInt);
  CHECK(rgb[0].item<int>() == doctest::Approx(254).epsilon(0.02));
  CHECK(rgb[1].item<int>() == doctest::Approx(128).epsilon(0.03));
}

TEST_CASE("the tags of a clip") {
  if (!ready()) return;
  const Folder folder;
  const fs::path path = make_clip(
      folder, "a.mp4",
      gray_source(2, "64x48", 24) + " -c:v libx264 -metadata title=Sea -metadata comment=blue");
  const PictureTexts texts = read_clip_texts(path);
  CHECK(std::ranges::find(texts, std::pair<std::string, std::string>("title", "Sea")) !=
        texts.end());
  CHECK(std::ranges::find(texts, std::pair<std::string, std::string>("comment", "blue")) !=
        texts.end());
}

TEST_CASE("decord's frames of a recorded clip") {
  if (!ready()) return;
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const fs::path goldens = named != nullptr
                               ? fs::path(named)
                               : fs::path(DIPTYCH_SOURCE_DIR).parent_path() / "shared/goldens";
  const fs::path folder = goldens / "lance/cases/07_x2t_video";
  if (!fs::exists(folder / "x2t_clip.mp4")) return skip("the recorded cases are not there");
  const Tensor frames = read_clip(folder / "x2t_clip.mp4");
  const Tensor expected = read_image(folder / "video_frames.png").reshape({-1, 128, 96, 3});
  CHECK(at::equal(frames, expected));
}

TEST_SUITE_END();

TEST_CASE("what is a clip is told from what is a picture") {
  const Folder folder;
  const Tensor frames = moving_frames(3, 20, 24);
  CHECK(is_clip(write_clip(folder, "a.gif", frames)));
  CHECK_FALSE(is_clip(write_clip(folder, "one.gif", frames.narrow(0, 0, 1))));
  const PictureTexts record = {
      {"diptych", R"({"schema": "diptych.video", "frames": 1, "fps": "25/2"})"}};
  const Tensor one = frames.narrow(0, 0, 1);
  CHECK(is_clip(write_clip(folder, "recorded.gif", one, {}, record)));
  if (facts_of(ClipFormat::webp).built_in) {
    const fs::path webp = write_clip(folder, "one.webp", one, {.quality = 100}, record);
    CHECK(is_clip(webp));
    CHECK(at::equal(read_clip(webp), one));
    CHECK(count_clip_packets(webp) == 1);
    CHECK(ClipReader(webp).facts().average_rate == FrameRate{25, 2});
    CHECK(ClipReader(webp).facts().texts == record);
    CHECK_FALSE(is_clip(write_clip(folder, "plain.webp", one)));
  }
  CHECK(is_clip(write_clip(folder, "frames", frames)));
  write_png(folder / "a.png", frames[0]);
  CHECK_FALSE(is_clip(folder / "a.png"));
  CHECK_FALSE(is_clip(folder.path()));
  folder.write("broken.mkv", "not a container");
  CHECK(is_clip(folder / "broken.mkv"));  // by its name: its reader says what is wrong
}

TEST_CASE("a folder of frames is read in the order of its numbers") {
  const Folder folder;
  const Tensor frames = moving_frames(12, 6, 5);
  for (std::int64_t i = 0; i < 12; ++i) write_png(folder / fmt::format("shot{}.PNG", i), frames[i]);
  folder.write("notes.txt", "no frame");
  CHECK(at::equal(read_clip(folder.path()), frames));
  ClipLimits limits;
  limits.max_frames = 11;
  CHECK(message_of([&] {
          ClipReader(folder.path(), limits);
        }).ends_with("12 frames, at most 11 are read"));
  write_png(folder / "shot5.PNG", at::zeros({6, 6, 3}, at::kByte));
  CHECK(message_of([&] {
          read_clip(folder.path());
        }).ends_with("shot5.PNG: 6x6 pixels, expected 5x6 as the first frame"));
}

}  // namespace
