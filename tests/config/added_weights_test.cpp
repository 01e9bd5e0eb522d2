// "[PART=]FILE[:SCALE]", and lists of it.
#include "lib/config/added_weights.h"

#include <array>

#include <doctest/doctest.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::array<std::string_view, 2> kParts = {"high", "low"};

AddedWeights parsed(std::string_view text) {
  return parse_added_weights(text, kParts, "--lora");
}

std::string refusal(std::string_view text) {
  try {
    parsed(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a file of added weights: part, path and scale") {
  CHECK(parsed("a.safetensors") == AddedWeights{"", "a.safetensors", 1});
  CHECK(parsed("a.safetensors:0.8") == AddedWeights{"", "a.safetensors", 0.8});
  CHECK(parsed("high=b/a.safetensors:-1.5") == AddedWeights{"high", "b/a.safetensors", -1.5});
  CHECK(parsed("low=a.safetensors") == AddedWeights{"low", "a.safetensors", 1});
  CHECK(parsed("mid=a.safetensors:2") == AddedWeights{"", "mid=a.safetensors", 2});
  CHECK(parsed("high") == AddedWeights{"", "high", 1});
  CHECK(parsed("rank:4b") == AddedWeights{"", "rank:4b", 1});
  CHECK(parsed("a.safetensors:0") == AddedWeights{"", "a.safetensors", 0});
  for (const char* text : {"a.safetensors", "high=a:0.5", "low=b/c.safetensors:-2"})
    CHECK(added_weights_text(parsed(text)) == text);
}

TEST_CASE("a file of added weights: what is refused") {
  CHECK(refusal("a.safetensors:x") ==
        "--lora: 'a.safetensors:x': scale 'x': expected a number, such as 0.8");
  for (const char* text : {"a.safetensors:", "a.safetensors:nan", "a:inf", "a:1e9"})
    CHECK(refusal(text).find("expected a number") != std::string::npos);
  for (const char* text : {"", "high=", ":1"})
    CHECK(refusal(text) == "--lora: is empty; expected [PART=]FILE[:SCALE]");
  CHECK(refusal(std::string_view("a\0b", 3)).find("NUL") != std::string::npos);
}

}  // namespace
}  // namespace diptych
