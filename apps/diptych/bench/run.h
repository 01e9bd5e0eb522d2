// The measuring part of `diptych bench`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/diptych/bench/plan.h"
#include "lib/base/log.h"
#include "lib/runtime/launches.h"
#include "lib/runtime/metered_ranks.h"
#include "lib/session/kernel_report.h"
#include "lib/session/session.h"

namespace diptych {

struct BenchRun {      // one request, from its texts and files to encoded files
  double seconds = 0;  // all of it
  std::vector<std::pair<std::string, double>> stages;  // of these, as Report::seconds
  std::int64_t tokens = 0;                             // of written text
  double token_seconds = 0;
  double stage(std::string_view name) const;  // 0 where it did not happen
};

struct BenchFile {
  std::string name, sha256;
};

struct BenchExchanges {  // of this process with the others, in one more run
  std::map<RankAxis, ExchangeCost> axes;
  double denoise_seconds = 0;  // of that run
  std::int64_t sent_bytes() const;
  double share_of_denoising() const;  // of the time; exchanges of decoding do not count
};

struct BenchMeasured {  // of one setting of one case
  std::vector<BenchRun> warmups, runs;
  // Pictures or clips, whose frames are gone, of the first of `runs`, as are `files` and `texts`.
  std::vector<Result> painted;
  std::vector<BenchFile> files;            // what was kept
  std::vector<std::string> texts;          // answers
  std::optional<DraftingReport> drafting;  // of all of them
  Report ran;
  ParallelDegrees degrees;              // in which ranks divided it
  bool repeatable = true;               // every run gave the same results
  std::uint64_t peak_tensor_bytes = 0;  // of the device; 0 on the CPU, and where two models are
  std::optional<Launches> launches;     // in `updates` of each result
  bool launches_replay = false;         // of steps that an earlier run captured
  std::optional<KernelTable> kernels;
  std::vector<FloorPair> floors;            // one for each of `runs`
  std::optional<BenchExchanges> exchanges;  // where ranks divide the steps
  std::int64_t steps() const;               // updates of all results of a run
};

struct BenchModel {
  std::size_t setting = 0;  // the first of a case's settings that it serves
  double load_seconds = 0, hash_seconds = 0;
  std::string weights_hash;
};

struct BenchResult {
  std::vector<std::vector<BenchMeasured>> cases;  // [case][setting]
  std::vector<BenchModel> models;
  std::uint64_t peak_bytes = 0;       // most memory that the process took from the device
  std::uint64_t peak_host_bytes = 0;  // most host memory that it had resident
};

// Loads the model, or one for each setting where they differ in that, and measures case after case,
// the settings of each in turn: A B A B. What a kept result is written to is checked before
// anything is loaded. Throws what Session throws, and WriteError for a result that cannot be kept.
BenchResult run_bench(const BenchPlan& plan, Log& log);

// What run_bench() would refuse before it loads weights.
void check_bench(const BenchPlan& plan, Log& log);

}  // namespace diptych
