// Every recorded case this version can replay, in its own precision, under both CFG modes.
#include "tests/verify/goldens.h"

#include <fstream>

#include <doctest/doctest.h>

#include "lib/pipelines/registry.h"
#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

bool replayable(const nlohmann::json& description) {
  return description.at("task") != "preprocess";  // no model: tests/media
}

std::size_t replay_folder(const fs::path& folder, const std::string& cfg_mode) {
  Log log(LogLevel::quiet);
  std::size_t replayed = 0;
  for (const auto& entry : fs::directory_iterator(folder / "cases")) {
    if (!fs::exists(entry.path() / "case.json")) continue;
    const auto description = nlohmann::json::parse(std::ifstream(entry.path() / "case.json"));
    if (!replayable(description)) continue;
    INFO("case: ", entry.path().string(), ", ", cfg_mode);
    const Family& family = find_family("bagel");
    RunConfig config = default_options(family.config()).run;
    config.device = {DeviceChoice::Kind::cpu};
    const bool bf16 = description.value("compute_dtype", "").starts_with("bfloat16");
    config.dtype = bf16 ? DtypeChoice::bfloat16 : DtypeChoice::float32;
    config.cfg_mode = parse_choice<CfgMode>(cfg_mode).value();
    TraceSink trace;
    const TraceNames& names = family.trace_names();
    family.replay(folder / "checkpoint", config, log)({entry.path(), description}, trace);
    NamedTensors actual;
    for (const auto& [name, tensor] : trace.tensors()) actual.emplace(name, tensor);
    const NamedTensors expected = read_trace(entry.path() / "expected.safetensors");
    CHECK(expected.size() >= 2);
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
  for (const fs::path& folder : test::bagel_goldens()) {
    for (const char* cfg_mode : {"batched", "sequential"}) {
      CHECK(replay_folder(folder, cfg_mode) >= 12);
    }
  }
}

}  // namespace diptych
