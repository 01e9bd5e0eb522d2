// Every stage config we ship resolves, on its own, without a checkpoint.
#include <algorithm>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/config/family_fields.h"
#include "lib/config/resolve.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/cosmos/family_config.h"
#include "lib/pipelines/lance/family_config.h"
#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "lib/pipelines/wan/family_config.h"
#include "tests/support/folder.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

Resolved resolve_file(const fs::path& file) {
  return resolve(
      {{},
       {{"-c,--config", {file.string()}}},
       {},
       {},
       {},
       {&bagel_config(), &lance_config(), &wan_config(), &cosmos_config(), &qwen3_config()}});
}

std::string family_of(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const char* family : {"cosmos", "lance", "qwen3_dflash", "wan"}) {
    if (name.starts_with(family)) return family;
  }
  if (name == "clips.yaml") return "lance";
  return "bagel";
}

TEST_CASE("every stage config that ships is valid") {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    CAPTURE(entry.path().string());
    CHECK(resolve_file(entry.path()).options.run.pipeline == family_of(entry.path()));
  }
  CHECK(files >= 4);
}

TEST_CASE("the demo points at the checkpoint beside it") {
  const fs::path demo = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs" / "demo" / "demo.yaml";
  const RunConfig run = resolve_file(demo).options.run;
  CHECK(run.model == demo.parent_path() / "checkpoint");
  CHECK(fs::exists(run.model / "llm_config.json"));
  const auto model = nlohmann::json::parse(std::ifstream(run.model / "llm_config.json"));
  // --quantization fp8 on a GPU takes no other widths.
  for (const char* width : {"hidden_size", "intermediate_size"})
    CHECK(model[width].get<int>() % 16 == 0);
  CHECK(run.sampling.width == 192);
  CHECK(run.sampling.steps == 25);
}

TEST_CASE("the file with an enhancer has the program's own instructions") {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  const Resolved resolved = resolve_file(folder / "wan2.1_t2v_1.3b_enhanced.yaml");
  const EnhanceConfig& enhance = resolved.options.enhance;
  CHECK(enhance.on);
  CHECK(enhance.model == fs::path(DIPTYCH_SOURCE_DIR) / "Qwen3-8B");
  CHECK(enhance.clip_instructions == kClipInstructions);
  CHECK(enhance.max_tokens == EnhanceConfig().max_tokens);
  CHECK(resolved.of_stage_config[field_index("enhance_clip_instructions")]);
  // The rest is the file without one.
  const Options plain = resolve_file(folder / "wan2.1_t2v_1.3b.yaml").options;
  for (const Field& field : fields_of(plain)) {
    CAPTURE(field.name);
    if (field.name == "config" || field.scope == Scope::enhancing) continue;
    CHECK(value_text(field, resolved.options) == value_text(field, plain));
  }
}

TEST_CASE("the released model's files say what the defaults are, those of editing, too") {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "stage_configs";
  for (const bool edits : {false, true}) {
    Sources sources;
    sources.families = {&bagel_config()};
    sources.inputs = {{MediaKind::text, "a cup"}};
    if (edits) sources.inputs.push_back({MediaKind::picture, "cup.png"});
    sources.flags["-m,--model"] = {test::kTinyCheckpoint};
    const Options defaults = resolve(sources).options;
    for (const char* name : {"bagel.yaml", "bagel_single_stage.yaml"}) {
      sources.flags["-c,--config"] = {(folder / name).string()};
      const Options options = resolve(sources).options;
      for (const Field& field : all_fields()) {
        CAPTURE(field.name);
        CAPTURE(edits);
        if (field.name == "config") continue;
        CHECK(value_text(field, options) == value_text(field, defaults));
      }
    }
  }
}

// A record leaves out what is at its default, and compares texts.
TEST_CASE("defaults that families declare are written as values are") {
  for (const FamilyConfig* family :
       {&bagel_config(), &lance_config(), &wan_config(), &cosmos_config(), &qwen3_config()}) {
    const Options options = default_options(*family);
    for (const Field& field : std::span(family->fields).subspan(all_fields().size())) {
      CAPTURE(family->name);
      CAPTURE(field.name);
      const auto own = std::ranges::find(family->defaults, field.name, &FieldDefault::field);
      const bool is_listed = own != family->defaults.end();
      CHECK(value_text(field, options) ==
            (is_listed ? std::string(own->text) : value_text(field, Options())));
    }
  }
}

}  // namespace
}  // namespace diptych
