#include "lib/request/output_names.h"

#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;
using Paths = std::vector<std::filesystem::path>;

TEST_CASE("names of one and of several results") {
  CHECK(output_names("a.png", 1, {".png"}, "x") == Paths{"a.png"});
  CHECK(output_names("b/a.PNG", 2, {".png"}, "x") == Paths{"b/a-000.PNG", "b/a-001.PNG"});
  CHECK(output_names("b%02d.png", 2, {".png"}, "x") == Paths{"b00.png", "b01.png"});
  CHECK(output_names("b%d.txt", 1, {".txt"}, "x") == Paths{"b0.txt"});
  CHECK(output_names("5%%.png", 1, {".png"}, "x") == Paths{"5%.png"});
  CHECK(output_names("5%%.png", 2, {".png"}, "x") == Paths{"5%-000.png", "5%-001.png"});
  CHECK(output_names("5%%-%02d%%.png", 2, {".png"}, "x") == Paths{"5%-00%.png", "5%-01%.png"});
  CHECK(numbered_name(7) == "0007");
  CHECK(numbered_name(123456) == "123456");
  CHECK(message_of([] { output_names("a.tif", 1, {".png"}, "l:3: output"); }) ==
        "l:3: output: a.tif: unknown extension '.tif'; expected .png");
  const Extensions several = {".png", ".jpg", ".jpeg", ".webp"};
  CHECK(output_names("a.JPEG", 2, several, "x") == Paths{"a-000.JPEG", "a-001.JPEG"});
  CHECK(message_of([&] { output_names("a.bmp", 1, several, "o"); }) ==
        "o: a.bmp: unknown extension '.bmp'; expected .png, .jpg, .jpeg or .webp");
  CHECK(message_of([&] { output_names("a.png", 1, {".webp"}, "o"); }) ==
        "o: a.png: is named as a PNG file; expected .webp");
  CHECK(message_of([] {
          output_names("a%s.png", 1, {".png"}, "w");
        }).starts_with("w: 'a%s.png' is no pattern"));
}

TEST_CASE("the format of results: as asked for, as named, or PNG") {
  Options options;
  CHECK((picture_format_of(options) == PictureFormat::png));
  options.output = "a.b/c.WebP";
  CHECK((picture_format_of(options) == PictureFormat::webp));
  options.output = "folder.gif";
  CHECK((picture_format_of(options) == PictureFormat::png));
  options.format = ResultFormat::jpg;
  CHECK((picture_format_of(options) == PictureFormat::jpeg));
  CHECK(result_extensions(MediaKind::picture, options.format) == Extensions{".jpg", ".jpeg"});
  CHECK(result_extensions(MediaKind::picture, std::nullopt) == written_extensions());
  CHECK(result_extensions(MediaKind::text, options.format) == Extensions{".txt", ".json"});
  CHECK(result_extensions(MediaKind::text, ResultFormat::json) == Extensions{".json"});
}

TEST_CASE("a folder for a trace: one that is there, ends in / or has no extension") {
  const test::Folder folder;
  std::filesystem::create_directory(folder / "v1.2");
  CHECK(trace_file("").empty());
  CHECK(trace_file("a.safetensors") == "a.safetensors");
  CHECK(trace_file("a/b") == "a/b/trace.safetensors");
  CHECK(trace_file("v1.3/") == "v1.3/trace.safetensors");
  CHECK(trace_file("v1.3") == "v1.3");
  CHECK(trace_file("v1.2", folder.path()) == "v1.2/trace.safetensors");
}

TEST_CASE("names stay below their folder") {
  for (const char* good : {"a.png", "b/a.png", "..a.png", "a..png", "b/./a.png"}) {
    CAPTURE(good);
    CHECK_NOTHROW(check_relative_name(good, "w"));
  }
  for (const char* bad : {"", "..", "../a.png", "b/../a.png", "/a.png", "b/", "."}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(check_relative_name(bad, "w"), InputError);
  }
}

TEST_CASE("a folder of frames takes the place of frames alone") {
  const test::Folder folder;
  const auto frames = folder / "a.frames";
  folder.write("a.frames/frame_00000.png", "");
  CHECK_NOTHROW(probe_output(frames));
  CHECK(plan_outputs(frames.string() + "/", 1, {".mp4", ".frames"}) == std::vector{frames});
  CHECK(plan_outputs((folder / "c.frames/").string(), 1, {".frames"}) ==
        std::vector{folder / "c.frames"});
  folder.write("a.frames/notes.txt", "");
  CHECK(message_of([&] { plan_outputs(frames, 1, {".frames"}); }) ==
        "--output: " + frames.string() +
            ": holds notes.txt; expected an empty folder, or one with frames alone");
  const auto nowhere = folder / "none/a.frames";
  CHECK(message_of([&] { probe_output(nowhere); }) ==
        nowhere.string() + ": cannot be written: No such file or directory");
  CHECK(message_of([&] {
          probe_output(folder.write("b.frames", ""));
        }).ends_with("b.frames: is a file; expected a folder, or nothing yet"));
}

TEST_CASE("an output that is a folder gets numbers") {
  const test::Folder folder;
  CHECK(plan_outputs(folder.path(), 2, {".png"}) ==
        Paths{folder.path() / "0000.png", folder.path() / "0001.png"});
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace diptych
