#include <doctest/doctest.h>

#include "tests/pipelines/text_decoder_cases.h"

namespace diptych {

TEST_CASE("a text ends where it should, and its draws with it") {
  test::check_tokens("cpu");
}

TEST_CASE("watched or stopped, a decoder writes the same text") {
  test::check_watching_and_stopping("cpu", "float32");
}

}  // namespace diptych
