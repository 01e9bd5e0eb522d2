// What the program asks of a family of models. Everything above lib/pipelines reaches a family
// through this record alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/log.h"
#include "lib/config/family_config.h"
#include "lib/config/run_config.h"
#include "lib/session/session.h"
#include "lib/tensor/trace.h"
#include "lib/tuning/table.h"
#include "lib/verify/trace_compare.h"

namespace diptych {

// A recorded run in the golden layout: case.json, inputs.safetensors, expected.safetensors.
struct RecordedCase {
  std::filesystem::path folder;
  nlohmann::json description;  // case.json
  // The key "task", else "kind". Throws naming the file: Unsupported where it has neither,
  // InputError where that is no text.
  std::string task() const;
};

// Runs a recorded case again and records its tensors under the recording's names. Throws
// Unsupported for a task that this version does not have.
using CaseReplay = std::function<void(const RecordedCase& recorded, TraceSink& trace)>;

// What `diptych tune` measures.
struct TuneRequest {
  std::filesystem::path model;  // its folder; empty: the released model's widths
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;  // of pictures: width, height in pixels
  int repeats = 10;                                          // of which the median counts
};

// Measures on a CUDA device. Throws Interrupted between measurements.
using TuneMeasurement = std::function<TuningTable(at::Device device, Progress& progress)>;

struct Family {
  const FamilyConfig& (*config)();  // its name, and what it declares to the configuration
  // Opens a model with the device, dtype, attention and checkpoint of `config`. Reads headers, no
  // weights. Throws InputError.
  std::unique_ptr<Session> (*open)(const RunConfig& config, Log& log);

  // The rest is optional: null where the family does not have it.

  // `config`: the family's defaults, with device, dtype, attention, CFG mode and kernels to run
  // with. The checkpoint is loaded when the first case needs it and kept.
  CaseReplay (*replay)(const std::filesystem::path& checkpoint, const RunConfig& config,
                       Log& log) = nullptr;
  // What the folder lacks, holds beyond, or holds in another shape than its configs say, one line
  // each; empty for a whole one. Reads headers only. Throws InputError as loading does.
  std::vector<std::string> (*layout)(const std::filesystem::path& folder) = nullptr;
  // What one file of weights is, of those that its models take beside or instead of their folder,
  // a line each: layout, parts, sizes, and what it cannot be used for. Empty for other files.
  // Throws InputError for one that cannot be read.
  std::vector<std::string> (*describe_file)(const std::filesystem::path& file) = nullptr;
  // What the names of its recorded tensors say.
  const TraceNames& (*trace_names)() = nullptr;
  // Tensors of the case that are judged by their norm, since their values are larger than those
  // that its tolerances are for. The last glob that matches a name counts.
  std::vector<NormTolerance> (*norm_tolerances)(const RecordedCase& recorded) = nullptr;
  // How far a bfloat16 run may be from the case's float32 recording; the last glob that matches a
  // name counts. Empty: as far as the case says of float32 runs.
  std::vector<NormTolerance> (*bf16_tolerances)(const RecordedCase& recorded) = nullptr;
  // Checks the request and reads the model's configs; the measurement comes later. Throws
  // InputError that names --sizes or a config file.
  TuneMeasurement (*tune)(const TuneRequest& request) = nullptr;
};

}  // namespace diptych
