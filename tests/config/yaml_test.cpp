#include <string>

#include "lib/config/yaml_reader.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

std::string parse_error(const std::string& text) {
  return message_of([&] { parse_yaml(text, "f.yaml"); });
}

std::string nested(std::size_t levels, char open, char close) {
  return std::string(levels, open) + std::string(levels, close);
}

TEST_CASE("a tree keeps values, kinds and places") {
  const YamlNode tree = parse_yaml("a: 1\nb:\n  - x\n  - 'y'\nc: {d: ~}\n", "f.yaml");
  REQUIRE(tree.kind == YamlNode::Kind::map);
  REQUIRE(tree.entries.size() == 3);
  CHECK(tree.find("a")->value.text == "1");
  CHECK(tree.find("a")->value.where.text() == "f.yaml:1:4");
  const YamlNode& list = tree.find("b")->value;
  CHECK(tree.find("b")->where.text() == "f.yaml:2:1");
  REQUIRE(list.items.size() == 2);
  CHECK(list.items[0].plain);
  CHECK_FALSE(list.items[1].plain);
  CHECK(list.items[1].where.text() == "f.yaml:4:5");
  CHECK(tree.find("c")->value.find("d")->value.kind == YamlNode::Kind::null);
  CHECK(tree.find("e") == nullptr);
}

TEST_CASE("aliases stand for what they name") {
  const YamlNode tree = parse_yaml("a: &x {b: 7}\nc: *x\n", "f.yaml");
  CHECK(tree.find("c")->value.find("b")->value.text == "7");
}

TEST_CASE("an empty file is an empty tree") {
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n", "\xEF\xBB\xBF"}) {
    CHECK(parse_yaml(text, "f.yaml").kind == YamlNode::Kind::null);
  }
}

TEST_CASE("what a configuration must not hold is refused with its place") {
  CHECK(parse_error("a: 1\nb: 2\na: 3\n") == "f.yaml:3:1: duplicate key 'a', first at line 1");
  CHECK(parse_error("{a: 1, 'a': 2}") == "f.yaml:1:8: duplicate key 'a', first at line 1");
  CHECK(parse_error("a: 1\n---\nb: 2\n") == "f.yaml:3:1: a second document; expected one");
  CHECK(parse_error("a: !!python/object:os.system x\n") ==
        "f.yaml:1:4: tags such as 'tag:yaml.org,2002:python/object:os.system' are not supported");
  CHECK(parse_error("? [a, b]\n: 1\n") == "f.yaml:1:3: a key is a list, expected a name");
  CHECK(parse_error("a: 1\nb: \xFF\n") == "f.yaml:2:4: not valid UTF-8");
  CHECK(parse_error(std::string("a: 1\nb: x\0y\n", 12)) == "f.yaml:2:5: a NUL character");
  CHECK(parse_error("\xFF\xFE"
                    "a\0:\0") == "f.yaml:1:1: not valid UTF-8");
  CHECK(parse_error(std::string((1 << 20) + 1, '#')) ==
        "f.yaml: larger than 1 MiB, which no such file is");
}

TEST_CASE("broken YAML names the place") {
  for (const std::string text :
       {"a: [1, 2\n", "a: {b: 1\n", "a: 'open\n", "a: b: c\n", "\ta: 1\n", "a: *nowhere\n",
        "a:\n  - 1\n b: 2\n", "%YAML 9\n---\n", "a: @x\n"}) {
    CAPTURE(text);
    CHECK(parse_error(text).starts_with("f.yaml:"));
    CHECK(parse_error(text).find("broken YAML") != std::string::npos);
  }
}

TEST_CASE("a quote that stays open is broken, a closed one is not") {
  for (const std::string text :
       {"a: 'x", "a: \"x", "a: 'x''", "a: \"x\\\"", "a: &b 'x\nc: 1\n", "'a"}) {
    CAPTURE(text);
    CHECK(parse_error(text).find("broken YAML") != std::string::npos);
  }
  for (const std::string text : {"a: 'x'", "a: \"x\"", "a: 'x'''", "a: \"x\\\"\"", "a: &b 'x'\n",
                                 "a: |\n  'x\n", "a: x'y\n"}) {
    CAPTURE(text);
    CHECK(parse_error(text) == "no error");
  }
}

TEST_CASE("bombs, loops and deep nesting end early") {
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}*a{}", j == 0 ? "" : ",", i - 1);
    bomb += "]\n";
  }
  CHECK(parse_error(bomb).find("more than 20000 values") != std::string::npos);
  CHECK(parse_error("a: &x [*x]\n") == "f.yaml:1:8: an alias inside its own anchor");
  CHECK(parse_error("a: " + nested(64, '[', ']')).find("nested deeper than 64 levels") !=
        std::string::npos);
  CHECK(parse_error("a: " + nested(62, '[', ']')) == "no error");
  CHECK(parse_error(nested(200'000, '[', ' ')) != "no error");
  CHECK(parse_error(nested(200'000, '{', ' ')) != "no error");
  CHECK(parse_error(nested(200'000, '-', ' ')) == "no error");  // one long scalar
  std::string ladder;
  for (int i = 0; i < 1'000; ++i) ladder += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK(parse_error(ladder).find("nested deeper") != std::string::npos);
}

TEST_CASE("a reader refuses what was not asked for") {
  const YamlNode tree = parse_yaml("seed: 1\nshfit: 3\n", "f.yaml");
  YamlReader reader(tree, "stages.1");
  CHECK(reader.optional("seed")->text == "1");
  CHECK(reader.optional("shift") == nullptr);
  CHECK(message_of([&] { reader.finish(); }) ==
        "f.yaml:2:1: stages.1: unknown key 'shfit' (did you mean 'shift'? known: seed, shift)");
  CHECK(message_of([&] { reader.required("steps"); }) ==
        "f.yaml:1:1: stages.1: key 'steps' is missing");
  CHECK(message_of([&] { reader.required("shift"); }) ==
        "f.yaml:1:1: stages.1: key 'shift' is missing; found 'shfit'");
}

TEST_CASE("a key that cannot be served passes only where it asks for nothing") {
  const auto refuse = [](const std::string& text) {
    return message_of([&] {
      const YamlNode tree = parse_yaml(text, "f.yaml");
      YamlReader reader(tree, "");
      reader.refuse("degree", "1|one", "there is one GPU");
      reader.finish();
    });
  };
  for (const char* text :
       {"{}", "degree: 1", "degree: one", "degree:", "degree: {}", "degree: []"}) {
    CHECK(refuse(text) == "no error");
  }
  CHECK(refuse("degree: 2") ==
        "f.yaml:1:1: degree: '2' is not supported by this version: there is one GPU; expected 1 or "
        "one");
  CHECK(refuse("degree: [1]").find("degree: a list is not supported") != std::string::npos);
}

TEST_CASE("files that are none are refused") {
  const test::Folder folder;
  CHECK(message_of([&] { load_yaml(folder.path()); }) ==
        folder.path().string() + ": is a folder, expected a YAML file");
  const auto missing = folder.path() / "none.yaml";
  CHECK(message_of([&] { load_yaml(missing); }) == missing.string() + ": no such file");
  CHECK(message_of([&] { load_yaml("/dev/zero"); }) ==
        "/dev/zero: larger than 1 MiB, which no such file is");
}

}  // namespace
}  // namespace diptych
