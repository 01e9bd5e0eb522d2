// What the families of this version declare to the configuration.
#include "lib/pipelines/registry.h"

#include <doctest/doctest.h>

#include "lib/config/family_fields.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

// Sizes, steps and lengths have no common default: a family that forgot one would run with 0.
TEST_CASE("every default of a family is a value that its field takes") {
  for (const FamilyConfig* family : all_family_configs()) {
    const Options defaults = default_options(*family);
    for (const Field& field : family->fields) {
      const std::string text = value_text(field, defaults);
      if (!family->uses(field.name) || text.empty()) continue;
      CAPTURE(field.name);
      Options options = defaults;
      CHECK(test::message_of([&] { assign(field, options, text, field.name); }) == "no error");
    }
  }
}

}  // namespace
}  // namespace diptych
