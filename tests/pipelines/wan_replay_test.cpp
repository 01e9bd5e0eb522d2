// Every recorded case of Wan, where the full recordings are: whole runs in both CFG modes, some
// with LoRA files or single files of weights, and single parts.
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/config/resolve.h"
#include "lib/pipelines/registry.h"
#include "lib/text/nfc.h"
#include "lib/verify/trace_compare.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The full recordings; empty where they are not.
fs::path full_goldens() {
  const fs::path folder = test::goldens_of("wan").back();
  return fs::exists(folder / "checkpoint/model_index.json") ? folder : fs::path();
}

bool is_run(const nlohmann::json& description) {
  const std::string task = description.at("task");
  const bool known = task.starts_with("t2v") || task.starts_with("i2v") || task.starts_with("ti2v");
  return known;
}

// A part of a checkpoint stands in it: "checkpoint/vae".
fs::path checkpoint_of(const fs::path& goldens, const nlohmann::json& description) {
  const fs::path named = description.value("checkpoint", "checkpoint");
  return goldens / *named.begin();
}

RunConfig config_of(const Family& family, CfgMode mode) {
  RunConfig config = default_options(family.config()).run;
  config.device = {DeviceChoice::Kind::cpu};
  config.dtype = DtypeChoice::float32;
  config.cfg_mode = mode;
  return config;
}

NamedTensors expected_of(const fs::path& folder) {
  const fs::path file = folder / "expected.safetensors";
  return fs::exists(file) ? read_trace(file) : NamedTensors();
}

void replay_case(const fs::path& goldens, const RecordedCase& recorded, CfgMode mode) {
  INFO("case: ", recorded.folder.string(), ", ", name_of(mode));
  const Family& family = find_family("wan");
  NamedTensors expected = expected_of(recorded.folder);
  std::vector<std::string> wanted;
  for (const auto& [name, tensor] : expected) wanted.push_back(name);
  TraceSink trace(wanted);
  Log log(LogLevel::quiet);
  std::string problem;
  try {
    family.replay(checkpoint_of(goldens, recorded.description), config_of(family, mode), log)(
        recorded, trace);
  } catch (const CheckFailed& failure) {
    problem = failure.what();
  }
  CHECK(problem == "");
  for (const std::string& name : trace.left_out()) expected.erase(name);
  CHECK(expected.size() + trace.rows() > 0);
  const TraceNames& names = family.trace_names();
  Tolerances tolerances = Tolerances::from_case(recorded.description, names);
  for (const NormTolerance& tolerance : family.norm_tolerances(recorded))
    tolerances.set_relative_norm(tolerance);
  const auto& list = trace.tensors();
  const TraceComparison comparison =
      compare_traces(NamedTensors(list.begin(), list.end()), expected, tolerances, names);
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  CHECK(comparison.pass());
}

std::size_t replay_cases(const fs::path& goldens, CfgMode mode, bool runs) {
  std::size_t replayed = 0;
  for (const auto& entry : fs::directory_iterator(goldens / "cases")) {
    const RecordedCase recorded{entry.path(), test::case_json(entry.path())};
    if (is_run(recorded.description) != runs) continue;
    replay_case(goldens, recorded, mode);
    ++replayed;
  }
  return replayed;
}

}  // namespace

TEST_CASE("recorded runs of Wan" * doctest::test_suite("needs goldens")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential})
    CHECK(replay_cases(goldens, mode, true) == 21);
}

TEST_CASE("recorded parts of Wan" * doctest::test_suite("needs goldens")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  CHECK(replay_cases(goldens, CfgMode::batched, false) == 12);
}

// A small clip of the tiny checkpoint.
RunConfig clip_request() {
  const auto flag = [](const char* name) {
    return std::string(all_fields()[field_index(name)].flags);
  };
  Sources sources;
  sources.inputs = {{MediaKind::text, "a cat walks"}};
  sources.families = all_family_configs();
  sources.flags = {{flag("model"), {(full_goldens() / "checkpoint").string()}},
                   {flag("device"), {"cpu"}},
                   {flag("dtype"), {"float32"}},
                   {flag("width"), {"64"}},
                   {flag("height"), {"48"}},
                   {flag("video_frames"), {"5"}},
                   {flag("steps"), {"3"}}};
  return resolve(sources).options.run;
}

TEST_CASE("the steps of a clip are timed by one of them, which changes no clip" *
          doctest::test_suite("needs goldens")) {
  if (full_goldens().empty()) return test::skip("the full recordings are not there");
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  const RunConfig request = clip_request();
  Log log(LogLevel::quiet);
  Progress progress(log, ProgressStyle::none);
  const auto latent_of = [&](Session& session) {
    Tensor latent;
    Results results;
    results.result = [&](const Result& result, const Report&) { latent = result.latent; };
    const auto job = session.make_job(request);
    session.run({job.get()}, progress, results);
    return latent;
  };
  const Family& family = find_family("wan");
  const auto timed = family.open(request, log), plain = family.open(request, log);
  StepTimer* const timer = timed->capabilities().timer;
  REQUIRE(timer != nullptr);
  CHECK(timer->time_steps(*timed->make_job(request), progress) > 0);
  const Tensor latent = latent_of(*timed);
  CHECK(latent.numel() > 0);
  CHECK(latent.equal(latent_of(*plain)));
  CHECK(timed->report().updates == 3);
}

}  // namespace diptych
