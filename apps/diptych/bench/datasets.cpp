#include "apps/diptych/bench/datasets.h"

#include <algorithm>
#include <memory>

#include "apps/diptych/bench/drafting.h"
#include "apps/diptych/request_sources.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/registry.h"
#include "lib/request/request_checks.h"
#include "lib/verify/answers.h"

namespace diptych {
namespace {

class DatasetBench {
 public:
  DatasetBench(const Resolved& request, const DatasetSettings& settings, Log& log)
      : request_(request),
        settings_(settings),
        log_(log),
        progress_(log, request.options.progress),
        plain_(without_drafting(request)),
        drafts_(!against_drafting(request).empty()) {
    for (const auto& file : settings.files) {
      DatasetMeasured set{read_dataset(file, settings.kind), {}};
      auto& rows = set.dataset.rows;
      if (settings.max_samples > 0 && std::ssize(rows) > settings.max_samples)
        rows.resize(static_cast<std::size_t>(settings.max_samples));
      result_.sets.push_back(std::move(set));
    }
    check_turns();
    with_places(request_, [&] { session_ = open_session(request_.options.run, log_); });
  }

  // The first turns: what comes behind them has answers in between.
  std::vector<std::unique_ptr<Job>> make_jobs() const {
    std::vector<std::unique_ptr<Job>> jobs;
    for (const DatasetMeasured& set : result_.sets) {
      for (const DatasetRow& row : set.dataset.rows) {
        check_interrupted();
        jobs.push_back(make_job(row, config_of(request_.options.run, {}, row.turns.front())));
      }
    }
    return jobs;
  }

  DatasetResult run() {
    const auto jobs = make_jobs();
    std::vector<JobGroup> expected;
    for (const auto& job : jobs) expected.push_back({job.get()});
    session_->load(expected, progress_);
    warm_up();
    try {
      ask_all(std::ssize(jobs));
      result_.weights_hash = session_->weights_hash();
    } catch (...) {  // what was measured may have taken hours
      if (result_.sets.front().answers.empty()) throw;
      result_.failure = std::current_exception();
    }
    result_.ran = session_->report();
    return std::move(result_);
  }

 private:
  void check_turns() const {
    const FamilyConfig& family = *request_.options.run.family;
    if (!family.prompt_file.empty()) return;
    for (const DatasetMeasured& set : result_.sets) {
      for (const DatasetRow& row : set.dataset.rows) {
        if (row.turns.size() > 1)
          throw InputError("{}: {} turns, but {} holds no conversation; expected one", row.place,
                           row.turns.size(), family.name);
      }
    }
  }

  static RunConfig config_of(RunConfig config, const std::vector<ChatTurn>& history,
                             const std::string& prompt) {
    config.inputs = {{prompt, {}}};
    config.history = history;
    return config;
  }

  std::unique_ptr<Job> make_job(const DatasetRow& row, const RunConfig& config) const {
    return with_places(
        request_, [&] { return about(row.place, [&] { return session_->make_job(config); }); });
  }

  Text ask(const DatasetRow& row, const RunConfig& config) {
    check_interrupted();
    Text answer;
    Results results;
    results.result = [&](const Result& result, const Report&) { answer = result.text(); };
    const std::unique_ptr<Job> job = make_job(row, config);
    session_->run({job.get()}, progress_, results);
    return answer;
  }

  void warm_up() {
    const DatasetRow& row = result_.sets.front().dataset.rows.front();
    for (std::int64_t i = 0; i < settings_.warmup; ++i) {
      if (drafts_) ask(row, config_of(plain_, {}, row.turns.front()));
      ask(row, config_of(request_.options.run, {}, row.turns.front()));
    }
  }

  void ask_all(std::int64_t rows) {
    std::int64_t done = 0;
    for (DatasetMeasured& set : result_.sets) {
      for (const DatasetRow& row : set.dataset.rows) {
        progress_.set_items(done++, rows);
        ask_row(row, set);
        ++set.asked;
      }
    }
  }

  void ask_row(const DatasetRow& row, DatasetMeasured& set) {
    std::vector<ChatTurn> history = request_.options.run.history;
    for (std::size_t turn = 0; turn < row.turns.size(); ++turn) {
      const std::string& prompt = row.turns[turn];
      DatasetAnswer answer{row.place, turn, {}, {}, {}};
      if (drafts_) answer.plain = ask(row, config_of(plain_, history, prompt));
      answer.drafted = ask(row, config_of(request_.options.run, history, prompt));
      history.push_back({ChatRole::user, prompt});
      history.push_back({ChatRole::assistant, answer.drafted.text});
      if (turn + 1 == row.turns.size()) answer.right = judge(row, set.dataset.kind, answer.drafted);
      set.answers.push_back(std::move(answer));
    }
  }

  static std::optional<bool> judge(const DatasetRow& row, DatasetKind kind, const Text& answer) {
    if (row.answer.empty()) return std::nullopt;
    return kind == DatasetKind::math500 ? gives_expression(answer.text, row.answer)
                                        : gives_number(answer.text, row.answer);
  }

  const Resolved& request_;
  const DatasetSettings& settings_;
  Log& log_;
  Progress progress_;
  RunConfig plain_;  // without the drafter
  bool drafts_;
  std::unique_ptr<Session> session_;
  DatasetResult result_;
};

double rate_of(const std::vector<DatasetAnswer>& answers, const auto& text_of) {
  double seconds_per_token = 0;
  for (const DatasetAnswer& answer : answers) {
    const Text& text = text_of(answer);
    seconds_per_token += text.seconds / static_cast<double>(std::max<std::int64_t>(text.tokens, 1));
  }
  return seconds_per_token > 0 ? static_cast<double>(answers.size()) / seconds_per_token : 0;
}

}  // namespace

double DatasetMeasured::tokens_per_second() const {
  return rate_of(answers, [](const DatasetAnswer& a) -> const Text& { return a.drafted; });
}

double DatasetMeasured::plain_tokens_per_second() const {
  return rate_of(answers, [](const DatasetAnswer& a) -> const Text& { return a.plain.value(); });
}

DraftingReport DatasetMeasured::drafting() const {
  DraftingReport all;
  for (const DatasetAnswer& answer : answers) {
    if (answer.drafted.drafting) all.add(*answer.drafted.drafting);
  }
  return all;
}

double DatasetMeasured::mean_acceptance() const {
  std::vector<DraftingReport> texts;
  for (const DatasetAnswer& answer : answers) {
    if (answer.drafted.drafting) texts.push_back(*answer.drafted.drafting);
  }
  return mean_of_means(texts);
}

std::size_t DatasetMeasured::equal_texts() const {
  return static_cast<std::size_t>(std::ranges::count_if(answers, [](const DatasetAnswer& answer) {
    return answer.plain && answer.plain->text == answer.drafted.text;
  }));
}

std::size_t DatasetMeasured::judged() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      answers, [](const DatasetAnswer& answer) { return answer.right.has_value(); }));
}

std::optional<double> DatasetMeasured::accuracy() const {
  const std::size_t known = judged();
  if (known == 0) return std::nullopt;
  const auto right = std::ranges::count_if(
      answers, [](const DatasetAnswer& answer) { return answer.right.value_or(false); });
  return static_cast<double>(right) / static_cast<double>(known);
}

DatasetResult run_datasets(const Resolved& request, const DatasetSettings& settings, Log& log) {
  return DatasetBench(request, settings, log).run();
}

void check_datasets(const Resolved& request, const DatasetSettings& settings, Log& log) {
  DatasetBench(request, settings, log).make_jobs();
}

}  // namespace diptych
