// Tasks that read and make clips: which one is meant, what it takes, and its fields.
#include <algorithm>
#include <map>

#include "lib/config/family_fields.h"
#include "lib/config/flag_hints.h"
#include "lib/config/resolve.h"
#include "lib/config/result_formats.h"
#include "lib/config/task.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/clip_family.h"
#include "tests/support/folder.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::clip_family;
using test::message_of;

const FlagInput kText = {MediaKind::text, "a fox"}, kPicture = {MediaKind::picture, "a.png"},
                kClip = {MediaKind::clip, "a.mp4"};

struct Run {
  std::vector<FlagInput> inputs = {kText};
  std::map<std::string, std::vector<std::string>> flags = {{"-m,--model", {"cinema"}}};
  std::map<std::string, std::string> variables;
  std::string file;
  test::Folder folder;

  Resolved resolve() {
    if (!file.empty()) flags["-c,--config"] = {folder.write("f.yaml", file).string()};
    return diptych::resolve(
        {inputs, flags, {}, {variables}, {}, {&bagel_config(), &clip_family()}});
  }
  std::string task() { return resolve().options.run.task; }
  std::string error() {
    return message_of([&] { resolve(); });
  }
};

std::string task_of(std::vector<FlagInput> inputs, const char* output = nullptr,
                    const char* format = nullptr) {
  Run run;
  run.inputs = std::move(inputs);
  if (output != nullptr) run.flags["-o,--output"] = {output};
  if (format != nullptr) run.flags["--format"] = {format};
  return run.task();
}

std::string value(const Resolved& resolved, std::string_view name) {
  const auto fields = fields_of(resolved.options);
  return value_text(fields[field_index(name, fields)], resolved.options);
}

TEST_CASE("the inputs, and the name of the output, say which task is meant") {
  CHECK(task_of({kText}) == "t2i");
  CHECK(task_of({kPicture, kText}) == "image_edit");
  CHECK(task_of({kClip, kText}) == "video_edit");
  CHECK(task_of({kText}, "a.mp4") == "t2v");
  CHECK(task_of({kText}, "b/a.GIF") == "t2v");
  CHECK(task_of({kText}, "a.frames") == "t2v");
  CHECK(task_of({kText}, "a.webp") == "t2i");  // of both; the first that fits
  CHECK(task_of({kPicture, kText}, "a-%02d.webm") == "i2v");
  CHECK(task_of({kPicture, kText}, "a.txt") == "x2t_image");
  CHECK(task_of({kClip, kText}, "a.txt") == "x2t_video");
  CHECK(task_of({kPicture, kPicture, kClip}) == "blend");
  CHECK(task_of({kText}, "folder/") == "t2i");
  CHECK(task_of({kText}, nullptr, "mp4") == "t2v");
  CHECK(task_of({kText}, "-", "webm") == "t2v");
  CHECK(task_of({kText}, "a.png", "mp4") == "t2i");
  CHECK(task_of({kText}, nullptr, "png") == "t2i");
}

TEST_CASE("another family's texts and pictures are as before") {
  Run run;
  run.flags["-m,--model"] = {test::kTinyCheckpoint};
  CHECK(run.task() == "t2i");
  run.flags["-o,--output"] = {"a.mp4"};
  CHECK(run.task() == "t2i");
  run.flags["-o,--output"] = {"a.txt"};
  CHECK(run.task() == "chat");
  run.flags.erase("-o,--output");
  run.variables["DIPTYCH_VIDEO"] = "a.mp4";
  CHECK(run.resolve().options.run.inputs.size() == 1);
  run.inputs.push_back(kClip);
  CHECK(run.error() == "--video: no task of bagel reads videos");
  run.inputs.pop_back();
  run.flags["--video-frames"] = {"9"};
  CHECK(run.error() == "--video-frames: the family bagel has no use for it");
}

TEST_CASE("a task takes as many files as it reads") {
  Run run;
  const auto error = [&](const char* task, std::vector<FlagInput> inputs) {
    run.flags["--task"] = {task};
    run.inputs = std::move(inputs);
    return run.error();
  };
  CHECK(error("i2v", {kText, kPicture, kPicture}) ==
        "--task i2v: reads 1 picture, found 2; expected --image once");
  CHECK(error("i2v", {kText}) == "--task i2v: needs a picture; expected --image FILE");
  CHECK(error("video_edit", {kText}) == "--task video_edit: needs a video; expected --video FILE");
  CHECK(error("t2v", {kClip}) == "--task t2v: reads no videos, found --video; expected video_edit");
  CHECK(error("x2t_image", {kPicture, kClip}) ==
        "--task x2t_image: reads no videos, found --video; expected none");
  CHECK(
      error("video_edit", {kPicture}) ==
      "--task video_edit: reads no pictures, found --image; expected --video FILE, or --task i2v");
  CHECK(error("blend", {kPicture, kClip}) ==
        "--task blend: needs 2 pictures, found 1; expected --image FILE");
  CHECK(error("blend", {kPicture, kPicture, kPicture, kPicture, kClip}) ==
        "--task blend: reads at most 3 pictures, found 4; expected --image 3 times");
  CHECK(error("auto", {kText, kClip, kClip}) == "--video: no task of cinema reads 2 videos");
  CHECK(error("auto", {kText, kPicture, kClip}) ==
        "--video: no task of cinema reads 1 picture and 1 video");
  CHECK(error("t2v", {kText, {MediaKind::clip, ""}}) ==
        "--video: is empty; expected the file of a video");
}

