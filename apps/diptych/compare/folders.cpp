#include "apps/diptych/compare/folders.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "apps/diptych/compare/files.h"
#include "apps/diptych/compare/table.h"
#include "apps/diptych/compare/totals.h"
#include "lib/base/clip_formats.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/picture_formats.h"
#include "lib/request/output_names.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Where a pair goes that is written side by side: its own name, with another extension where this
// build writes none of that name.
fs::path side_by_side_path(const fs::path& folder, const std::string& name, CompareKind kind) {
  fs::path path = folder / name;
  const auto writes = [&](const std::vector<std::string_view>& extensions) {
    return std::ranges::find(extensions, path.extension().string()) != extensions.end();
  };
  const auto use = [&](const std::vector<std::string_view>& extensions) {
    if (!writes(extensions)) path += std::string(extensions.front());
  };
  use(kind == CompareKind::clip ? written_clip_extensions() : written_extensions());
  fs::create_directories(path.parent_path());
  return path;
}

class FolderComparison {
 public:
  explicit FolderComparison(const CompareOptions& options)
      : options_(options), pairs_(pair_folders(options.actual, options.expected)), table_(pairs_) {}

  CompareReport run() {
    if (prints_table()) table_.print_head(options_);
    for (const auto& [name, pair] : pairs_.by_name) {
      check_interrupted();
      add(name, pair, compare(name, pair));
    }
    if (pairs_.by_name.empty()) {
      throw InputError("{} and {}: hold no picture, clip or .safetensors", options_.actual.string(),
                       options_.expected.string());
    }
    if (prints_table()) table_.print_totals(totals_);
    finish();
    return std::move(total_);
  }

 private:
  bool prints_table() const { return pairs_.of_manifests && !options_.json; }

  CompareReport compare(const std::string& name, const FolderPair& pair) {
    if (!pair.failure.empty()) return incomparable_pair(pair.failure);
    if (!pair.there[0] || !pair.there[1]) {
      ++missing_;
      if (options_.any_gate()) ++failed_;
      std::string without = (pair.there[0] ? options_.expected : options_.actual).string();
      if (!pair.there[0] && !pair.there[1]) without += " and " + options_.expected.string();
      return problem("missing in " + without, false);
    }
    try {
      CompareReport report = compare_there(name, pair);
      ++compared_;
      if (report.json.value("equal", false)) ++equal_;
      if (!report.pass) ++failed_;
      return report;
    } catch (const InputError& error) {  // the others are compared all the same
      return incomparable_pair(error.what());
    }
  }

  CompareReport incomparable_pair(const std::string& text) {
    ++incomparable_;
    return problem(text, false);
  }

  CompareReport compare_there(const std::string& name, const FolderPair& pair) {
    const fs::path actual = options_.actual / name, expected = options_.expected / name;
    if (pair.is_text) return compare_texts(actual, expected, options_);
    const CompareKind kind = common_kind(actual, expected);
    CompareOptions options = options_;
    options.output.clear();
    if (!options_.output.empty() && kind != CompareKind::trace)
      options.output = side_by_side_path(options_.output, name, kind);
    return compare_files(actual, expected, kind, options);
  }

  void add(const std::string& name, const FolderPair& pair, CompareReport report) {
    total_.pictures += report.pictures;
    total_.traces += report.traces;
    total_.texts += report.texts;
    total_.tensors.insert(total_.tensors.end(), report.tensors.begin(), report.tensors.end());
    if (report.extremes) totals_.add(name, *report.extremes);
    if (report.extremes || report.texts > 0) totals_.add_seconds(pair.seconds);
    if (prints_table()) {
      table_.print_row(name, pair, report);
    } else if (!options_.json) {
      print_lines(name, report);
    }
    report.json["name"] = name;
    report.json["pass"] = report.pass;
    if (pairs_.of_manifests) {
      report.json["seconds"] = Json::array();
      for (const auto& seconds : pair.seconds)
        report.json["seconds"].push_back(seconds ? Json(*seconds) : Json());
    }
    list_.push_back(std::move(report.json));
  }

  void finish() {
    total_.pass = failed_ + missing_ + incomparable_ == 0;
    total_.json["pairs"] = std::move(list_);
    Json& total = total_.json["total"] = totals_.json();
    total.update({{"compared", compared_},
                  {"equal", equal_},
                  {"failed", failed_},
                  {"missing", missing_},
                  {"not_comparable", incomparable_}});
    if (total_.texts > 0) total["texts"] = total_.texts;
    std::string summary = fmt::format("{} compared, {} missing", compared_, missing_);
    if (incomparable_ > 0) summary += fmt::format(", {} not comparable", incomparable_);
    // A gate fails for what is missing.
    const std::size_t left_out = incomparable_ + (options_.any_gate() ? 0 : missing_);
    if (left_out > 0)
      total_.incomplete = fmt::format("{} could not be compared", counted(left_out, "pair"));
    if (options_.any_gate() || failed_ > 0) summary += fmt::format(", {} failed", failed_);
    total_.lines.push_back(summary);
    if (!pairs_.of_manifests && totals_.compared > 1)
      add_total_lines(total_.lines, totals_, equal_ == pairs_.by_name.size());
  }

  const CompareOptions& options_;
  const FolderPairs pairs_;
  const CompareTable table_;
  FolderTotals totals_;
  CompareReport total_;
  Json list_ = Json::array();
  std::size_t compared_ = 0, equal_ = 0, missing_ = 0, incomparable_ = 0, failed_ = 0;
};

}  // namespace

CompareReport compare_folders(const CompareOptions& options) {
  return FolderComparison(options).run();
}

}  // namespace diptych
