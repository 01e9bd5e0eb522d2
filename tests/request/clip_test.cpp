// Requests for clips: names and formats of what they write, and values without a meaning.
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/request/request_checks.h"
#include "tests/support/clip_family.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using Paths = std::vector<fs::path>;
using Flags = std::map<std::string, std::vector<std::string>>;

Resolved resolve_with(Flags flags, std::vector<FlagInput> inputs) {
  Sources sources;
  sources.families = {&test::clip_family()};
  sources.flags = std::move(flags);
  sources.flags["-m,--model"] = {"cinema"};
  sources.inputs = std::move(inputs);
  return resolve(sources);
}
Resolved film(Flags flags) {
  flags["--task"] = {"t2v"};
  return resolve_with(std::move(flags), {{MediaKind::text, "a fox"}});
}

std::string idle(const Resolved& resolved) {
  return message_of([&] { require_meaning(resolved, "--"); });
}
std::string incomplete(const Resolved& resolved) {
  return message_of([&] { require_complete(resolved.options); });
}

TEST_CASE("the format of clips: as asked for, as named, or the first that is written") {
  Options options;
  options.run.makes = MediaKind::clip;
  const std::string first(written_clip_extensions().front());
  CHECK(facts_of(clip_format_of(options)).extension == first);
  options.output = "a.b/c.GIF";
  CHECK((clip_format_of(options) == ClipFormat::gif));
  options.output = "a.frames";
  CHECK((clip_format_of(options) == ClipFormat::png));
  options.format = ResultFormat::webp;
  CHECK((clip_format_of(options) == ClipFormat::webp));
  options.format = ResultFormat::jpg;  // of pictures
  CHECK((clip_format_of(options) == ClipFormat::png));
  CHECK(result_extensions(MediaKind::clip, ResultFormat::jpg) == written_clip_extensions());
  CHECK(result_extensions(MediaKind::clip, ResultFormat::png) == Extensions{".frames"});
  CHECK(result_extensions(MediaKind::picture, ResultFormat::mp4) == written_extensions());
}

TEST_CASE("names of clips") {
  const Extensions clips = {".mp4", ".gif", ".frames"};
  CHECK(output_names("a.mp4", 2, clips, "x") == Paths{"a-000.mp4", "a-001.mp4"});
  CHECK(output_names("a%d.frames", 1, clips, "x") == Paths{"a0.frames"});
  CHECK(message_of([&] { output_names("a.png", 1, clips, "o"); }) ==
        "o: a.png: is named as a PNG file; expected .mp4, .gif or .frames");
  CHECK(message_of([&] { output_names("a.mov", 1, clips, "o"); }) ==
        "o: a.mov: unknown extension '.mov'; expected .mp4, .gif or .frames");
  CHECK(message_of([&] { output_names("a.gif", 1, {".png"}, "o"); }) ==
        "o: a.gif: is named as a video (GIF); expected .png");
}

TEST_CASE("a folder of frames is a result, not a place for results") {
  const test::Folder folder;
  const fs::path frames = folder / "a.frames";
  CHECK(plan_outputs(frames, 1, {".frames"}) == Paths{frames});
  fs::create_directory(frames);
  CHECK(plan_outputs(frames, 1, {".frames"}) == Paths{frames});
  CHECK(plan_outputs(folder.path(), 1, {".frames"}) == Paths{folder / "0000.frames"});
  folder.write("b.frames", "no folder");
  CHECK(message_of([&] { plan_outputs(folder / "b.frames", 1, {".frames"}); }) ==
        "--output: " + (folder / "b.frames").string() +
            ": is a file; expected a folder, or nothing yet");
}

