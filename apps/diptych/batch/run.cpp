#include "apps/diptych/batch/run.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/batch/ledger.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/failure.h"
#include "apps/diptych/record/result_record.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/run_summary.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/batch/manifest.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/output_names.h"
#include "lib/runtime/ranks.h"
#include "lib/session/stage_clock.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

class BatchRun {
 public:
  // `folder`: null for a rank that does not write.
  BatchRun(const std::vector<PlannedItem>& items, const BatchSettings& settings,
           BatchFolder* folder, Log& log)
      : items_(items),
        settings_(settings),
        ranks_(settings.defaults.options.run.ranks.get()),
        own_(settings.own.empty() ? std::vector<bool>(items.size(), true) : settings.own),
        log_(log),
        progress_(log, settings.progress),
        ledger_(items_, own_, settings, folder, progress_, log),
        jobs_(items.size()) {
    if (folder != nullptr) earlier_.emplace(items_, own_, settings.shard, *folder, log);
  }

  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  // What comes before the weights. Returns the session, null where no item can run. `shared`: a
  // session that serves these items, too, instead of one of their own.
  std::shared_ptr<Session> begin(std::shared_ptr<Session> shared = nullptr) {
    saying_where_it_stopped([&] {
      if (settings_.resume) skip_finished();
      // What is wrong with the command ends it before a file is touched.
      open_session(std::move(shared));
      if (settings_.resume && writes()) earlier_->forget_unfinished();
      fail_invalid();
      groups_ = pending_groups();
      enhance_prompts();
    });
    return session_;
  }

  // The runs that the session should expect. A job that cannot be made fails when its item runs.
  std::vector<JobGroup> expected() {
    std::vector<JobGroup> runs;
    for (const std::vector<std::size_t>& group : groups_) {
      JobGroup run;
      for (const std::size_t i : group) {
        check_interrupted();
        try {
          run.push_back(&job(i));
        } catch (...) {
          if (!describe_failure(std::current_exception()).of_item) throw;
        }
      }
      if (!run.empty()) runs.push_back(std::move(run));
    }
    return runs;
  }

  // Runs the items. `expected`: all runs of their session.
  int finish(std::span<const JobGroup> expected) {
    saying_where_it_stopped([&] { run_pending(expected); });
    if (writes()) ledger_.finish(report_);
    return ledger_.count(State::failed) > 0 ? kSomeFailed : kDone;
  }

 private:
  bool writes() const { return ledger_.writes(); }

  using State = BatchLedger::State;
  using Members = BatchLedger::Members;

  // What the members of one run have given so far.
  struct Outcome {
    std::vector<ManifestRecord> records;  // one per member
    std::vector<Result> results;          // of several members, until all are there
    Report report;
  };

  template <typename Work>
  void saying_where_it_stopped(const Work& work) {
    try {
      work();
    } catch (...) {
      if (ledger_.through() > 0) {
        log_.info("stopped after {} of {}; the same command with --resume continues",
                  ledger_.through(), counted(static_cast<std::size_t>(ledger_.total()), "item"));
      }
      throw;
    }
  }

