#include "lib/base/json_file.h"

#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

template <typename Act>
std::string refusal(Act&& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string parse_error(std::string_view text) {
  return refusal([&] { parse_json(text, "x"); });
}

}  // namespace

TEST_CASE("json: what is broken is said with its place") {
  CHECK(parse_json("{\"a\": [1]}", "x")["a"][0] == 1);
  CHECK(parse_error("") == "x: is empty, expected JSON");
  CHECK(parse_error("{\"a\": 1") == "x:1:8: ends within its JSON: truncated?");
  CHECK(parse_error("{\n\"a\": [1,\n") == "x:3:1: ends within its JSON: truncated?");
  CHECK(parse_error("{\"a\": \"b") == "x:1:9: ends within its JSON: truncated?");
  CHECK(parse_error("{\n \"a\": tru,\n}") == "x:2:10: is not valid JSON");
  CHECK(parse_error("{\"a\": 1}}") == "x:1:9: is not valid JSON");
  CHECK(parse_error("\xFF") == "x:1:1: is not valid JSON");
  CHECK(parse_error("{\"a\": 1e999}") == "x: has a number that is out of range");
  CHECK(parse_error(std::string(200'000, '[')) == "x:1:200001: ends within its JSON: truncated?");
}

TEST_CASE("json: strictly, a key appears once, and nothing is nested deep") {
  const auto error = [](const std::string& text) {
    return refusal([&] { parse_strict_json(text, "x"); });
  };
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(parse_strict_json(R"({"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]})", "x")["b"][1]["a"] == 3);
  CHECK(error(R"({"a": 1, "b": 2, "a": 1})") == "x: the key \"a\" appears twice");
  CHECK(error(R"([{"a": {"b": 1, "b": 2}}])") == "x: the key \"b\" appears twice");
  CHECK(error(nested(16)) == "accepted");
  CHECK(error(nested(17)) == "x: nested deeper than 16");
  CHECK(error(nested(1'000'000)) == "x: nested deeper than 16");
  CHECK(error("[1") == "x:1:3: ends within its JSON: truncated?");
}

TEST_CASE("json: values in messages are one line and not long") {
  CHECK(shown_json({{"a", {1, 2.5, nullptr}}}) == R"({"a":[1,2.5,null]})");
  CHECK(shown_json("line\nbreak\x7f") == R"("line\nbreak\x7F")");
  CHECK(shown_json(std::string(100, 'x')) == fmt::format("\"{}...", std::string(59, 'x')));
  // The first byte of the 30th Ã© is the 60th of the text.
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";
  CHECK(shown_json(accents) == fmt::format("\"{}...", accents.substr(0, 60)));
}

TEST_CASE("json: a file must be there and hold an object") {
  const test::Folder folder;
  const fs::path file = folder.path() / "a.json";
  const auto read_error = [](const fs::path& path) {
    return refusal([&] { read_json_object(path); });
  };
  CHECK(read_error(file) == file.string() + ": is missing");
  CHECK(read_error(folder.path()) == folder.path().string() + ": is a folder, expected a file");
  std::ofstream(file) << "[1]";
  CHECK(read_error(file) == file.string() + ": is a JSON array, expected an object");
  std::ofstream(file) << "{\"a\":";
  CHECK(read_error(file) == file.string() + ":1:6: ends within its JSON: truncated?");
  std::ofstream(file) << "{\"a\": 7}";
  CHECK(read_json_object(file)["a"] == 7);
}

}  // namespace diptych