TEST_CASE("clips are inputs beside texts and pictures, in their order") {
  Run run;
  run.flags["--task"] = {"blend"};
  run.inputs = {kText, kPicture, kClip, kPicture};
  const Resolved all = run.resolve();
  CHECK(inputs_text(all.options.run.inputs) ==
        R"([{"text":"a fox"},{"image":"a.png"},{"video":"a.mp4"},{"image":"a.png"}])");
  CHECK(all.options.run.input_counts().pictures == 2);
  CHECK(all.options.run.input_counts().clips == 1);
  CHECK(all.options.run.reads_videos());
  CHECK(all.options.run.prompt() == "a fox");
  CHECK(all.origins[field_index("inputs")] == "--prompt/--image/--video");
  run.inputs = {kText};
  run.variables = {{"DIPTYCH_IMAGE", "b.png;c.png"}, {"DIPTYCH_VIDEO", "d.mp4"}};
  const Resolved given = run.resolve();
  CHECK(inputs_text(given.options.run.inputs) ==
        R"([{"image":"b.png"},{"image":"c.png"},{"video":"d.mp4"},{"text":"a fox"}])");
  CHECK(given.origins[field_index("inputs")] == "--prompt/--image, DIPTYCH_IMAGE, DIPTYCH_VIDEO");
  CHECK(error_text(InputError(Setting::of("video"), "d.mp4: no such file"), given) ==
        "DIPTYCH_VIDEO: d.mp4: no such file");
  Options options;
  assign(all_fields()[field_index("inputs")], options, R"([{"video":"a.mp4"}])", "x");
  CHECK(options.run.inputs.front().video == "a.mp4");
}

TEST_CASE("frames, rate and encoding of a clip") {
  Run run;
  run.flags["--task"] = {"t2v"};
  CHECK(value(run.resolve(), "video_frames") == "9");
  CHECK(value(run.resolve(), "fps") == "auto");
  CHECK(value(run.resolve(), "crf") == "auto");
  const auto set = [&](const char* flags, const char* text) {
    run.flags[flags] = {text};
    const std::string error = run.error();
    const std::string found =
        error == "no error" ? value(run.resolve(), long_names(flags).front()) : error;
    run.flags.erase(flags);
    return found;
  };
  CHECK(set("--fps", "24") == "24");
  CHECK(set("--fps", "30000/1001") == "30000/1001");
  CHECK(set("--fps", "12.5") == "25/2");
  CHECK(set("--fps", "auto") == "auto");
  CHECK(set("--fps", "0") ==
        "--fps: '0' is not a rate; expected 1 to 120, as a number or a fraction such as "
        "30000/1001");
  CHECK(set("--fps", "240") == "--fps: 240 is out of range; expected 1 to 120");
  CHECK(set("--crf", "18") == "18");
  CHECK(set("--crf", "auto") == "auto");
  CHECK(set("--crf", "64") == "--crf: 64 is out of range; expected 0 to 63");
  run.flags["-o,--output"] = {"a.mp4"};
  CHECK(set("--crf", "64") == "--crf: 64 is out of range; expected 1 to 51 of MP4");
  run.flags.erase("-o,--output");
  CHECK(set("--video-frames", "122") == "--video-frames: 122 is out of range; expected 1 to 121");
  run.flags["--video-frames"] = {"0"};
  CHECK(run.error() == "--video-frames: 0 is out of range; expected 1 to 121");
  run.flags.erase("--video-frames");
  run.flags["--task"] = {"i2v"};
  run.inputs.push_back(kPicture);
  CHECK(value(run.resolve(), "video_frames") == "5");
  run.file =
      "pipeline: cinema\nstages:\n  - stage_id: 0\n"
      "    default_sampling_params: {num_frames: 33, fps: 30000/1001}\n";
  CHECK(value(run.resolve(), "video_frames") == "33");
  CHECK(value(run.resolve(), "fps") == "30000/1001");
}