TEST_CASE("values of clips have no meaning where none is made") {
  CHECK(
      idle(film({{"--fps", {"12"}}, {"--video-frames", {"5"}}, {"--contact-sheet", {"s.png"}}})) ==
      "no error");
  const std::vector<FlagInput> text = {{MediaKind::text, "a fox"}};
  CHECK(idle(resolve_with({{"--video-frames", {"5"}}}, text)) ==
        "--video-frames: has no meaning for --task t2i, which makes no video");
  CHECK(idle(resolve_with({{"--contact-sheet", {"s.png"}}}, text)) ==
        "--contact-sheet: has no meaning for --task t2i, which makes no video");
  const std::vector<FlagInput> clip = {{MediaKind::text, "what?"}, {MediaKind::clip, "a.mp4"}};
  CHECK(idle(resolve_with({{"--fps", {"5"}}, {"--task", {"x2t_video"}}}, clip))
            .starts_with("--fps: has no meaning for --task x2t_video, which paints nothing"));
  CHECK(idle(resolve_with({{"--video-frames", {"5"}}}, clip)) ==
        "--video-frames: has no meaning for --task video_edit, whose result has the frames of its "
        "input");
}

TEST_CASE("values of texts and inputs have no meaning for what is made from a prompt") {
  CHECK(idle(film({{"--resolution", {"2"}}})) == "--resolution: is of what is read");
  for (const char* flag : {"--temperature", "--max-tokens"}) {
    CHECK(idle(film({{flag, {"1"}}})) ==
          std::string(flag) + ": has no meaning for --task t2v, which writes no text");
  }
}

TEST_CASE("what an encoding does not take has no meaning, or is out of range") {
  CHECK(idle(film({{"--crf", {"20"}}, {"-o,--output", {"a.gif"}}})) ==
        "--crf: has no meaning for GIF; expected a .mp4 or .webm");
  CHECK(idle(film({{"--quality", {"20"}}, {"-o,--output", {"a.mp4"}}})) ==
        "--quality: has no meaning for MP4; expected a .webp");
  CHECK(idle(film({{"--quality", {"20"}}, {"-o,--output", {"a.webp"}}})) == "no error");
  CHECK(idle(film({{"--format", {"jpg"}}})) ==
        "--format: jpg is of pictures, but --task t2v makes videos");
  CHECK(idle(resolve_with({{"--format", {"gif"}}, {"--task", {"t2i"}}},
                          {{MediaKind::text, "a fox"}})) ==
        "--format: gif is of videos, but --task t2i makes pictures");
  CHECK(incomplete(film({{"--fps", {"60"}}, {"-o,--output", {"a.gif"}}})) ==
        "--fps: found 60, but a GIF file has at most 50 frames a second");
  if (!facts_of(ClipFormat::mp4).built_in) return;
  CHECK(incomplete(film({{"--crf", {"60"}}, {"-o,--output", {"a.mp4"}}})) ==
        "--crf: found 60, but MP4 takes 1 to 51");
  CHECK(incomplete(film({{"-W,--width", {"63"}}, {"-o,--output", {"a.mp4"}}})) ==
        "--width: found 63, but an MP4 file has even sides");
}

TEST_CASE("files that a request for a clip reads and writes") {
  const test::Folder folder;
  CHECK(incomplete(film({{"--contact-sheet", {"s.png"}}, {"-b,--batch-count", {"2"}}})) ==
        "--contact-sheet: one file, but each of the 2 videos has a sheet of its own; expected "
        "--batch-count 1");
  const std::string file = (folder / "a.mp4").string();
  const Resolved edit = resolve_with({}, {{MediaKind::text, "red"}, {MediaKind::clip, file}});
  CHECK(incomplete(edit) == "--video: " + file + ": no such file");
  folder.write("a.mp4", "x");
  CHECK(incomplete(edit) == "no error");
  CHECK(message_of([&] { check_not_an_input(edit.options.run, file, Setting::of("output")); }) ==
        "--output: " + file + ": is an input video; expected another name");
  fs::remove(file);
  fs::create_directory(file);  // of frames
  CHECK(incomplete(edit) == "no error");
}

}  // namespace
}  // namespace diptych
