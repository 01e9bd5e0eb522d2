// `diptych bench --dataset`: a language model on published questions, with its drafter and without.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/log.h"
#include "lib/batch/dataset.h"
#include "lib/config/resolve.h"
#include "lib/session/result.h"

namespace diptych {

struct DatasetSettings {
  std::vector<std::filesystem::path> files;
  DatasetKind kind = DatasetKind::automatic;
  std::int64_t max_samples = 0;  // first rows of each file; 0: all
  std::int64_t warmup = 1;       // answers that are not measured
};

// What was written for one turn of a row.
struct DatasetAnswer {
  std::string place;  // of the row
  std::size_t turn = 0;
  Text drafted;               // by the request as it is
  std::optional<Text> plain;  // where the request has a drafter: without it
  std::optional<bool> right;  // `drafted`, where the right answer is known
};

struct DatasetMeasured {
  Dataset dataset;
  std::vector<DatasetAnswer> answers;  // turn by turn, row by row
  std::size_t asked = 0;               // rows, all of whose turns are answered
  double plain_tokens_per_second() const;
  // 1 / the mean over answers of the seconds of a token, as the reference has it.
  double tokens_per_second() const;
  DraftingReport drafting() const;         // of all answers
  double mean_acceptance() const;          // the mean of the answers' means
  std::size_t equal_texts() const;         // answers with `plain` of the same text
  std::size_t judged() const;              // answers whose right one is known
  std::optional<double> accuracy() const;  // of those
};

struct DatasetResult {
  std::vector<DatasetMeasured> sets;
  Report ran;
  std::string weights_hash;    // "" where it ended early
  std::exception_ptr failure;  // why it did, behind the answers that there are
};

// Loads the model once and asks every row, the turns of a row one behind the other with the answers
// in between. Throws InputError for rows that it cannot serve, and as Session::run(), unless there
// are answers.
DatasetResult run_datasets(const Resolved& request, const DatasetSettings& settings, Log& log);
// What it would refuse before it loads weights.
void check_datasets(const Resolved& request, const DatasetSettings& settings, Log& log);

std::string datasets_table(const DatasetResult& result);
nlohmann::ordered_json datasets_json(const Resolved& request, const DatasetResult& result);

}  // namespace diptych
