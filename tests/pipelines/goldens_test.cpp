// Every recorded case this version can replay, in its own precision, under both CFG modes.
#include "tests/verify/goldens.h"

#include <fstream>

#include <doctest/doctest.h>

#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/verify/trace_compare.h"
#include "tests/support/skip.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

using Replayable = bool (*)(const nlohmann::json& description);

std::size_t replay_folder(const Family& family, const fs::path& folder, const std::string& cfg_mode,
                          Replayable replayable) {
  Log log(LogLevel::quiet);
  std::size_t replayed = 0;
  for (const auto& entry : fs::directory_iterator(folder / "cases")) {
    if (!fs::exists(entry.path() / "expected.safetensors")) continue;
    const auto description = nlohmann::json::parse(std::ifstream(entry.path() / "case.json"));
    if (!replayable(description)) continue;
    INFO("case: ", entry.path().string(), ", ", cfg_mode);
    RunConfig config = default_options(family.config()).run;
    config.device = {DeviceChoice::Kind::cpu};
    const bool bf16 = description.value("compute_dtype", "").starts_with("bfloat16");
    config.dtype = bf16 ? DtypeChoice::bfloat16 : DtypeChoice::float32;
    config.cfg_mode = parse_choice<CfgMode>(cfg_mode).value();
    const NamedTensors expected = read_trace(entry.path() / "expected.safetensors");
    std::vector<std::string> wanted;
    for (const auto& [name, tensor] : expected) wanted.push_back(name);
    TraceSink trace(wanted);
    const TraceNames& names = family.trace_names();
    family.replay(folder / "checkpoint", config, log)({entry.path(), description}, trace);
    NamedTensors actual;
    for (const auto& [name, tensor] : trace.tensors()) actual.emplace(name, tensor);
    CHECK(!expected.empty());
    const TraceComparison comparison =
        compare_traces(actual, expected, Tolerances::from_case(description, names), names);
    const TensorComparison* first = comparison.first_divergence();
    INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
    CHECK(comparison.pass());
    ++replayed;
  }
  return replayed;
}

}  // namespace

TEST_CASE("recorded cases of the official code") {
  for (const fs::path& folder : test::goldens_of("bagel")) {
    for (const char* cfg_mode : {"batched", "sequential"}) {
      const auto has_model = [](const nlohmann::json& description) {
        return description.at("task") != "preprocess";  // tests/media
      };
      CHECK(replay_folder(find_family("bagel"), folder, cfg_mode, has_model) >= 11);
    }
  }
}

TEST_CASE("recorded cases of the official code: Lance") {
  const Family& family = find_family("lance");
  for (const fs::path& folder : test::goldens_of("lance")) {
    // The choice in the repository has parts of the model alone, which have tests of their own.
    if (!fs::exists(folder / "checkpoint/Lance_3B/model.safetensors")) continue;
    for (const char* cfg_mode : {"batched", "sequential"}) {
      // bfloat16 is not measured by the tolerances of a case; clips need libav (verify has both).
      const auto in_float32 = [](const nlohmann::json& description) {
        return description.at("kind") != "pipeline_bf16" &&
               !description.value("task", "").ends_with("video") &&
               description.value("task", "") != "video_edit";
      };
      CHECK(replay_folder(family, folder, cfg_mode, in_float32) == 11);
    }
  }
}

TEST_CASE("flags of a recorded case of Lance are followed or refused") {
  const fs::path folder = test::goldens_of("lance").back(), at = folder / "cases/01_t2i";
  if (!fs::exists(folder / "checkpoint/Lance_3B/model.safetensors"))
    return test::skip("the full recordings are not here");
  const auto description = nlohmann::json::parse(std::ifstream(at / "case.json"));
  Log log(LogLevel::quiet);
  RunConfig config = default_options(find_family("lance").config()).run;
  config.device = {DeviceChoice::Kind::cpu};
  config.dtype = DtypeChoice::float32;
  const CaseReplay replay = find_family("lance").replay(folder / "checkpoint", config, log);
  // The ids of the sequence with this value of a flag.
  const auto tokens = [&](const char* flag, const nlohmann::json& value) {
    nlohmann::json changed = description;
    changed["flags"][flag] = value;
    TraceSink trace({"tokens.input_ids"});
    replay({at, changed}, trace);
    return trace.tensors().begin()->second.numel();
  };
  const std::int64_t all = tokens("--text_template", "true");
  CHECK(tokens("--text_template", "false") < all / 2);
  CHECK(tokens("--cfg_renorm_type", nullptr) == all);
  CHECK_THROWS_AS(tokens("--text_template", "maybe"), InputError);
  CHECK_THROWS_AS(tokens("--enhance_prompt", "true"), Unsupported);
  CHECK_THROWS_AS(tokens("--unknown_flag", "true"), Unsupported);
  CHECK_THROWS_AS(tokens("--video_width", 128), InputError);  // other noise than the recorded
}

}  // namespace diptych
