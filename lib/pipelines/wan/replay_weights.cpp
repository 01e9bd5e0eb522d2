#include "lib/pipelines/wan/replay_weights.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/wan/layout.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/pipelines/wan/checkpoint.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char *kOriginal = "model.safetensors", *kPrefixed = "model_prefixed.safetensors";
constexpr const char *kScaled = "model_fp8_scaled.safetensors",
                     *kLayers = "model_fp8_comfy_quant.safetensors",
                     *kPlain = "model_fp8_plain.safetensors";

class WeightsReplay {
 public:
  WeightsReplay(const RunConfig& config, const RecordedCase& recorded, Log& log, TraceSink& trace,
                const WanCaseRun& run)
      : config_(config),
        recorded_(recorded),
        log_(log),
        trace_(trace),
        run_(run),
        expected_(SafetensorsFile::open(recorded.folder / "expected.safetensors")) {}

  void replay() {
    if (has_field(recorded_, "/lora")) return replay_loras();
    if (has_file(kOriginal)) {
      make_run(with_file(kOriginal), trace_);
      return require_same(kOriginal, kPrefixed);
    }
    replay_fp8();
  }

 private:
  bool has_file(const char* name) const { return fs::exists(recorded_.folder / name); }

  RunConfig with_file(const char* name) const {
    RunConfig config = config_;
    config.own.get<WanSettings>().transformer = recorded_.folder / name;
    return config;
  }

  void replay_loras() {
    RunConfig config = config_;
    const std::size_t count = recorded_.description.at("lora").size();
    for (std::size_t i = 0; i < count; ++i)
      config.own.get<WanSettings>().loras.push_back(lora_of(fmt::format("/lora/{}", i)));
    const auto merged = open(config);
    require_experts(*merged);
    make_run(config, trace_);
    for (std::size_t i = 0; i < kWanTransformers.size(); ++i)
      record(*merged, i, fmt::format("fused.{}.", kWanTransformers[i]));
    if (!has_field(recorded_, "/lora_with_metadata")) return;
    config.own.get<WanSettings>().loras = {lora_of("/lora_with_metadata")};
    record(*open(config), 0, fmt::format("metadata.fused.{}.", kWanTransformers[0]));
  }

  // A model with one transformer has no place for the other's weights.
  void require_experts(DitSession& session) const {
    const std::string second = kWanTransformers[1];
    const auto is_of_second = [&](const auto& entry) {
      return entry.first.starts_with(fmt::format("fused.{}.", second));
    };
    if (checkpoint_of(session).has_experts() ||
        std::ranges::none_of(expected_.entries(), is_of_second))
      return;
    throw InputError("{}: holds weights of {}, but {} has one transformer",
                     (recorded_.folder / "expected.safetensors").string(), second,
                     config_.model.string());
  }

  // Files for an expert have it in their names.
  AddedWeights lora_of(const std::string& at) const {
    return {"", recorded_.folder / recorded_field<std::string>(recorded_, at + "/file"),
            recorded_field<double>(recorded_, at + "/strength")};
  }

  void replay_fp8() {
    make_run(with_file(kScaled), trace_);
    record(*open(with_file(kScaled)), 0, "dequant.scaled.");
    require_same(kScaled, kLayers);
    make_run(with_file(kPlain), "plain.");
    record(*open(with_file(kPlain)), 0, "dequant.plain.");
    RunConfig config = with_file(kScaled);
    config.own.get<WanSettings>().loras = {lora_of("/lora_on_fp8")};
    make_run(config, "lora.");
    record(*open(config), 0, "lora.fused.");
  }

  void make_run(const RunConfig& config, TraceSink& trace) const {
    run_(*open(config), config, trace);
  }
  void make_run(const RunConfig& config, const std::string& prefix) const {
    TraceSink inner;
    make_run(config, inner);
    for (const auto& [name, value] : inner.tensors()) trace_.record(prefix + name, value);
  }

  // As a run opens it; weights are read where they are asked for.
  std::unique_ptr<DitSession> open(const RunConfig& config) const {
    return std::make_unique<DitSession>(config, wan_opening(), log_);
  }
  static const WanCheckpoint& checkpoint_of(DitSession& session) {
    return dynamic_cast<WanCheckpoint&>(session.checkpoint());
  }

  // The tensors that the case holds under names with that prefix.
  void record(DitSession& session, std::size_t place, const std::string& prefix) const {
    for (const auto& [name, entry] : expected_.entries()) {
      if (!name.starts_with(prefix) || !trace_.wants(name)) continue;
      const std::string tensor = name.substr(prefix.size());
      const Weights& weights = checkpoint_of(session).expert_weights(place);
      trace_.record(name, weights.get(tensor, weights.shape(tensor)));
    }
  }

  void require_same(const char* file, const char* other) const {
    const auto a = open(with_file(file)), b = open(with_file(other));
    const auto weight = [](DitSession& session, const TensorShape& tensor) {
      return checkpoint_of(session).expert_weights(0).get(tensor.name, tensor.shape);
    };
    for (const TensorShape& tensor : wan_layout(checkpoint_of(*a).dit())) {
      if (at::equal(weight(*a, tensor), weight(*b, tensor))) continue;
      throw CheckFailed(fmt::format("{}: {} is not as in {}", other, tensor.name, file));
    }
  }

  const RunConfig& config_;
  const RecordedCase& recorded_;
  Log& log_;
  TraceSink& trace_;
  const WanCaseRun& run_;
  SafetensorsFile expected_;
};

}  // namespace

bool has_own_weights(const RecordedCase& recorded) {
  return has_field(recorded, "/lora") || has_field(recorded, "/weights");
}

void replay_wan_weights(const RunConfig& config, const RecordedCase& recorded, Log& log,
                        TraceSink& trace, const WanCaseRun& run) {
  WeightsReplay(config, recorded, log, trace, run).replay();
}

}  // namespace diptych
