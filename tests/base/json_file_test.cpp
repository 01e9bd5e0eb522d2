#include "lib/base/json_file.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "lib/base/error.h"

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

TEST_CASE("json: a file must be there and hold an object") {
  std::string name = (fs::temp_directory_path() / "diptych-json-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  const fs::path folder = name, file = folder / "a.json";
  const auto read_error = [](const fs::path& path) {
    return refusal([&] { read_json_object(path); });
  };
  CHECK(read_error(file) == file.string() + ": missing, or not a readable file");
  CHECK(read_error(folder) == name + ": missing, or not a readable file");
  std::ofstream(file) << "[1]";
  CHECK(read_error(file) == file.string() + ": is a JSON array, expected an object");
  std::ofstream(file) << "{\"a\":";
  CHECK(read_error(file) == file.string() + ":1:6: ends within its JSON: truncated?");
  std::ofstream(file) << "{\"a\": 7}";
  CHECK(read_json_object(file)["a"] == 7);
  fs::remove_all(folder);
}

}  // namespace diptych