TEST_CASE("a model that no family knows is named where it was given") {
  const test::Folder folder;
  Run run;
  run.flags["--task"] = {"ti2v"};
  run.flags["-m,--model"] = {folder.path().string()};
  const std::string at = "--model: " + folder.path().string();
  CHECK(run.error().starts_with(at + ": holds no checkpoint of "));
  folder.write("cinema/part/config.json", "{}");
  run.flags.erase("--task");
  run.flags["-m,--model"] = {(folder / "cinema/part").string()};
  CHECK(run.error().ends_with("part: is a part of a checkpoint of cinema; expected its folder, " +
                              fs::canonical(folder / "cinema").string()));
}

TEST_CASE("a clip that is edited gives the result its size and its frames") {
  Run run;
  run.inputs = {kText, kClip};
  const Resolved edit = run.resolve();
  CHECK(edit.options.run.sampling.size_of_input);
  CHECK(edit.options.run.sampling.frames_of_input);
  const std::string table = config_table(edit);
  for (const char* name : {"width", "video_frames"}) {
    const std::string line =
        fmt::format("\n{:<40}  # the video's\n", fmt::format("{}: auto", name));
    CHECK(table.find(line) != std::string::npos);
  }
  run.flags["-W,--width"] = {"64"};
  CHECK(run.error() == "--height: not given; expected both, or none for the size of the video");
  run.flags.erase("-W,--width");
  const auto file_error = [&](const char* key) {
    run.file = fmt::format(
        "pipeline: cinema\nstages: [{{stage_id: 0, edit_sampling_params: {{{}: 64}}}}]\n", key);
    const std::string error = run.error();
    return error.substr(error.find("this version: "));
  };
  CHECK(file_error("width") ==
        "this version: the video has the size of what it is made from; remove the key");
  CHECK(file_error("num_frames") ==
        "this version: the video has as many frames as are taken from the one it reads; remove "
        "the key");
}

TEST_CASE("keys that a family does not use keep their reasons") {
  Run run;
  run.flags.clear();
  const auto error = [&](const char* key) {
    run.file = fmt::format(
        "pipeline: bagel\nstages: [{{stage_id: 0, default_sampling_params: {{{}}}}}]\n", key);
    return run.error();
  };
  CHECK(error("num_frames: 1") == "no error");
  CHECK(error("num_frames: 2").find("only still pictures are painted") != std::string::npos);
  CHECK(error("fps: 12").find("only still pictures are painted") != std::string::npos);
}

TEST_CASE("flags of clips are flags where a family has clips, and hints where none does") {
  const FamilyConfig* both[] = {&bagel_config(), &clip_family()};
  const FamilyConfig* one[] = {&bagel_config()};
  const auto flags = [](std::span<const FamilyConfig* const> families) {
    std::vector<std::string_view> names;
    for (const Field& field : flag_fields(families)) names.push_back(field.flags);
    return names;
  };
  for (const char* flag : {"--video-frames", "--fps", "--crf", "--contact-sheet"}) {
    CAPTURE(flag);
    CHECK(std::ranges::count(flags(both), flag) == 1);
    CHECK(std::ranges::count(flags(one), flag) == 0);
    CHECK(flag_hint(flag, both).empty());
    CHECK(flag_hint(flag, one) == who_makes(kVideos, one));
  }
  CHECK(flag_hint("--duration", one) == who_makes(kVideos, one));
  CHECK(flag_hint("--duration", both).starts_with("use --video-frames"));
  CHECK(who_makes(kVideos, both) ==
        "videos are made by cinema (--task t2v or i2v or video_edit or blend)");
}

TEST_CASE("a family's own flag may be another name of a common one") {
  Run run;
  run.flags["--resolution"] = {"7"};
  CHECK(value(run.resolve(), "resolution") == "7");
  CHECK(value(run.resolve(), "width") == "64");
  run.flags["-m,--model"] = {test::kTinyCheckpoint};
  run.flags["--resolution"] = {"512"};
  CHECK(value(run.resolve(), "width") == "512");
  run.flags["--size"] = {"256"};
  CHECK(run.error() ==
        "--resolution: given together with --size, which says the same; expected one of them");
}

TEST_CASE("formats are of pictures, of clips or of both") {
  using Kinds = std::vector<MediaKind>;
  CHECK((kinds_of(ResultFormat::jpg) == Kinds{MediaKind::picture}));
  CHECK((kinds_of(ResultFormat::webp) == Kinds{MediaKind::picture, MediaKind::clip}));
  CHECK((kinds_of(ResultFormat::gif) == Kinds{MediaKind::clip}));
  CHECK((clip_format(ResultFormat::png) == ClipFormat::png));
  CHECK_FALSE(picture_format(ResultFormat::mp4));
  CHECK_FALSE(clip_format(std::nullopt));
  CHECK(kinds_of_name("a").empty());
  CHECK(kinds_of_name("a.bmp").empty());
  CHECK((kinds_of_name("b.c/a.TXT") == Kinds{MediaKind::text}));
}

}  // namespace
}  // namespace diptych
