// Every stage config we ship resolves, on its own, without a checkpoint.
#include <vector>

#include "lib/config/resolve.h"
#include "tests/config/support.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

Resolved resolve_file(const fs::path& file) {
  const auto environment = [](const std::string&) { return std::optional<std::string>(); };
  return resolve({{}, {{"-c,--config", {file.string()}}}, {}, environment, std::nullopt});
}

TEST_CASE("every stage config that ships is valid") {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    CAPTURE(entry.path().string());
    CHECK(resolve_file(entry.path()).options.run.pipeline == "bagel");
  }
  CHECK(files >= 3);
}

TEST_CASE("the demo points at the checkpoint beside it") {
  const fs::path demo = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs" / "demo" / "demo.yaml";
  const RunConfig run = resolve_file(demo).options.run;
  CHECK(run.model == demo.parent_path() / "checkpoint");
  CHECK(fs::exists(run.model / "llm_config.json"));
  CHECK(run.sampling.width == 192);
  CHECK(run.sampling.steps == 25);
}

TEST_CASE("the released model's file says what the defaults are") {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  const Options defaults;
  for (const char* name : {"bagel.yaml", "bagel_single_stage.yaml"}) {
    const Resolved resolved = resolve_file(folder / name);
    for (const Field& field : all_fields()) {
      CAPTURE(field.name);
      if (field.name == "config") continue;
      CHECK(value_text(field, resolved.options) == value_text(field, defaults));
    }
  }
}

}  // namespace
}  // namespace diptych
