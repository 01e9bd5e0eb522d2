#include "lib/config/words.h"

#include <array>

#include <doctest/doctest.h>

namespace diptych {
namespace {

constexpr std::array<std::string_view, 4> kWords = {"steps", "seed", "shift", "cfg_renorm_type"};

TEST_CASE("the nearest word is the one a slip of the hand away") {
  CHECK(nearest_word("shfit", kWords) == "shift");
  CHECK(nearest_word("step", kWords) == "steps");
  CHECK(nearest_word("cfg_renrom_typ", kWords) == "cfg_renorm_type");
  CHECK(nearest_word("width", kWords).empty());
  CHECK(nearest_word("", kWords).empty());
  CHECK(nearest_word(std::string(100'000, 's'), kWords).empty());
}

TEST_CASE("a suggestion lists what is known") {
  CHECK(suggestion("sed", kWords) ==
        " (did you mean 'seed'? known: steps, seed, shift, cfg_renorm_type)");
  CHECK(suggestion("xyz", kWords) == " (known: steps, seed, shift, cfg_renorm_type)");
}

TEST_CASE("quotes keep a message on one printable line") {
  CHECK(in_quotes("a b") == "'a b'");
  CHECK(in_quotes("a\nb\x1b[2J") == "'a\\x0Ab\\x1B[2J'");
  CHECK(in_quotes("gr\xC3\xBC\xC3\x9F\xFF") == "'gr\xC3\xBC\xC3\x9F\\xFF'");
  CHECK(in_quotes(std::string(200, 'a')) == "'" + std::string(60, 'a') + "...'");
}

}  // namespace
}  // namespace diptych
