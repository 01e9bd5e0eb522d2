// Every recorded case of Qwen3 with DFlash, where the full recordings are.
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "lib/pipelines/qwen3_dflash/replay.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/verify/trace_compare.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

fs::path full_goldens() {
  const fs::path folder = test::goldens_of("dflash").back();
  return fs::exists(folder / "checkpoint/target") ? folder : fs::path();
}

RunConfig on_cpu() {
  RunConfig config = default_options(qwen3_config()).run;
  config.device = {DeviceChoice::Kind::cpu};
  config.dtype = DtypeChoice::float32;
  return config;
}

void replay_case(const fs::path& goldens, const fs::path& folder) {
  INFO("case: ", folder.string());
  const RecordedCase recorded{folder, test::case_json(folder)};
  const RunConfig config = on_cpu();
  const fs::path file = folder / "expected.safetensors";
  const NamedTensors expected = fs::exists(file) ? read_trace(file) : NamedTensors();
  std::vector<std::string> wanted;
  for (const auto& [name, tensor] : expected) wanted.push_back(name);
  TraceSink trace(wanted);
  Log log(LogLevel::quiet);
  const bool is_trained = recorded.description.value("checkpoint", "") == "checkpoint_trained";
  const fs::path checkpoint = goldens / (is_trained ? "checkpoint_trained" : "checkpoint");
  replay_qwen3_dflash(checkpoint, config, log)(recorded, trace);
  CHECK(expected.size() + trace.rows() > 0);
  const TraceNames& names = qwen3_dflash_trace_names();
  const auto& list = trace.tensors();
  const TraceComparison comparison =
      compare_traces(NamedTensors(list.begin(), list.end()), expected,
                     Tolerances::from_case(recorded.description, names), names);
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  INFO("failures: ", comparison.failures(), " of ", comparison.tensors.size());
  CHECK(comparison.pass());
}

}  // namespace

TEST_CASE("dflash: the choice of cases in the repository") {
  const fs::path goldens = test::goldens_of("dflash").front();
  for (const char* name : {"acceptance_b16", "acceptance_b8"})
    replay_case(goldens, goldens / "cases" / name);
}

TEST_CASE("dflash: a text that is not the recorded one is said") {
  const fs::path goldens = test::goldens_of("dflash").front();
  RecordedCase recorded{goldens / "cases/acceptance_b16",
                        test::case_json(goldens / "cases/acceptance_b16")};
  recorded.description["prompts"][1]["acceptance_lengths"][0] = 3;
  const RunConfig config = on_cpu();
  TraceSink trace;
  Log log(LogLevel::quiet);
  const CaseReplay replay = replay_qwen3_dflash(goldens / "checkpoint_trained", config, log);
  std::string problem;
  try {
    replay(recorded, trace);
  } catch (const CheckFailed& failure) {
    problem = failure.what();
  }
  CHECK(problem.starts_with("p01: acceptance_lengths are ["));
  CHECK(trace.rows() == 1);
}

TEST_CASE("dflash: recorded cases of the official code") {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  std::size_t replayed = 0;
  for (const auto& entry : fs::directory_iterator(goldens / "cases")) {
    ++replayed;
    const bool normalises = entry.path().filename() == "tokenizer";
    if (!normalises || can_normalise(U'\uffff')) replay_case(goldens, entry.path());
  }
  CHECK(replayed == 16);
}

}  // namespace diptych
