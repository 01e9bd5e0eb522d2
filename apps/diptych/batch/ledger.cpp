#include "apps/diptych/batch/ledger.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "apps/diptych/result_files.h"
#include "apps/diptych/run_summary.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/session/stage_clock.h"

namespace diptych {

BatchLedger::BatchLedger(const std::vector<PlannedItem>& items, const std::vector<bool>& own,
                         const BatchSettings& settings, BatchFolder* folder, Progress& progress,
                         Log& log)
    : items_(items),
      settings_(settings),
      folder_(folder),
      progress_(progress),
      log_(log),
      states_(items.size(), State::pending),
      started_(steady_seconds()) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!own[i]) states_[i] = State::of_others;
  }
}

bool BatchLedger::any_pending(Members members) const {
  return std::ranges::any_of(members, [&](std::size_t i) { return is_pending(i); });
}

std::size_t BatchLedger::count(State state) const {
  return static_cast<std::size_t>(std::ranges::count(states_, state));
}

std::int64_t BatchLedger::total() const {
  return static_cast<std::int64_t>(items_.size() - count(State::of_others));
}

std::int64_t BatchLedger::through() const {
  return total() - static_cast<std::int64_t>(count(State::pending));
}

void BatchLedger::restart() {
  started_ = steady_seconds();
}

void BatchLedger::begin() {
  begun_ = steady_seconds();
  progress_.set_items(through(), total());
}

ManifestRecord BatchLedger::blank(const PlannedItem& item) {
  ManifestRecord record;
  record.id = item.id;
  record.number = item.number;
  record.seed = item.options.run.sampling.seed;
  if (const auto& enhanced = item.options.enhanced) {
    record.prompt = item.options.run.prompt();
    record.prompt_given = enhanced->given;
  }
  return record;
}

ManifestRecord::File BatchLedger::hashed(const std::string& name) const {
  auto hash = file_sha256(path(name));
  if (!hash) throw RunError("{}: cannot be read again", path(name).string());
  return {name, *std::move(hash)};
}

void BatchLedger::record_done(Members members, std::vector<ManifestRecord>& records, double seconds,
                              const Report& report) {
  if (!writes()) {
    for (const std::size_t i : members) {
      if (is_pending(i)) states_[i] = State::done;
    }
    return;
  }
  const double each = seconds / static_cast<double>(members.size());
  std::vector<ManifestRecord> done;
  for (std::size_t request = 0; request < members.size(); ++request) {
    if (!is_pending(members[request])) continue;
    const PlannedItem& item = items_[members[request]];
    ManifestRecord& record = records[request];
    record.ok = true;
    record.made_by = made_by(item, report);
    record.seconds = each;
    record.request = request_hash(item);
    record.files.clear();
    for (const std::filesystem::path& file : item.files)
      record.files.push_back(hashed(file.string()));
    done.push_back(record);
  }
  manifest().append(done);
  run_count_ += done.size();
  const std::size_t left = count(State::pending) - done.size();
  for (const std::size_t i : members) {
    if (!is_pending(i)) continue;
    states_[i] = State::done;
    log_done(items_[i], each, left);
  }
}

void BatchLedger::record_failure(std::size_t i, std::vector<ManifestRecord::File> files,
                                 const std::string& error) {
  if (!writes()) return fail(i);
  const PlannedItem& item = items_[i];
  ManifestRecord record = blank(item);
  for (const ManifestRecord::File& file : files) record.files.push_back(hashed(file.name));
  record.error = error;
  if (item.error.empty()) record.request = request_hash(item);
  manifest().append(std::span(&record, 1));
  fail(i);
  log_.write(LogLevel::error, fmt::format("{}: {}", item.id, record.error));
  progress_.set_items(through(), total());
}

// left: items still to run, not counting those of this item's group.
void BatchLedger::log_done(const PlannedItem& item, double seconds, std::size_t left) {
  const double each = (steady_seconds() - begun_) / static_cast<double>(run_count_);
  progress_.set_items(through(), total());
  const SamplingConfig& sampling = item.options.run.sampling;
  log_.info("{}/{} {}: {}{:.2f}s{}", through(), total(), item.id,
            sampling.seed_drawn ? fmt::format("seed {}, ", sampling.seed) : "", seconds,
            left > 0 ? fmt::format(", {:.0f}s to go", each * static_cast<double>(left)) : "");
  if (!settings_.prints_paths) return;
  progress_.clear();
  for (const std::filesystem::path& file : item.files) print_path(path(file));
}

void BatchLedger::finish(const Report& report) {
  std::vector<std::string> ids;
  for (const PlannedItem& item : items_) ids.push_back(item.id);
  manifest().finish(ids);
  const double seconds = steady_seconds() - started_;
  const std::size_t done = count(State::done);
  std::string line = fmt::format("{}: {} done, {} failed, {} skipped in {:.1f}s",
                                 counted(static_cast<std::size_t>(total()), "item"), done,
                                 count(State::failed), count(State::skipped), seconds);
  if (done > 0) line += fmt::format(", {:.1f} items/min", 60 * static_cast<double>(done) / seconds);
  const std::string stages = stage_times(report);
  if (!stages.empty()) line += fmt::format(" ({})", stages);
  log_.info("{}", line);
}

}  // namespace diptych
