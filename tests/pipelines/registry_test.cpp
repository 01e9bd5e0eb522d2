// What the families of this version declare to the configuration.
#include "lib/pipelines/registry.h"

#include <utility>

#include <doctest/doctest.h>

#include "lib/config/family_fields.h"
#include "lib/pipelines/bagel/family_config.h"
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

TEST_CASE("a folder of BAGEL needs no config.json, and one without a model_type is not read") {
  const test::Folder folder;
  const auto owns = [&] { return bagel_config().owns(folder.path()); };
  folder.write("llm_config.json", "{}");
  CHECK_FALSE(owns());
  folder.write("vit_config.json", "{}");
  CHECK(owns());
  for (const auto& [config, expected] : {std::pair{"{}", true},
                                         {R"({"model_type": "bagel"})", true},
                                         {R"({"model_type": "qwen3"})", false}}) {
    folder.write("config.json", config);
    CHECK(owns() == expected);
  }
}

}  // namespace
}  // namespace diptych
