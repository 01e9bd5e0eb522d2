// Lists of all kinds: what they mean, and what is refused where.
#include "lib/batch/list.h"

#include <random>

#include "tests/batch/support.h"

namespace diptych {
namespace {

using test::list_error;
using test::message_of;
using test::read_list;

TEST_CASE("an item that edits takes what the stage config says of edits") {
  const test::Folder folder;
  const auto config = folder.write("c.yaml",
                                   "model: m\nstages:\n  - stage_id: 0\n"
                                   "    edit_sampling_params: {extra_args: {cfg_text_scale: 2}}\n");
  Sources sources;
  sources.families = {&bagel_config()};
  sources.flags["-c,--config"] = {config.string()};
  const Resolved defaults = resolve_sources(sources);
  const BatchList list =
      test::read_list(folder, "l.jsonl",
                      "{\"prompt\": \"a\"}\n{\"image\": \"a.png\", \"prompt\": \"b\"}\n"
                      "{\"image\": \"a.png\", \"prompt\": \"c\", \"cfg_scale\": 3}\n");
  const auto scale = [&](std::size_t item) {
    return resolve_item(defaults, list.items[item]).options.run.sampling.cfg_text_scale;
  };
  CHECK(scale(0) == 4);
  CHECK(scale(1) == 2);
  CHECK(scale(2) == 3);
}

TEST_CASE("a .txt holds a prompt a line") {
  const test::Folder folder;
  const BatchList list = read_list(
      folder, "p.txt", "\xEF\xBB\xBF a fox \r\n\n# not this\n  \t\n#nor this\nb # c\n\"d\"");
  REQUIRE(list.items.size() == 3);
  CHECK(list.items[0].prompt == " a fox ");
  CHECK(list.items[1].prompt == "b # c");
  CHECK(list.items[2].prompt == "\"d\"");
  CHECK(list.skipped_lines == 4);
  CHECK(list.items[0].id == "0000");
  CHECK(list.items[1].where == (folder.path() / "p.txt:6").string());
  CHECK(list.items[2].number == 2);
}

TEST_CASE("a .jsonl and a .yaml with the same items are the same list") {
  const test::Folder folder;
  const BatchList json =
      read_list(folder, "l.jsonl",
                "{\"id\": \"fox\", \"prompt\": \"a \\u00e9 \\ud83d\\ude00\", \"steps\": 7, "
                "\"cfg_scale\": 3.5, "
                "\"cfg_interval\": [0.25, 1], \"size\": \"64x32\", \"output\": \"a/fox.png\"}\n\n"
                "{\"image\": [\"a.png\", \"/b.png\"], \"think\": true, \"prompt\": \"\"}\n"
                "{\"inputs\": [{\"text\": \"t\"}, {\"image\": \"c.png\"}], \"id\": 12, "
                "\"seed\": 18446744073709551615, \"trace_filter\": [\"a*\", \"b\"], \"trace\": "
                "\"t.safetensors\"}\n");
  const BatchList yaml = read_list(folder, "l.yaml",
                                   "items:\n"
                                   "  - id: fox\n"
                                   "    prompt: \"a \\u00e9 \\U0001F600\"\n"
                                   "    steps: 7\n"
                                   "    cfg_scale: 3.5\n"
                                   "    cfg_interval: [0.25, 1]\n"
                                   "    size: 64x32\n"
                                   "    output: a/fox.png\n"
                                   "  - {image: [a.png, /b.png], think: true, prompt: ''}\n"
                                   "  - inputs: [{text: t}, {image: c.png}]\n"
                                   "    id: 12\n"
                                   "    seed: 18446744073709551615\n"
                                   "    trace_filter: [a*, b]\n"
                                   "    trace: t.safetensors\n");
  for (const BatchList* list : {&json, &yaml}) {
    REQUIRE(list->items.size() == 3);
    const BatchItem& fox = list->items[0];
    CHECK(fox.problem.empty());
    CHECK(fox.id == "fox");
    CHECK(fox.output == "a/fox.png");
    CHECK(fox.prompt == "a \xC3\xA9 \xF0\x9F\x98\x80");
    const Options options = resolve_item(test::plain_defaults(), fox).options;
    CHECK(options.run.task == "t2i");
    CHECK(options.run.sampling.steps == 7);
    CHECK(options.run.sampling.cfg_text_scale == 3.5);
    CHECK(options.run.sampling.cfg_interval_low == 0.25);
    CHECK(options.run.sampling.width == 64);
    CHECK(options.run.sampling.height == 32);

    const RunConfig edit = resolve_item(test::plain_defaults(), list->items[1]).options.run;
    CHECK(edit.task == "edit");
    CHECK(edit.think);
    CHECK(edit.sampling.cfg_img_scale == 2);  // the default of editing
    REQUIRE(edit.inputs.size() == 3);
    CHECK(edit.inputs[0].image == folder.path() / "a.png");
    CHECK(edit.inputs[1].image == "/b.png");
    CHECK_FALSE(edit.inputs[2].is_image());

    CHECK(list->items[2].id == "12");
    const RunConfig both = resolve_item(test::plain_defaults(), list->items[2]).options.run;
    CHECK(both.sampling.seed == 18446744073709551615u);
    CHECK(both.inputs[0].text == "t");
    CHECK(both.inputs[1].image == folder.path() / "c.png");
    CHECK(both.trace == "t.safetensors");  // below the output folder
    CHECK(both.trace_filter == std::vector<std::string>{"a*", "b"});
  }
  CHECK(json.items[1].where.ends_with("l.jsonl:3"));
  CHECK(yaml.items[1].where.ends_with("l.yaml:9"));
}

TEST_CASE("an item's inputs take the place of the defaults' of their kind") {
  const test::Folder folder;
  Resolved defaults = test::plain_defaults();
  defaults.options.run.inputs = {{"default", {}}, {{}, "d.png"}};
  const BatchList list = read_list(folder, "l.jsonl",
                                   "{\"seed\": 1}\n{\"prompt\": \"p\"}\n{\"image\": "
                                   "\"/i.png\"}\n{\"inputs\": [{\"text\": \"x\"}]}\n");
  const auto inputs = [&](std::size_t item) {
    return inputs_text(resolve_item(defaults, list.items[item]).options.run.inputs);
  };
  CHECK(inputs(0) == R"([{"text":"default"},{"image":"d.png"}])");
  CHECK(inputs(1) == R"([{"image":"d.png"},{"text":"p"}])");
  CHECK(inputs(2) == R"([{"image":"/i.png"},{"text":"default"}])");
  CHECK(inputs(3) == R"([{"text":"x"}])");
}

TEST_CASE("an item may read clips") {
  const test::Folder folder;
  const std::string lines =
      "{\"prompt\": \"red\", \"video\": \"a.mp4\"}\n"
      "{\"prompt\": \"red\", \"image\": \"a.png\", \"output\": \"b/a.mp4\"}\n"
      "{\"inputs\": [{\"video\": \"a.mp4\"}, {\"text\": \"t\"}], \"contact_sheet\": \"s.png\"}\n"
      "{\"prompt\": \"p\", \"video\": []}\n"
      "{\"video\": \"a.mp4\", \"inputs\": [{\"text\": \"t\"}]}\n"
      "{\"inputs\": [{\"text\": \"t\", \"video\": \"a.mp4\"}]}\n";
  Sources sources;
  sources.families = {&test::clip_family()};
  sources.flags["-m,--model"] = {"cinema"};
  const Resolved defaults = resolve_sources(sources);
  const BatchList list = read_list(folder, "l.jsonl", lines);
  const auto options = [&](std::size_t item) {
    return resolve_item(defaults, list.items[item]).options;
  };
  CHECK(options(0).run.task == "video_edit");
  CHECK(options(0).run.inputs[0].video == folder.path() / "a.mp4");
  CHECK(options(1).run.task == "i2v");  // as the name of its output says
  CHECK(options(2).run.task == "video_edit");
  CHECK(options(2).run.inputs[0].is_video());
  CHECK(options(2).contact_sheet == "s.png");  // below the output folder
  const auto problem = [&](std::size_t item) {
    return list.items[item].problem.substr(list.items[item].where.size());
  };
  CHECK(problem(3) == ": video: is empty; expected a path, or several");
  CHECK(problem(4) == ": inputs: given together with video; expected one of them");
  CHECK(problem(5) == ": inputs: expected one of text, image and video in each");
}

TEST_CASE("a broken list is refused whole, with its place") {
  CHECK(list_error("l.csv", "a") ==
        "l.csv: found .csv, expected a .txt, .jsonl or .yaml file, or -");
  CHECK(list_error("l.txt", "\n#\n") == "l.txt: holds no item");
  CHECK(list_error("l.txt", "a\n\xFF\n") == "l.txt:2: not valid UTF-8: byte 0xFF at offset 0");
  CHECK(list_error("l.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \n") ==
        "l.jsonl:2: is not valid JSON at byte 12");
  CHECK(list_error("l.jsonl", "{\"prompt\":\"a\",\"cfg_scale\":1e999}") ==
        "l.jsonl:1: a number that ends before byte 31 is out of range");
  CHECK(list_error("l.jsonl", "[1]") == "l.jsonl:1: expected a map of keys, found a list");
  CHECK(list_error("l.jsonl", "{\"id\": \"a\", \"id\": \"b\"}") == "l.jsonl:1: duplicate key 'id'");
  CHECK(list_error("l.jsonl", std::string(100, '[')) == "l.jsonl:1: nested deeper than 64 levels");
  CHECK(list_error("l.jsonl", "{\"prmpt\": \"a\"}")
            .starts_with("l.jsonl:1: unknown key 'prmpt' (did you mean 'prompt'? known: id, "));
  CHECK(list_error("l.jsonl", "{\"device\": \"cpu\"}") ==
        "l.jsonl:1: device: holds for the whole batch, which loads one model; expected the flag "
        "--device");
  CHECK(list_error("l.jsonl", "{\"attention\": \"math\"}")
            .starts_with("l.jsonl:1: attention: holds for the whole batch"));
  CHECK(list_error("l.jsonl", "{\"id\": 5}\n{\"id\": \"5\"}") ==
        "l.jsonl:2: id: '5' is also the id of l.jsonl:1");
  for (const char* name : {"../a.png", "/a.png", "a/../../b.png", ".", "a/"}) {
    CAPTURE(name);
    CHECK(list_error("l.jsonl", fmt::format("{{\"output\": \"{}\"}}", name)) ==
          fmt::format("l.jsonl:1: output: '{}' is no name below the output folder", name));
  }
  CHECK(list_error("l.yaml", "prompt: a").starts_with("l.yaml:1:1: key 'items' is missing"));
  CHECK(list_error("l.yaml", "- prompt: a\n- sede: 4\n")
            .starts_with("l.yaml:2: unknown key 'sede' (did you mean 'seed'?"));
  CHECK(list_error("l.yaml", "a: [").starts_with("l.yaml:"));
}

TEST_CASE("a bad value is the item's own problem") {
  const test::Folder folder;
  const auto problem = [&](const std::string& line) {
    const BatchList list = read_list(folder, "l.jsonl", line);
    const std::string message =
        message_of([&] { resolve_item(test::plain_defaults(), list.items.at(0)); });
    return message.substr(message.find("l.jsonl"));
  };
  CHECK(problem("{\"prompt\": \"a\", \"steps\": \"30\"}") ==
        "l.jsonl:1: steps: expected a number, found the text '30'");
  CHECK(problem("{\"prompt\": \"a\", \"seed\": \"abc\"}") ==
        "l.jsonl:1: seed: expected a number or random, found the text 'abc'");
  CHECK(problem("{\"prompt\": \"a\", \"steps\": 1e30}") ==
        "l.jsonl:1: steps: '1e30' is not a whole number");
  CHECK(problem("{\"prompt\": \"a\", \"cfg_mode\": \"both\"}")
            .starts_with("l.jsonl:1: cfg_mode: unknown value 'both'"));
  CHECK(problem("{\"prompt\": \"a\", \"size\": \"64x32\", \"width\": 64}") ==
        "l.jsonl:1: width: given together with " + folder.path().string() +
            "/l.jsonl:1: size; expected one of them");
  CHECK(problem("{\"prompt\": 5}") == "l.jsonl:1: prompt: expected a text, found the number 5");
  CHECK(problem("{\"prompt\": true}") == "l.jsonl:1: prompt: expected a text, found true");
  CHECK(problem("{\"prompt\": \"a\", \"negative_prompt\": -1e99}") ==
        "l.jsonl:1: negative_prompt: expected a text, found the number -1e99");
  CHECK(problem("{\"inputs\": [{\"text\": 0.5}]}") ==
        "l.jsonl:1: inputs: expected a text, found the number 0.5");
  CHECK(problem("{\"prompt\": null}") == "l.jsonl:1: prompt: expected a text, found nothing");
  CHECK(problem("{\"prompt\": \"a\\u0000\"}") == "l.jsonl:1: prompt: a NUL character at offset 1");
  CHECK(problem("{\"image\": \"\"}") ==
        "l.jsonl:1: image: is empty or holds a NUL; expected a path");
  CHECK(problem("{\"inputs\": [{}]}") ==
        "l.jsonl:1: inputs: expected one of text, image and video in each");
  CHECK(problem("{\"prompt\": \"a\", \"inputs\": []}") ==
        "l.jsonl:1: inputs: given together with prompt; expected one of them");
  const BatchList edit = read_list(folder, "l.jsonl", "{\"task\": \"edit\", \"prompt\": \"a\"}");
  CHECK(message_of([&] { resolve_item(test::plain_defaults(), edit.items[0]); }) ==
        "--task edit: needs a picture; expected --image FILE");
}

TEST_CASE("a number is an id, but no picture") {
  const test::Folder folder;
  const BatchList list = read_list(folder, "l.jsonl",
                                   "{\"prompt\": \"a\", \"id\": 7}\n"
                                   "{\"prompt\": \"a\", \"id\": 7.50}\n"
                                   "{\"prompt\": \"a\", \"image\": 7}\n"
                                   "{\"prompt\": \"a\", \"image\": [\"7\", 7]}\n"
                                   "{\"prompt\": \"a\", \"image\": \"7\"}\n");
  CHECK(list.items[0].id == "7");
  CHECK(list.items[1].id == "7.50");
  for (const std::size_t i : {2U, 3U})
    CHECK(list.items[i].problem.ends_with("image: expected a text, found the number 7"));
  CHECK(list.items[4].problem.empty());
  const BatchList plain =
      read_list(folder, "l.yaml", "- {prompt: a, image: 7, id: 7}\n- {prompt: a, image: 7.png}\n");
  CHECK(plain.items[0].id == "7");
  CHECK(plain.items[0].problem.ends_with("image: expected a text, found the number 7"));
  CHECK(plain.items[1].problem.empty());
  CHECK(list_error("l.jsonl", "{\"prompt\": \"a\", \"id\": 7}\n{\"prompt\": \"a\", \"id\": \"7\"}")
            .starts_with("l.jsonl:2: id: '7' is also the id of l.jsonl:1"));
}

TEST_CASE("a plain prompt of a .yaml is a text unless it is a number") {
  const test::Folder folder;
  const BatchList list = read_list(
      folder, "l.yaml", "- {prompt: 7 cats}\n- {prompt: inf}\n- {prompt: '5'}\n- {prompt: 5}\n");
  CHECK(list.items[0].prompt == "7 cats");
  CHECK(list.items[1].prompt == "inf");
  CHECK(list.items[2].prompt == "5");
  CHECK(
      list.items[3].problem.ends_with("l.yaml:4:12: prompt: expected a text, found the number 5"));
}

TEST_CASE("a truth value is one of the format") {
  const test::Folder folder;
  const BatchList json =
      read_list(folder, "l.jsonl",
                "{\"think\": true}\n{\"think\": \"yes\"}\n{\"think\": 1}\n{\"think\": null}\n");
  CHECK(json.items[0].problem.empty());
  CHECK(json.items[1].problem.ends_with(
      "l.jsonl:2: think: expected true or false, found the text 'yes'"));
  CHECK(json.items[2].problem.ends_with("l.jsonl:3: think: expected true or false, found '1'"));
  CHECK(json.items[3].problem.find("think: expected true or false, found ") != std::string::npos);
  const BatchList yaml =
      read_list(folder, "l.yaml", "- think: off\n- think: yes\n- think: \"true\"\n- think: 1\n");
  CHECK(yaml.items[0].problem.empty());
  CHECK(yaml.items[1].problem.empty());
  CHECK_FALSE(yaml.items[2].problem.empty());
  CHECK_FALSE(yaml.items[3].problem.empty());
}

TEST_CASE("an empty list of inputs is a slip") {
  const test::Folder folder;
  const BatchList list =
      read_list(folder, "l.jsonl",
                "{\"prompt\": \"a\", \"image\": []}\n{\"inputs\": []}\n"
                "{\"prompt\": \"a\", \"trace\": \"t.safetensors\", \"trace_filter\": []}\n");
  CHECK(list.items[0].problem.ends_with(":1: image: is empty; expected a path, or several"));
  CHECK(list.items[1].problem.ends_with(
      ":2: inputs: is empty; expected at least one text, image or video"));
  CHECK(message_of([&] {
          resolve_item(test::plain_defaults(), list.items[2]);
        }).ends_with(":3: trace_filter: is empty; expected GLOB"));
}

TEST_CASE("mutated lists are read, or refused with one line that names them") {
  const test::Folder folder;
  const std::string whole =
      R"({"id": "a", "prompt": "x \u00e9", "seed": 18446744073709551615, "cfg_interval": [0.1, 1e0]}
{"inputs": [{"text": "t"}, {"image": "c.png"}], "output": "b/a-%02d.png", "batch_count": 2}
{"image": ["a.png"], "think": true, "size": "64x32", "trace_filter": ["*"]}
)";
  std::mt19937 random(7);
  const Resolved defaults = test::plain_defaults();
  for (int i = 0; i < 1500; ++i) {
    std::string text = whole;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      static constexpr char kLetters[] = "{}[]\",:\\0-e.\n\x00\xFFtnu";
      if (random() % 2 == 0) {
        text[at] = kLetters[random() % (sizeof(kLetters) - 1)];
      } else {
        text.erase(at, 1 + random() % 5);
      }
      if (text.empty()) text.push_back('\n');
    }
    const std::string message = message_of([&] {
      for (const BatchItem& item : read_list(folder, "l.jsonl", text).items)
        resolve_item(defaults, item);
    });
    CAPTURE(text);
    CHECK(message.find('\n') == std::string::npos);
    CHECK((message == "no error" || message.find("l.jsonl") != std::string::npos));
  }
}

}  // namespace
}  // namespace diptych