  // Ranks that share the items skip the same ones.
  void skip_finished() {
    const auto find = [&] {
      std::string marks;
      for (const bool finished : earlier_->find_finished(progress_)) marks += finished ? '+' : '-';
      return marks;
    };
    const std::string marks = ranks_ == nullptr ? find() : ranks_->group_text("finished", find);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (marks[i] == '+') ledger_.skip(i);
    }
  }

  // Before anything is loaded.
  void fail_invalid() {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (ledger_.is_pending(i) && !items_[i].error.empty())
        ledger_.record_failure(i, {}, items_[i].error);
    }
  }

  void open_session(std::shared_ptr<Session> shared) {
    const auto can_run = [&](std::size_t i) {
      return ledger_.is_pending(i) && items_[i].error.empty();
    };
    std::vector<std::size_t> able;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (can_run(i)) able.push_back(i);
    }
    if (able.empty()) return;
    shares_session_ = shared != nullptr;
    session_ = shares_session_
                   ? std::move(shared)
                   : diptych::open_session(settings_.defaults, items_[able.front()], log_);
    CommonError common;
    for (const std::size_t i : able) {
      check_interrupted();
      if (!common.see(refused_default(i))) break;
    }
    common.refuse();
    for (const std::size_t i : able) open_enhancer(i);
  }

  // An item that cannot have its enhancer fails when it is its turn. Throws InputError where the
  // whole batch has named it.
  void open_enhancer(std::size_t i) {
    if (!enhances(items_[i].options)) return;
    try {
      enhancer_of(items_[i].options, enhancers_, log_);
    } catch (const InputError& error) {
      if (const auto text = batch_error(items_[i], settings_.defaults, error))
        throw InputError(*text);
    }
  }

  // All prompts of the groups that ask for it, model by model, before the painter's weights are
  // read. Items that run again beside a pending one get theirs, too.
  void enhance_prompts() {
    PromptEnhancers enhancers = std::exchange(enhancers_, {});
    for (std::unique_ptr<PromptEnhancer>& enhancer : enhancers) {
      for_each_to_enhance([&](std::size_t i) {
        if (enhancer->serves(items_[i].options)) enhance(i, *enhancer);
      });
      enhancer.reset();
    }
    for_each_to_enhance([&](std::size_t i) {  // says why there is no enhancer
      of_item(i, [&] { PromptEnhancer(items_[i].options, log_).check(items_[i].options); });
    });
    for (std::vector<std::size_t>& group : groups_)
      std::erase_if(group, [&](std::size_t i) { return is_to_enhance(i); });
    std::erase_if(groups_, [&](const auto& group) { return !ledger_.any_pending(group); });
  }

  template <typename Work>
  void for_each_to_enhance(const Work& work) {
    for (const std::vector<std::size_t>& group : groups_) {
      for (const std::size_t i : group) {
        if (is_to_enhance(i) && !ledger_.has_failed(i)) work(i);
      }
    }
  }
  bool is_to_enhance(std::size_t i) const {
    return enhances(items_[i].options) && !items_[i].options.enhanced;
  }

  void enhance(std::size_t i, PromptEnhancer& enhancer) {
    check_interrupted();
    of_item(i, [&] { enhancer.rewrite(items_[i].options, items_[i].id + ": ", progress_); });
    jobs_[i].reset();  // of the prompt before
  }

  // What fails in this is a failure of the item, unless it ends the batch.
  template <typename Work>
  void of_item(std::size_t i, const Work& work) {
    try {
      work();
    } catch (...) {
      const Failure failure = describe_failure(std::current_exception());
      if (!failure.of_item) throw;
      if (ledger_.is_pending(i)) ledger_.record_failure(i, {}, text_of(failure, items_[i]));
    }
  }

  // The model's error about a value that the whole batch has, if there is one.
  std::optional<std::string> refused_default(std::size_t i) {
    try {
      job(i).read_inputs();
    } catch (const InputError& error) {
      return batch_error(items_[i], settings_.defaults, error);
    } catch (...) {  // the run of the item says so
      const Failure failure = describe_failure(std::current_exception());
      if (!failure.of_item) throw;
    }
    return std::nullopt;
  }

  void run_pending(std::span<const JobGroup> expected) {
    if (groups_.empty()) {
      Report asked;  // nothing is loaded that would say more
      if (const DtypeChoice dtype = settings_.defaults.options.run.dtype;
          dtype != DtypeChoice::automatic)
        asked.dtype = name_of(dtype);
      if (writes()) earlier_->warn_of_other_settings(asked);
      return;
    }
    if (shares_session_) ledger_.restart();  // the time before was another list's
    const Report before = session_->report();
    session_->load(expected, progress_);
    for (std::int64_t i = 0; i < settings_.warmup; ++i) warm_up(groups_.front());
    if (writes()) earlier_->warn_of_other_settings(session_->report());
    ledger_.begin();
    std::vector<std::size_t> chosen = choose(groups_.front());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<std::size_t> members = std::move(chosen);
      const bool has_next = g + 1 < groups_.size();
      const bool looks_ahead = has_next && session_->reads_ahead();
      if (looks_ahead) {
        chosen = choose(groups_[g + 1]);
        if (ledger_.any_pending(members)) session_->expect_next(jobs_of(chosen));
      }
      run_group(members);
      for (const std::size_t i : groups_[g]) jobs_[i].reset();
      if (has_next && !looks_ahead) chosen = choose(groups_[g + 1]);
    }
    report_ = session_->report();
    if (shares_session_) {
      report_.seconds = stages_between(before, report_);
      report_.steps_per_second = report_.tokens_per_second = 0;  // of all lists
      report_.drafting.reset();
    }
    if (*decoded_seconds_ > 0) add_seconds("vae", *decoded_seconds_);
    add_seconds("encode", written_seconds_ - *decoded_seconds_);
  }

  void add_seconds(const std::string& stage, double seconds) {
    const auto found =
        std::ranges::find(report_.seconds, stage, &std::pair<std::string, double>::first);
    if (found == report_.seconds.end()) {
      report_.seconds.emplace_back(stage, seconds);
    } else {
      found->second += seconds;
    }
  }

  // Runs the group once more, for nothing but what only a first run takes. What fails here fails
  // again when the group is run.
  void warm_up(Members members) {
    Results nothing_kept;
    nothing_kept.result = [](const Result& result, const Report&) {
      check_interrupted();
      if (const auto* clip = std::get_if<Clip>(&result.media))
        clip->decode([](const Tensor&) { check_interrupted(); });
    };
    nothing_kept.plan = [](std::size_t, std::string_view, const std::string&) {};
    try {
      JobGroup jobs;
      for (const std::size_t i : members) jobs.push_back(&job(i));
      session_->run(jobs, progress_, nothing_kept);
    } catch (...) {
      if (!describe_failure(std::current_exception()).of_item) throw;
    }
  }

  // The groups of items that run together and have a pending item. The whole list is grouped,
  // finished items too, so that a resumed run paints the same pictures together as before and gets
  // the same bits. Finished items are not written again: if the list or --batch-size has changed,
  // their groups differ and so would their pictures.
  std::vector<std::vector<std::size_t>> pending_groups() const {
    if (ledger_.count(State::pending) == 0) return {};
    auto groups = plan_forwards(items_, settings_.batch_size, session_.get());
    const auto is_shared = [](const auto& group) { return group.size() > 1; };
    if (settings_.batch_size > 1 && std::ranges::none_of(groups, is_shared)) {
      log_.warning(
          "--batch-size {}: no two consecutive items can share a forward; each item is run alone",
          settings_.batch_size);
    }
    std::erase_if(groups, [&](const auto& group) { return !ledger_.any_pending(group); });
    return groups;
  }

  // Made when it is first needed, and kept until its item has run. Throws as Session::make_job.
  Job& job(std::size_t i) {
    if (jobs_[i] == nullptr) {
      std::unique_ptr<Job> made = session_->make_job(items_[i].options.run);
      require_encodable(items_[i].options, *made);
      jobs_[i] = std::move(made);
    }
    return *jobs_[i];
  }

  // Those members of a group that can run. One that reads ahead must know so of single ones, too.
  std::vector<std::size_t> choose(std::vector<std::size_t> members) {
    if (ranks_ != nullptr) return agreed(std::move(members));
    if (members.size() > 1 || session_->reads_ahead())
      std::erase_if(members, [&](std::size_t i) { return is_refused(i); });
    return members;
  }

  // Of items that job() has been made for.
  JobGroup jobs_of(Members members) const {
    JobGroup jobs;
    for (const std::size_t i : members) jobs.push_back(jobs_[i].get());
    return jobs;
  }

  void run_group(Members members) {
    if (!ledger_.any_pending(members)) return;
    check_interrupted();
    const auto error = attempt(members);
    if (!error) return;
    const std::size_t half = members.size() / 2;
    log_.warning("{} to {} together: {}; now in parts of {} and {}", items_[members.front()].id,
                 items_[members.back()].id, *error, half, members.size() - half);
    run_group(members.first(half));
    run_group(members.subspan(half));
  }

  // Those of the members that the leading rank can run, which the ranks that share them then run
  // together: whoever went on alone would wait for the others for ever. Throws what keeps another
  // rank from running them.
  std::vector<std::size_t> agreed(std::vector<std::size_t> members) {
    if (writes()) std::erase_if(members, [&](std::size_t i) { return is_refused(i); });
    const std::string name = fmt::format("forward {}", agreements_++);
    std::istringstream chosen(
        ranks_->group_text(name, [&] { return fmt::format("{}", fmt::join(members, " ")); }));
    if (writes()) return members;
    std::vector<std::size_t> able;
    for (std::size_t i = 0; chosen >> i;) able.push_back(i);
    for (const std::size_t i : members) {
      if (std::ranges::find(able, i) != able.end()) {
        prepare(i);
      } else if (ledger_.is_pending(i)) {
        ledger_.fail(i);
      }
    }
    return able;
  }

  void prepare(std::size_t i) {
    try {
      job(i).read_inputs();
    } catch (const InputError& error) {
      throw InputError("{}", item_error(items_[i], settings_.defaults, error));
    }
  }

  // Whether the model refuses the item, or its files have no place. Its group then runs without it.
  bool is_refused(std::size_t i) {
    try {
      job(i).read_inputs();
      if (ledger_.is_pending(i)) require_places(items_[i]);
      return false;
    } catch (...) {
      const Failure failure = describe_failure(std::current_exception());
      if (!failure.of_item) throw;
      if (ledger_.is_pending(i)) ledger_.record_failure(i, {}, text_of(failure, items_[i]));
      return true;
    }
  }

  std::string text_of(const Failure& failure, const PlannedItem& item) const {
    return failure.input ? item_error(item, settings_.defaults, *failure.input)
                         : fmt::format("{}: {}", item.where, failure.text);
  }

  // Runs the members and records them. If several fail together it returns the error; the error of
  // a single one is recorded. Throws what ends the batch.
  std::optional<std::string> attempt(Members members) {
    Outcome outcome;
    for (const std::size_t i : members) outcome.records.push_back(BatchLedger::blank(items_[i]));
    const double start = steady_seconds();
    try {
      run_together(members, outcome);
    } catch (...) {
      const Failure failure = describe_failure(std::current_exception());
      // Whether the other ranks have failed alike, nobody knows; they may wait for this one.
      if (!failure.of_item || ranks_ != nullptr) {
        if (writes()) discard(members, outcome);
        throw;
      }
      ledger_.manifest().require_in_place();  // a folder that is gone is no failure of the items
      if (members.size() > 1) return failure.text;
      ledger_.record_failure(members.front(), std::move(outcome.records.front().files),
                             text_of(failure, items_[members.front()]));
      return std::nullopt;
    }
    const double seconds = steady_seconds() - start;
    ledger_.record_done(members, outcome.records, seconds,
                        writes() ? session_->report() : Report{});
    return std::nullopt;
  }

  // Before anything is painted.
  void require_places(const PlannedItem& item) const {
    ledger_.manifest().require_in_place();
    for (const fs::path& file : item.files) {
      make_batch_folder(ledger_.path(file).parent_path());
      probe_output(ledger_.path(file));  // goes again
    }
  }

  void run_together(Members members, Outcome& outcome) {
    JobGroup jobs;
    for (const std::size_t i : members) {
      jobs.push_back(&job(i));
      if (writes() && ledger_.is_pending(i)) require_places(items_[i]);
    }
    const auto item = [&](std::size_t request) -> const PlannedItem& {
      return items_[members[request]];
    };
    Results results;
    results.result = [&](const Result& result, const Report& report) {
      check_interrupted();
      if (members.size() == 1 && !records_text(item(0))) {
        if (!writes()) return help_decode(result.media);
        const Painted painted{&item(0).options, &result};
        return write_one({std::span(&painted, 1), 0, &report}, item(0), outcome.records[0]);
      }
      outcome.results.push_back(result);
      outcome.report = report;
      if (auto* const clip = std::get_if<Clip>(&outcome.results.back().media))
        count_decoding(*clip, decoded_seconds_);
    };
    results.plan = [&](std::size_t request, std::string_view plan,
                       const std::string& finish_reason) {
      if (!writes() || !ledger_.is_pending(members[request])) return;
      show_plan(item(request).options, plan, item(request).id + ": ", log_);
      outcome.records[request].plan = plan;
      outcome.records[request].finish_reason = finish_reason;
    };
    session_->run(jobs, progress_, results);
    const double began = steady_seconds();
    write_together(members, outcome);
    written_seconds_ += steady_seconds() - began;
  }

  static bool records_text(const PlannedItem& item) {
    return diptych::records_text(item.options, item.results.front());
  }

  // Each record names the others, so all must be finished first; and that of a text has the hash of
  // the weights, which a session that paints nothing does not wait for.
  void write_together(Members members, Outcome& outcome) {
    const auto has_record = [&](std::size_t i) {
      return ledger_.is_pending(i) && records_text(items_[i]);
    };
    if (writes() && !outcome.results.empty() && std::ranges::any_of(members, has_record))
      outcome.report.weights_hash = session_->weights_hash();
    std::ranges::sort(outcome.results, {}, &Result::request);
    std::vector<Painted> painted;
    for (const Result& result : outcome.results)
      painted.push_back({&items_[members[result.request]].options, &result});
    for (std::size_t i = 0; i < painted.size(); ++i) {
      const std::size_t request = outcome.results[i].request;
      if (!ledger_.is_pending(members[request])) continue;
      if (!writes()) {
        help_decode(outcome.results[i].media);
        continue;
      }
      write_one({painted, i, &outcome.report}, items_[members[request]], outcome.records[request]);
    }
  }

  void write_one(const MadeResult& made, const PlannedItem& item, ManifestRecord& record) {
    const Result& result = made.result();
    const fs::path& name = item.results.at(result.index);
    write_result(ledger_.path(name), made, progress_);
    if (const auto* text = std::get_if<Text>(&result.media)) {
      record.text = text->text;
      record.finish_reason = text->finish_reason;
    } else {
      record.files.push_back({name.string(), ""});
    }
  }

  // Removes the results of items that were not finished.
  void discard(Members members, const Outcome& outcome) const {
    for (std::size_t request = 0; request < members.size(); ++request) {
      if (!ledger_.is_pending(members[request])) continue;
      std::error_code ignored;
      for (const ManifestRecord::File& file : outcome.records[request].files)
        fs::remove_all(ledger_.path(file.name), ignored);
    }
  }

  std::vector<PlannedItem> items_;  // with the prompts that are painted
  const BatchSettings& settings_;
  Ranks* ranks_;           // that share the items; null: this process alone
  std::vector<bool> own_;  // per item
  Log& log_;
  Progress progress_;
  BatchLedger ledger_;
  std::optional<EarlierRun> earlier_;  // of the folder
  double written_seconds_ = 0;         // behind the session's runs, of results together
  std::shared_ptr<double> decoded_seconds_ = std::make_shared<double>(0);  // of these, for frames
  std::size_t agreements_ = 0;                                             // of the ranks
  PromptEnhancers enhancers_;                     // of the items, until their prompts are written
  std::shared_ptr<Session> session_;              // null where no item can run
  bool shares_session_ = false;                   // which another list opened
  std::vector<std::vector<std::size_t>> groups_;  // that run together
  std::vector<std::unique_ptr<Job>> jobs_;        // per item; null: not made yet, or done
  Report report_;
};

}  // namespace

