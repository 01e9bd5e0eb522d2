// Mutated stage configs: each is read, or refused with one InputError of one line. A short run by
// default; DIPTYCH_FUZZ_ITERATIONS sets another number.
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "lib/config/stage_config.h"
#include "lib/config/stage_tree.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/folder.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Random = std::mt19937;

constexpr std::array<std::string_view, 40> kTokens = {
    ": ",          "- ",   "\n",         "  ",           "\t",    "[",     "]",      "{",
    "}",           ",",    "&a ",        "*a",           "<<: ",  "'",     "\"",     "|\n",
    ">-\n",        "?",    "!!str ",     "! ",           "---\n", "...\n", "#",      "~",
    "null",        "%",    "\\x41",      "\xEF\xBB\xBF", "\xFF",  "\xC3",  "stages", "stage_id",
    "base_config", "seed", "extra_args", "1e999",        "-0",    "true",  "\r\n",   "@"};

std::string read_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

void mutate_once(std::string& text, const std::string& other, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  switch (random() % 7) {
    case 0:
      text.insert(at, kTokens[below(random, kTokens.size())]);
      break;
    case 1:
      text.erase(at, below(random, 20));
      break;
    case 2:
      if (at < text.size()) text[at] = static_cast<char>(random() % 256);
      break;
    case 3:
      text.insert(at, text.substr(below(random, text.size()), below(random, 60)));
      break;
    case 4:
      text.insert(at, other.substr(below(random, other.size()), below(random, 60)));
      break;
    case 5:
      text.resize(at);
      break;
    default: {
      const std::string_view token = kTokens[below(random, kTokens.size())];
      for (std::size_t i = below(random, 100); i > 0; --i) text.insert(at, token);
    }
  }
}

std::vector<std::string> seeds() {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  return {
      read_file(folder / "bagel.yaml"), read_file(test::kTinyConfig),
      read_file(folder / "bagel_single_stage.yaml"),
      "connectors: {a: {name: SharedMemoryConnector}}\nstages:\n- {stage_id: 0, devices: '0'}\n",
      "a: &x [1, &y {b: *x}]\nc: [*y, *y, *x]\n"};
}

// One line, printable, with a place.
void check_message(const std::string& message, const std::string& text) {
  const bool one_line = message.find('\n') == std::string::npos;
  if (message.starts_with("f.yaml:") && one_line) return;
  CAPTURE(text);
  FAIL_CHECK("message: " << message);
}

TEST_CASE("mutated stage configs are read or refused, never more") {
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  const long iterations = wanted == nullptr ? 4'000 : std::atol(wanted);
  const std::vector<std::string> texts = seeds();
  Random random(20'240'607);
  long refused = 0;
  for (long i = 0; i < iterations; ++i) {
    std::string text = texts[below(random, texts.size())];
    for (std::size_t n = 1 + below(random, 6); n > 0; --n) {
      mutate_once(text, texts[below(random, texts.size())], random);
    }
    try {
      YamlNode tree = parse_yaml(text, "f.yaml");
      read_stage_tree(tree, bagel_config());
    } catch (const InputError& error) {
      ++refused;
      check_message(error.what(), text);
    }
  }
  // Both happen: otherwise the mutations are too weak or too strong to show anything.
  CHECK(refused > iterations / 10);
  CHECK(refused < iterations);
}

TEST_CASE("mutated overrides are applied or refused, never more") {
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  const long iterations = wanted == nullptr ? 1'000 : std::atol(wanted) / 10;
  const std::string seed = "stages.1.default_sampling_params.extra_args.cfg_interval=[0.1, 0.9]";
  const YamlNode tree = load_stage_tree(fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs/bagel.yaml");
  Random random(7);
  long refused = 0;
  for (long i = 0; i < iterations; ++i) {
    std::string text = seed;
    for (std::size_t n = 1 + below(random, 3); n > 0; --n) mutate_once(text, seed, random);
    try {
      YamlNode edited = tree;
      apply_override(edited, text);
      read_stage_tree(edited, bagel_config());
    } catch (const InputError& error) {
      ++refused;
      CHECK(std::string_view(error.what()).starts_with("--set"));
    }
  }
  CHECK(refused > 0);
}

}  // namespace
}  // namespace diptych
