// Items to files: names, collisions, what counts as finished, who shares a forward.
#include "lib/batch/plan.h"

#include "lib/base/atomic_file.h"
#include "lib/base/sha256.h"
#include "tests/batch/support.h"

namespace diptych {
namespace {

using test::message_of;
using test::read_list;
using Paths = std::vector<std::filesystem::path>;

std::vector<PlannedItem> plan(const test::Folder& folder, const std::string& lines) {
  return plan_batch(read_list(folder, "l.jsonl", lines), test::plain_defaults(),
                    folder.path() / "out");
}

TEST_CASE("results are numbered or named, answers are texts") {
  const test::Folder folder;
  const auto items = plan(folder,
                          "{\"prompt\": \"a\"}\n"
                          "{\"prompt\": \"a\", \"batch_count\": 2}\n"
                          "{\"prompt\": \"a\", \"task\": \"chat\"}\n"
                          "{\"prompt\": \"a\", \"output\": \"./x/y.png\", \"think\": true, "
                          "\"think_output\": \"x/y.txt\", \"trace\": \"t.safetensors\"}\n"
                          "{\"prompt\": \"a\", \"task\": \"chat\", \"output\": \"a.png\"}\n"
                          "{\"prompt\": \"a\", \"think_output\": \"p.txt\"}\n");
  CHECK(items[0].files == Paths{"0000.png"});
  CHECK(items[1].results == Paths{"0001-000.png", "0001-001.png"});
  CHECK(items[2].files == Paths{"0002.txt"});
  CHECK(items[3].results == Paths{"x/y.png"});
  CHECK(items[3].files == Paths{"x/y.png", "x/y.txt", "t.safetensors"});
  CHECK(items[3].options.think_output == folder.path() / "out/x/y.txt");
  CHECK(items[3].options.run.trace == folder.path() / "out/t.safetensors");
  CHECK(items[4].error ==
        items[4].where + ": output: a.png: is named as a PNG file; expected .txt or .json");
  CHECK(items[4].files.empty());
  CHECK(items[5].error == items[5].where +
                              ": think_output: given without a plan to paint by; expected think "
                              "and a task that paints");
}

TEST_CASE(
    "what a stage config says of edits is known where an edit fails, and where nothing is one") {
  const test::Folder folder;
  Sources sources;
  sources.families = {&bagel_config()};
  sources.flags["-c,--config"] = {
      folder.write("c.yaml", "model: m\nstages: [{stage_id: 0}]\n").string()};
  sources.overrides.emplace_back("stages.0.edit_sampling_params.seed=18446744073709551615");
  sources.overrides.emplace_back("stages.0.edit_sampling_params.num_outputs_per_prompt=2");
  const Resolved defaults = resolve_sources(sources);
  const auto plan_of = [&](const std::string& lines) {
    return plan_batch(read_list(folder, "l.jsonl", lines), defaults, folder.path() / "out");
  };
  folder.write("a.png", "");
  const auto items = plan_of("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"image\": \"none.png\"}\n");
  CHECK(items[0].error.empty());
  CHECK(items[1].error.find("none.png: no such file") != std::string::npos);
  CHECK(items[1].options.run.sampling.seed == 18446744073709551615U);
  CHECK(message_of([&] {
          plan_of("{\"prompt\": \"a\"}\n");
        }).find("does nothing for any item: has an effect on --task edit alone") !=
        std::string::npos);
}

TEST_CASE("two items of one file are refused") {
  const test::Folder folder;
  const auto error = [&](const std::string& lines) {
    const std::string message = message_of([&] { plan(folder, lines); });
    return message.substr(std::min(message.find("l.jsonl"), message.size()));
  };
  const std::string other = "{\"prompt\": \"a\", \"output\": \"0000.png\"}\n";
  CHECK(error("{\"prompt\": \"a\"}\n" + other) == "l.jsonl:2: writes 0000.png, as " +
                                                      (folder.path() / "l.jsonl:1").string() +
                                                      " does; give one of them another output");
  CHECK(error("{\"prompt\": \"a\", \"output\": \"x/./a.png\"}\n"
              "{\"prompt\": \"a\", \"output\": \"x/a.png\"}\n")
            .starts_with("l.jsonl:2: writes x/a.png"));
  CHECK(error("{\"prompt\": \"a\", \"output\": \"a.txt\", \"task\": \"chat\"}\n"
              "{\"prompt\": \"a\", \"think\": true, \"think_output\": \"a.txt\"}\n")
            .starts_with("l.jsonl:2: writes a.txt"));
  // A file is no folder.
  CHECK(error("{\"prompt\": \"a\", \"output\": \"a.png/x/b.png\"}\n"
              "{\"prompt\": \"b\", \"output\": \"a.png\"}\n")
            .starts_with("l.jsonl:1: writes a.png/x/b.png into a.png, which is a file of "));
  // An item that cannot run writes nothing.
  CHECK(message_of([&] { plan(folder, "{\"steps\": 0}\n" + other); }) == "no error");
}

TEST_CASE("an item that would replace what the list reads is refused") {
  const test::Folder folder;
  const std::string where = (folder.path() / "l.jsonl").string();
  folder.write("out/a.png", "pixels");
  folder.write("out/n.safetensors", "noise");
  std::filesystem::create_symlink("a.png", folder.path() / "out/link.png");
  const auto error = [&](const std::string& lines) {
    return message_of([&] { plan(folder, lines); });
  };
  const std::string reads = "{\"prompt\": \"a\", \"image\": \"out/a.png\"";
  CHECK(error(reads + ", \"output\": \"a.png\"}\n") ==
        where + ":1: writes a.png, which it reads; give it another output");
  CHECK(error(reads + "}\n{\"prompt\": \"a\", \"output\": \"link.png\"}\n") ==
        where + ":2: writes link.png, which " + where + ":1 reads; give it another output");
  CHECK(error("{\"prompt\": \"a\", \"trace\": \"n.safetensors\"}\n"
              "{\"prompt\": \"a\", \"noise\": \"out/n.safetensors\"}\n") ==
        where + ":1: writes n.safetensors, which " + where + ":2 reads; give it another output");
  CHECK(error(reads + "}\n") == "no error");
}

TEST_CASE("an output behind a link that leads out of the folder is refused") {
  const test::Folder folder;
  namespace fs = std::filesystem;
  fs::create_directories(folder / "out/real");
  fs::create_directories(folder / "elsewhere");
  fs::create_directory_symlink("../elsewhere", folder / "out/away");
  fs::create_directory_symlink("real", folder / "out/within");
  fs::create_directory_symlink("away", folder / "out/chain");
  fs::create_symlink("../elsewhere/new.png", folder / "out/dangling.png");
  fs::create_directory_symlink("out", folder / "same");
  const std::string where = (folder / "l.jsonl").string();
  const auto error = [&](const std::string& output, const char* into) {
    const BatchList list =
        read_list(folder, "l.jsonl", "{\"prompt\": \"a\", \"output\": \"" + output + "\"}\n");
    return message_of([&] { plan_batch(list, test::plain_defaults(), folder / into); });
  };
  for (const char* name : {"away/x.png", "away/new/x.png", "chain/x.png", "dangling.png"}) {
    CHECK(error(name, "out") == where + ":1: " + name +
                                    " is behind a link that leads out of the output folder; give "
                                    "it another output");
  }
  for (const char* name : {"within/x.png", "real/x.png", "x.png", "new/x.png"})
    CHECK(error(name, "out") == "no error");
  for (const char* into : {"not-there", "not-there/", "not-there/sub/", "./not-there/.", "out/"})
    CHECK(error("x.png", into) == "no error");
  CHECK(error("real/x.png", "same") == "no error");  // the folder itself may be a link
  CHECK(error("away/x.png", "same") != "no error");
  CHECK(error("x.png", "none") == "no error");
}

TEST_CASE("keys without a meaning are the item's error, flags without one are not") {
  const test::Folder folder;
  Resolved defaults = test::plain_defaults();
  defaults.origins[field_index("steps")] = "--steps";
  const BatchList list = read_list(
      folder, "l.jsonl",
      "{\"prompt\": \"a\", \"task\": \"chat\"}\n"
      "{\"prompt\": \"a\", \"task\": \"chat\", \"steps\": 5}\n"
      "{\"prompt\": \"a\", \"top_k\": 5}\n{}\n{\"prompt\": \"a\", \"noise\": \"n.st\"}\n");
  const auto items = plan_batch(list, defaults, "out");
  CHECK(items[0].error.empty());
  CHECK(items[1].error ==
        items[1].where + ": steps: has no meaning for task chat, which paints nothing");
  CHECK(items[2].error == items[2].where + ": top_k: given without think");
  CHECK(items[3].error.starts_with(items[3].where + ": prompt: not given"));
  CHECK(items[4].error ==
        items[4].where + ": noise: " + (folder.path() / "n.st").string() + ": no such file");
}

TEST_CASE("a flag that does nothing for any item is refused") {
  const test::Folder folder;
  const auto error = [&](const char* flag, const char* field, const std::string& lines) {
    Resolved defaults = test::plain_defaults();
    defaults.origins[field_index(field)] = flag;
    return message_of(
        [&] { plan_batch(read_list(folder, "l.jsonl", lines), defaults, folder.path() / "out"); });
  };
  const std::string picture = "{\"prompt\": \"a\"}\n";
  const std::string answer = "{\"prompt\": \"a\", \"task\": \"chat\"}\n";
  CHECK(error("--top-k", "top_k", picture + picture) ==
        "--top-k: does nothing for any item: given without --think");
  CHECK(error("--cache-threshold", "cache_threshold", picture).starts_with("--cache-threshold: "));
  CHECK(error("--steps", "steps", answer + answer).starts_with("--steps: does nothing"));
  CHECK(error("--seed", "seed", answer) ==
        "--seed: does nothing for any item: given without --temperature, and so nothing is drawn");
  CHECK(error("--steps", "steps", answer + picture) == "no error");
  CHECK(error("--top-k", "top_k",
              picture + "{\"prompt\": \"a\", \"think\": true, "
                        "\"temperature\": 0.5}\n") == "no error");
  CHECK(error("DIPTYCH_TOP_K", "top_k", picture) == "no error");  // may serve other runs
}

TEST_CASE("a file that cannot even be looked for is its item's error") {
  const test::Folder folder;
  const std::string name(300, 'x');
  const auto items = plan(folder, "{\"prompt\": \"a\", \"image\": \"" + name + "\"}\n" +
                                      "{\"prompt\": \"a\", \"noise\": \"" + name + "\"}\n" +
                                      "{\"prompt\": \"a\"}\n");
  const std::string rest = ": " + (folder.path() / name).string() + ": File name too long";
  CHECK(items[0].error == items[0].where + ": image" + rest);
  CHECK(items[1].error == items[1].where + ": noise" + rest);
  CHECK(items[2].error.empty());
}

TEST_CASE("an item's errors speak of its keys, and of the flags that gave the rest") {
  const test::Folder folder;
  Resolved defaults = test::plain_defaults();
  defaults.origins[field_index("seed")] = "--seed";
  defaults.origins[field_index("steps")] = "DIPTYCH_STEPS";
  const auto error = [&](const std::string& name, const std::string& text,
                         const InputError& refused) {
    const auto items = plan_batch(read_list(folder, name, text), defaults, "out");
    const std::string said = item_error(items[0], defaults, refused);
    CHECK(said.starts_with(items[0].where + ": "));
    return said.substr(std::min(said.size(), items[0].where.size() + 2));
  };
  const auto keyed = [&](const InputError& refused) {
    return error("l.jsonl", R"({"size": "64x32", "cfg_text_scale": 2, "inputs": [{"text": "a"}]})",
                 refused);
  };
  const auto found = [](std::string_view name) { return InputError(Setting::of(name), "is 8"); };
  CHECK(keyed(found("width")) == "size: width: is 8");
  CHECK(keyed(InputError(Setting::of("cfg_text_scale").called("--cfg-scale"), "is 8")) ==
        "cfg_text_scale: is 8");
  CHECK(keyed(found("prompt")) == "inputs: is 8");
  CHECK(keyed(found("seed")) == "--seed: is 8");  // the whole batch's flag
  CHECK(keyed(found("max_tokens")) == "max_tokens: is 8");
  CHECK(keyed(found("steps")) == "DIPTYCH_STEPS: is 8");
  const SettingText advice = {"is 8; ", Setting::of("vae_tiling", "on"), " (or ",
                              Setting::of("offload", "layers"), ") would do"};
  CHECK(keyed(InputError(Setting::of("max_vram"), advice)) ==
        "--max-vram: is 8; vae_tiling on (or --offload layers) would do");
  CHECK(keyed(InputError("the latent is not finite")) == "the latent is not finite");
  const InputError task(Setting::of("task", "edit"),
                        SettingText{"needs a picture; expected ", Setting::of("image", "FILE")});
  CHECK(keyed(task) == "task edit: needs a picture; expected image FILE");
  const auto line = [&](const InputError& refused) { return error("l.txt", "a\n", refused); };
  CHECK(line(found("prompt")) == "is 8");
  CHECK(line(InputError(Setting::of("width"), SettingText{"is 8; see ", Setting::of("size")})) ==
        "--width: is 8; see --size");
  CHECK(line(found("steps")) == "DIPTYCH_STEPS: is 8");
}

TEST_CASE("a seed beside start noise needs something else to draw") {
  const test::Folder folder;
  folder.write("n.safetensors", "noise");
  folder.write("a.png", "pixels");
  const auto error = [&](const std::string& keys) {
    const auto items =
        plan(folder, "{\"prompt\": \"a\", \"seed\": 5, \"noise\": \"n.safetensors\"" + keys + "}");
    return items[0].error.substr(std::min(items[0].error.size(), items[0].where.size()));
  };
  CHECK(error("") == ": seed: given together with noise; expected one of them");
  CHECK_FALSE(error(", \"think\": true").empty());  // greedy
  CHECK(error(", \"think\": true, \"temperature\": 0.7").empty());
  CHECK(error(", \"image\": \"a.png\"").empty());
}

TEST_CASE("what only guidance uses needs guidance") {
  const test::Folder folder;
  const auto error = [&](const std::string& keys) {
    const auto items = plan(folder, "{\"prompt\": \"a\", " + keys + "}");
    return items[0].error.substr(std::min(items[0].error.size(), items[0].where.size()));
  };
  for (const std::string key :
       {"\"cfg_mode\": \"sequential\"", "\"cfg_interval\": [0, 1]",
        "\"cfg_renorm_type\": \"channel\"", "\"cfg_renorm_min\": 0.5", "\"cfg_img_scale\": 2"}) {
    CAPTURE(key);
    CHECK(error(key + ", \"cfg_scale\": 1.5").empty());
    CHECK(error(key + ", \"cfg_scale\": 1").find(": has no effect without text guidance") !=
          std::string::npos);
  }
  CHECK(error("\"cfg_img_scale\": 1, \"cfg_scale\": 1").empty());
  CHECK(error("\"cfg_renorm_type\": \"channel\", \"cfg_renorm_min\": 1") ==
        ": cfg_renorm_type: has no effect with cfg_renorm_min 1, which switches the renorm off");
}

TEST_CASE("what is wrong with the command is no failure of its items") {
  const test::Folder folder;
  Resolved defaults = test::plain_defaults();
  const auto error = [&](const std::string& lines) {
    return message_of(
        [&] { plan_batch(read_list(folder, "l.jsonl", lines), defaults, folder.path() / "out"); });
  };
  const std::string item = "{\"prompt\": \"a\"}\n";
  const std::string noise = (folder.path() / "no.safetensors").string();
  assign(all_fields()[field_index("noise")], defaults.options, noise, "");
  defaults.note(field_index("noise"), "DIPTYCH_NOISE");
  CHECK(error(item + item) == "DIPTYCH_NOISE: " + noise + ": no such file");
  // Not where one can run, or fails by what is its own.
  folder.write("there.safetensors", "");
  CHECK(error(item + "{\"prompt\": \"a\", \"noise\": \"there.safetensors\"}\n") == "no error");
  CHECK(error(item + "{\"prompt\": \"a\", \"noise\": \"other.safetensors\"}\n") == "no error");
  CHECK(error("{\"prompt\": \"a\", \"noise\": \"other.safetensors\"}\n") == "no error");
}

TEST_CASE("an interval may be written as the flag's text, and a failed item keeps its seed") {
  const test::Folder folder;
  const auto items = plan(folder,
                          "{\"prompt\": \"a\", \"cfg_interval\": \"0.4,1\"}\n"
                          "{\"prompt\": \"a\", \"cfg_interval\": \"1,0\", \"seed\": 7}\n");
  CHECK(items[0].error.empty());
  CHECK(items[0].options.run.sampling.cfg_interval_low == 0.4);
  CHECK_FALSE(items[1].error.empty());
  CHECK(items[1].options.run.sampling.seed == 7);
}

TEST_CASE("what an item lacks is named by its keys") {
  const test::Folder folder;
  const auto items = plan(folder, "{}\n{\"prompt\": \"-\"}\n");
  CHECK(items[0].error ==
        items[0].where + ": prompt: not given; expected a text (\"\" is one), or inputs");
  CHECK(items[1].error.empty());
  CHECK(items[1].options.run.prompt() == "-");
  folder.write("a.png", "pixels");
  const auto pictures = plan(folder, "{\"image\": \"a.png\"}\n");
  CHECK(pictures[0].error ==
        pictures[0].where + ": prompt: not given; expected a text (\"\" is one), or inputs");
}

TEST_CASE("a request's hash knows its values, its pictures' content and its files") {
  const test::Folder folder;
  folder.write("a.png", "pixels");
  const auto hash = [&](const std::string& line) {
    const auto items = plan(folder, line);
    REQUIRE(items[0].error.empty());
    return request_hash(items[0]);
  };
  const std::string first = hash("{\"prompt\": \"a\", \"image\": \"a.png\"}");
  CHECK(hash("{\"image\": \"a.png\", \"prompt\": \"a\", \"seed\": 42}") == first);
  CHECK(hash("{\"prompt\": \"b\", \"image\": \"a.png\"}") != first);
  CHECK(hash("{\"prompt\": \"a\", \"image\": \"a.png\", \"seed\": 43}") != first);
  CHECK(hash("{\"prompt\": \"a\", \"image\": \"a.png\", \"output\": \"b.png\"}") != first);
  folder.write("a.png", "others");
  CHECK(hash("{\"prompt\": \"a\", \"image\": \"a.png\"}") != first);
  folder.write("a.png", "pixels");
  folder.write("b.png", "pixels");  // the same picture by another name
  CHECK(hash("{\"prompt\": \"a\", \"image\": \"b.png\"}") == first);
}

TEST_CASE("finished is what the manifest says and the files confirm") {
  const test::Folder folder;
  const auto items = plan(folder, "{\"prompt\": \"a\", \"batch_count\": 2}");
  const auto out = folder.path() / "out";
  ManifestRecord record;
  record.ok = true;
  record.request = request_hash(items[0]);
  for (const char* name : {"0000-000.png", "0000-001.png"}) {
    folder.write(std::string("out/") + name, name);
    record.files.push_back({name, *file_sha256(out / name)});
  }
  CHECK(is_finished(items[0], record, out));
  ManifestRecord changed = record;
  changed.request += "0";
  CHECK_FALSE(is_finished(items[0], changed, out));
  changed = record;
  changed.ok = false;
  CHECK_FALSE(is_finished(items[0], changed, out));
  changed = record;
  changed.files.pop_back();
  CHECK_FALSE(is_finished(items[0], changed, out));
  folder.write("out/0000-001.png", "cut");
  CHECK_FALSE(is_finished(items[0], record, out));
  std::filesystem::remove(out / "0000-001.png");
  CHECK_FALSE(is_finished(items[0], record, out));
}

TEST_CASE("neighbours that may share are grouped, up to the most") {
  using Groups = std::vector<std::vector<std::size_t>>;
  const auto same = [](const std::string& kinds) {
    return [kinds](std::size_t a, std::size_t b) { return kinds[a] == kinds[b]; };
  };
  CHECK(share_groups(5, 2, same("aaaaa")) == Groups{{0, 1}, {2, 3}, {4}});
  CHECK(share_groups(5, 9, same("aabba")) == Groups{{0, 1}, {2, 3}, {4}});
  CHECK(share_groups(3, 1, same("aaa")) == Groups{{0}, {1}, {2}});
  CHECK(share_groups(0, 4, same("")).empty());
  // Each with each, whatever neighbours say.
  const auto near = [](std::size_t a, std::size_t b) { return b - a < 2; };
  CHECK(share_groups(4, 4, near) == Groups{{0, 1}, {2, 3}});
}

TEST_CASE("a folder of frames is finished, hashed and removed as a file is") {
  const test::Folder folder;
  Sources sources;
  sources.families = {&test::clip_family()};
  sources.flags["-m,--model"] = {"cinema"};
  const auto plan_of = [&](const std::string& line) {
    return plan_batch(read_list(folder, "l.jsonl", line), resolve_sources(sources),
                      folder.path() / "out");
  };
  const auto items = plan_of(
      "{\"prompt\": \"a\", \"output\": \"a.frames\", \"contact_sheet\": "
      "\"s/a.png\"}\n{\"prompt\": \"a\", \"task\": \"t2v\"}");
  CHECK(items[0].options.run.task == "t2v");
  CHECK(items[0].files == Paths{"a.frames", "s/a.png"});
  CHECK(items[0].options.contact_sheet == folder.path() / "out/s/a.png");
  CHECK(items[1].files == Paths{fmt::format("0001{}", written_clip_extensions().front())});
  const auto out = folder.path() / "out";
  folder.write("out/a.frames/frame_00000.png", "one");
  folder.write("out/s/a.png", "sheet");
  ManifestRecord record;
  record.ok = true;
  record.request = request_hash(items[0]);
  for (const auto& name : items[0].files)
    record.files.push_back({name.string(), *file_sha256(out / name)});
  CHECK(is_finished(items[0], record, out));
  folder.write("out/a.frames/frame_00001.png", "two");
  CHECK_FALSE(is_finished(items[0], record, out));
  folder.write("out/a.frames.partial-12/frame_00000.png", "one");
  CHECK(remove_partial_files(out, items[0].files) == 1);
  CHECK_FALSE(std::filesystem::exists(out / "a.frames.partial-12"));
  const auto other = plan_of(
      "{\"prompt\": \"a\", \"output\": \"a.frames\", \"video_frames\": 5, "
      "\"contact_sheet\": \"s/a.png\"}\n");
  CHECK(request_hash(other[0]) != record.request);
}

TEST_CASE("only what a killed run left of these files is removed") {
  const test::Folder folder;
  for (const char* name :
       {"a.png.partial-12", "b/c.png.partial-3", "a.png.partial-", "x.png.partial-1",
        "a.png.partial-1x", "a.png", "manifest.jsonl.partial-77"})
    folder.write(name, "x");
  CHECK(remove_partial_files(folder.path(), {"a.png", "b/c.png", "manifest.jsonl", "none/d.png"}) ==
        3);
  const std::string long_name(255, 'n');
  folder.write(partial_stem(long_name) + ".partial-5", "x");
  CHECK(remove_partial_files(folder.path(), {long_name}) == 1);
  for (const char* left : {"a.png.partial-", "x.png.partial-1", "a.png.partial-1x", "a.png"})
    CHECK(std::filesystem::exists(folder.path() / left));
}

}  // namespace
}  // namespace diptych