std::unique_ptr<Session> open_session(const Resolved& defaults, const PlannedItem& first,
                                      Log& log) {
  RunConfig model = defaults.options.run;
  model.task = first.options.run.task;
  model.makes = first.options.run.makes;
  return open_session(model, log);
}

std::vector<std::vector<std::size_t>> plan_forwards(const std::vector<PlannedItem>& items,
                                                    std::size_t batch_size,
                                                    const Session* session) {
  std::vector<std::size_t> valid;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].error.empty()) valid.push_back(i);
  }
  auto forwards = share_groups(valid.size(), batch_size, [&](std::size_t a, std::size_t b) {
    return session->may_share(items[valid[a]].options.run, items[valid[b]].options.run);
  });
  for (std::vector<std::size_t>& forward : forwards) {
    for (std::size_t& index : forward) index = valid[index];
  }
  return forwards;
}

int run_batch(const std::vector<PlannedItem>& items, const BatchSettings& settings,
              BatchFolder* folder, Log& log) {
  BatchRun run(items, settings, folder, log);
  run.begin();
  return run.finish(run.expected());
}

int run_batches(std::span<const BatchPass> passes, Log& log) {
  std::vector<std::unique_ptr<BatchRun>> runs;
  std::shared_ptr<Session> session;
  for (const BatchPass& pass : passes) {
    runs.push_back(std::make_unique<BatchRun>(*pass.items, *pass.settings, pass.folder, log));
    if (auto opened = runs.back()->begin(session)) session = std::move(opened);
  }
  std::vector<JobGroup> expected;
  for (const auto& run : runs) std::ranges::copy(run->expected(), std::back_inserter(expected));
  int code = kDone;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    log.info("{}", passes[i].title);
    code = std::max(code, runs[i]->finish(expected));
  }
  return code;
}

}  // namespace diptych
