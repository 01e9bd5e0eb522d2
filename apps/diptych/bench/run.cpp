#include "apps/diptych/bench/run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <sys/resource.h>

#include "apps/diptych/degrees.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/record/result_record.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSaveDir = "save_dir";

// What came of one run beside its times.
struct Outcome {
  BenchRun run;
  std::vector<Result> painted;
  std::vector<std::vector<std::uint8_t>> encoded;  // in the order of `painted`
  std::vector<std::string> texts;
  std::optional<DraftingReport> drafting;
  // What two runs of the same request have in common.
  std::vector<std::string> content() const {
    std::vector<std::string> all = texts;
    for (const Result& picture : painted) all.push_back(picture.latent_hash + picture.plan);
    return all;
  }
};

std::uint64_t peak_host_bytes() {
  struct rusage usage {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

class Bench {
 public:
  Bench(const BenchPlan& plan, Log& log)
      : plan_(plan), log_(log), progress_(log, base().options().progress) {}
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void check() const {
    check_formats();
    check_files();
    check_folder();
    for (std::size_t s = 0; s < settings(); ++s) {
      const RunConfig& config = setting(0, s).options().run;
      std::unique_ptr<Session> session;
      at_place(0, s, [&] { session = open_session(config, log_); });
      for (std::size_t c = 0; c < plan_.cases.size(); ++c)
        at_place(c, s, [&] {
          require_together(*session, c, s);
          make_job(*session, c, s)->read_inputs();
        });
      PromptEnhancers enhancers;
      const Options& options = setting(0, s).options();  // of any size the same prompt
      if (enhances(options))
        at_place(0, s, [&] { enhancer_of(options, enhancers, log_).check(options); });
    }
  }

  BenchResult run() {
    check_formats();
    prepare_files();
    load();
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) measure(c);
    if (plan_.meter != nullptr) measure_exchanges();
    // At the end: a profiler stays in the way of what runs after it.
    if (plan_.launches || plan_.kernel_times) profile();
    for (const auto& session : sessions_) note_peak(*session);
    result_.peak_host_bytes = peak_host_bytes();
    return std::move(result_);
  }

 private:
  const BenchSetting& base() const { return plan_.cases.front().settings.front(); }
  const BenchSetting& setting(std::size_t c, std::size_t s) const {
    return plan_.cases[c].settings[s];
  }
  std::size_t settings() const { return plan_.cases.front().settings.size(); }
  // The last session serves the last setting.
  Session& session(std::size_t s) const { return *sessions_[std::min(s, sessions_.size() - 1)]; }

  // "512x512.png"; "512x512-a.png" and "512x512-b.png" where two settings are compared.
  std::vector<fs::path> names_of(std::size_t c, std::size_t s) const {
    const RunConfig& run = setting(c, s).options().run;
    const Extensions extensions = result_extensions(run.makes, setting(c, s).options().format);
    const char* place = settings() == 1 ? "" : s == 0 ? "-a" : "-b";
    return output_names(plan_.cases[c].name + place + std::string(extensions.front()),
                        run.sampling.batch_count * plan_.cases[c].together, extensions,
                        Setting::of(kSaveDir));
  }

  void check_formats() const {
    for (std::size_t s = 0; s < settings(); ++s) {
      const Options& options = setting(0, s).options();
      if (options.run.answers() && options.format == ResultFormat::json)
        throw InputError(Setting::of("format", "json"),
                         "answers that are measured are kept without a record; expected auto");
      if (options.run.makes == MediaKind::clip && clip_format_of(options) == ClipFormat::png &&
          !plan_.save_dir.empty())
        throw InputError(Setting::of("format", "png"),
                         "the frames of a video are decoded and not kept; expected mp4, webm, gif "
                         "or webp for --save-dir");
    }
  }

  // What any of the settings reads.
  void check_files() const {
    if (plan_.save_dir.empty()) return;
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      for (std::size_t s = 0; s < settings(); ++s) {
        for (const fs::path& name : names_of(c, s)) {
          for (const BenchSetting& reader : plan_.cases[c].settings)
            check_not_an_input(reader.options(), plan_.save_dir / name, Setting::of(kSaveDir));
        }
      }
    }
  }

  // What prepare_files() will find, without a trace of it.
  void check_folder() const {
    if (plan_.save_dir.empty()) return;
    if (!fs::exists(plan_.save_dir)) return require_makable(plan_.save_dir, Setting::of(kSaveDir));
    probe_files();
  }

  void probe_files() const {
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      for (std::size_t s = 0; s < settings(); ++s) {
        for (const fs::path& name : names_of(c, s))
          require_writable(plan_.save_dir / name, Setting::of(kSaveDir));
      }
    }
  }

  void prepare_files() {
    if (plan_.save_dir.empty()) return;
    check_files();
    about(Setting::of(kSaveDir), [&] { save_dir_.emplace(plan_.save_dir); });
    probe_files();
  }

  using Jobs = std::vector<std::unique_ptr<Job>>;

  std::unique_ptr<Job> make_job(Session& session, std::size_t c, std::size_t s) const {
    const Options& options = setting(c, s).options();
    std::unique_ptr<Job> job = session.make_job(options.run);
    require_encodable(options, *job);
    return job;
  }

  // Of forwards that several requests share.
  void require_together(const Session& session, std::size_t c, std::size_t s) const {
    const std::int64_t together = plan_.cases[c].together;
    const RunConfig& run = setting(c, s).options().run;
    if (together > 1 && !session.may_share(run, run))
      throw InputError(Setting::of("batch_sizes"),
                       "found {}, but requests like this are run one at a time; expected 1",
                       together);
  }

  // One request for each text of a case, as one prompt in a list with --batch-size.
  Jobs make_jobs(Session& session, std::size_t c, RunConfig config) const {
    Jobs jobs;
    for (std::int64_t i = 0; i < plan_.cases[c].together; ++i) {
      jobs.push_back(session.make_job(config));
      ++config.sampling.seed;
    }
    return jobs;
  }

  static JobGroup group_of(const Jobs& jobs) {
    JobGroup group;
    for (const auto& job : jobs) group.push_back(job.get());
    return group;
  }

  RunConfig warmup_config(std::size_t c, std::size_t s) const {
    RunConfig config = setting(c, s).options().run;
    if (plan_.warmup_steps > 0) config.sampling.steps = plan_.warmup_steps;
    return config;
  }

  void load() {
    if (settings() == 1 || same_model(base().options(), setting(0, 1).options())) {
      load(0, settings());
    } else {
      for (std::size_t s = 0; s < settings(); ++s) load(s, s + 1);
    }
  }

  // A model that serves the settings from `first` up to `end`.
  void load(std::size_t first, std::size_t end) {
    const RunConfig& config = setting(0, first).options().run;
    BenchModel& model = result_.models.emplace_back();
    model.setting = first;
    const double start = steady_seconds();
    at_place(0, first, [&] { sessions_.push_back(open_session(config, log_)); });
    Session& session = *sessions_.back();
    if (plan_.floor || plan_.kernel_times) require_meter(session, config);
    std::vector<Jobs> groups;
    std::vector<JobGroup> expected;
    const auto expect = [&](std::size_t c, const RunConfig& run) {
      groups.push_back(make_jobs(session, c, run));
      expected.push_back(group_of(groups.back()));
    };
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      for (std::size_t s = first; s < end; ++s) {
        at_place(c, s, [&] {
          require_together(session, c, s);
          expect(c, setting(c, s).options().run);
          for (const auto& job : groups.back()) {
            require_encodable(setting(c, s).options(), *job);
            job->read_inputs();
          }
          expect(c, warmup_config(c, s));
          for (const RunConfig& timed : timed_requests(setting(c, s).request, plan_.ways))
            expect(c, timed);
        });
      }
    }
    session.load(expected, progress_);
    synchronize(device(first));
    const double loaded = steady_seconds();
    model.load_seconds = loaded - start;
    model.weights_hash = session.weights_hash();
    model.hash_seconds = steady_seconds() - loaded;
  }

  // A model does not know where a setting has its value from.
  template <typename Work>
  void at_place(std::size_t c, std::size_t s, const Work& work) const {
    with_places(setting(c, s).request, work);
  }

  at::Device device(std::size_t s) const {
    Log quiet(LogLevel::quiet);
    return resolve_device(setting(0, s).options().run.device, quiet);
  }

  // Before the peak is reset, and at the end.
  void note_peak(const Session& session) {
    result_.peak_bytes = std::max(result_.peak_bytes, session.report().peak_bytes);
  }

  Outcome run_once(std::size_t c, std::size_t s, const RunConfig& config) {
    check_interrupted();
    Session& session = this->session(s);
    Options options = setting(c, s).options();
    options.run = config;
    Outcome outcome;
    Results results;
    results.result = [&](const Result& result, const Report& report) {
      if (const auto* text = std::get_if<Text>(&result.media)) {
        outcome.texts.push_back(text->text);
        if (!text->drafting) return;
        if (!outcome.drafting) outcome.drafting.emplace();
        outcome.drafting->add(*text->drafting);
        return;
      }
      if (writes_results(config)) {
        const Painted painted{&options, &result};
        const MadeResult made{std::span(&painted, 1), 0, &report};
        const ResultEncoding encoding = encoding_of(options, result.media);
        if (is_folder(encoding)) {
          result.clip().decode([](const Tensor& /*frames*/) {});
        } else {
          outcome.encoded.push_back(encode_result(made, encoding, progress_).bytes);
        }
      } else {
        help_decode(result.media);
      }
      outcome.painted.push_back(result);
      if (auto* clip = std::get_if<Clip>(&outcome.painted.back().media)) {
        clip->decode = nullptr;
        clip->help_decode = nullptr;
      }
    };
    note_peak(session);
    reset_peak_memory(device(s));
    const Report before = session.report();
    const double start = steady_seconds();
    at_place(c, s, [&] {
      const Jobs jobs = make_jobs(session, c, config);
      session.run(group_of(jobs), progress_, results);
    });
    outcome.run.seconds = steady_seconds() - start;
    const Report after = session.report();
    outcome.run.stages = stages_between(before, after);
    outcome.run.tokens = after.tokens - before.tokens;
    outcome.run.token_seconds = after.token_seconds - before.token_seconds;
    if (sessions_.size() > 1) drop_kept_steps(session);  // no plan counts the other's memory
    return outcome;
  }

  void measure(std::size_t c) {
    std::vector<BenchMeasured>& measured = result_.cases.emplace_back(settings());
    choose_degrees(c);
    const std::int64_t rounds = plan_.warmup + plan_.repeats;
    for (std::int64_t round = 0; round < rounds; ++round) {
      progress_.set_items(static_cast<std::int64_t>(c) * rounds + round,
                          std::ssize(plan_.cases) * rounds);
      for (std::size_t s = 0; s < settings(); ++s) {
        const bool warms = round < plan_.warmup;
        const Outcome outcome =
            run_once(c, s, warms ? warmup_config(c, s) : setting(c, s).options().run);
        if (warms) {
          measured[s].warmups.push_back(outcome.run);
        } else {
          take(outcome, c, s, measured[s]);
          if (plan_.floor) measure_floor(c, s, measured[s]);
        }
      }
    }
    for (std::size_t s = 0; s < settings(); ++s) {
      if (!measured[s].repeatable)
        log_.warning("{}, {}: two runs of one request differ", plan_.cases[c].name,
                     setting(c, s).label);
    }
  }

  void take(const Outcome& outcome, std::size_t c, std::size_t s, BenchMeasured& measured) {
    measured.ran = session(s).report();
    if (const auto& ranks = setting(c, s).options().run.ranks)
      measured.degrees = degrees_of(ranks->comm());
    if (sessions_.size() == 1) {
      measured.peak_tensor_bytes =
          std::max(measured.peak_tensor_bytes, peak_tensor_bytes(device(s)));
    }
    measured.runs.push_back(outcome.run);
    if (measured.runs.size() > 1) {
      measured.repeatable &= outcome.content() == first_[{c, s}];
      return;
    }
    first_[{c, s}] = outcome.content();
    measured.painted = outcome.painted;
    measured.texts = outcome.texts;
    measured.drafting = outcome.drafting;
    if (!plan_.save_dir.empty()) measured.files = save(outcome, names_of(c, s));
  }

  std::vector<BenchFile> save(const Outcome& outcome, const std::vector<fs::path>& names) const {
    std::vector<BenchFile> files;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string text = outcome.encoded.empty() ? outcome.texts.at(i) + "\n" : "";
      const std::span<const std::byte> bytes =
          outcome.encoded.empty() ? std::as_bytes(std::span(text))
                                  : std::as_bytes(std::span(outcome.encoded.at(i)));
      try {
        AtomicFile file(plan_.save_dir / names[i]);
        file.write(bytes.data(), bytes.size());
        file.commit();
      } catch (const InputError& error) {  // it could be written when the run began
        throw WriteError("{}: {}", Setting::of(kSaveDir).label, error.what());
      }
      files.push_back({names[i].string(), sha256_hex(bytes)});
    }
    return files;
  }

  static void require_meter(Session& session, const RunConfig& config) {
    if (session.capabilities().meter == nullptr)
      throw InputError("bench: pipeline {} does not measure its steps", config.pipeline);
  }

  static void drop_kept_steps(Session& session) {
    if (StepKeeper* keeper = session.capabilities().keeper) keeper->drop_kept_steps();
  }

  std::vector<StepKindWork> measure_steps(std::size_t c, std::size_t s, bool measures) {
    std::vector<StepKindWork> kinds;
    at_place(c, s, [&] {
      Session& own = session(s);
      const std::unique_ptr<Job> job = own.make_job(setting(c, s).options().run);
      kinds = own.capabilities().meter->measure_steps(*job, measures, progress_);
    });
    return kinds;
  }

  // Of the run before, while the device is as warm.
  void measure_floor(std::size_t c, std::size_t s, BenchMeasured& measured) {
    const double denoise =
        measured.runs.back().stage("denoise") / static_cast<double>(measured.painted.size());
    measured.floors.push_back({denoise, measure_steps(c, s, true)});
  }

  // One more run of each, so that meters take no time in those that count. A replay of captured
  // steps shows the host no exchange: here they are launched one by one.
  void measure_exchanges() {
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      use_degrees_of(c);
      for (std::size_t s = 0; s < settings(); ++s) {
        BenchMeasured& measured = result_.cases[c][s];
        if (measured.painted.empty()) continue;
        RunConfig config = setting(c, s).options().run;
        if (measured.ran.step_graphs) {
          config.enforce_eager = true;
          drop_kept_steps(session(s));  // two sets of buffers may not fit
        }
        plan_.meter->start();
        const Outcome outcome = run_once(c, s, config);
        measured.exchanges = {plan_.meter->stop(), outcome.run.stage("denoise")};
      }
    }
  }

  DevicePeaks peaks_of(std::size_t s) {
    const RunConfig& run = setting(0, s).options().run;
    const at::ScalarType dtype = resolve_dtype(run.dtype, device(s));
    return measure_peaks({device(s), dtype, run.quantization});
  }

  void profile() {
    std::vector<DevicePeaks> peaks(settings());
    for (std::size_t s = 0; plan_.kernel_times && s < settings(); ++s) peaks[s] = peaks_of(s);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      use_degrees_of(c);
      for (std::size_t s = 0; s < settings(); ++s) {
        BenchMeasured& measured = result_.cases[c][s];
        if (plan_.launches) {
          // The run before captures the steps, which this one replays where they are kept, as the
          // next request of a batch.
          run_once(c, s, setting(c, s).options().run);
          measured.launches = record(c, s);
          measured.launches_replay = session(s).report().kept_step_graphs;
          if (!measured.launches) return warn_of_profiler("--launches");
          measured.launches->scopes.clear();  // long
        }
        if (!plan_.kernel_times) continue;
        drop_kept_steps(session(s));  // the profiler sees every step the same way, capture and all
        const std::optional<Launches> launches = record(c, s);
        if (!launches) return warn_of_profiler("--kernel-times");
        measured.kernels =
            make_kernel_table(*launches, measured.steps(), measure_steps(c, s, false), peaks[s]);
      }
    }
  }

  void warn_of_profiler(const char* flag) {
    log_.warning("{}: the profiler of libtorch saw no kernel", flag);
  }

  std::optional<Launches> record(std::size_t c, std::size_t s) {
    return record_launches(kDenoiseScope, [&] { run_once(c, s, setting(c, s).options().run); });
  }

  void choose_degrees(std::size_t c) {
    if (plan_.ways.empty()) return;
    Resolved& request = plan_.cases[c].settings.front().request;  // there is no other
    at_place(c, 0, [&] {
      diptych::choose_degrees(session(0), request, plan_.ways, plan_.cases[c].name, progress_,
                              log_);
    });
    degrees_[c] = degrees_of(request.options.run.ranks->comm());
    reset_peak_memory(device(0));  // of the timed steps
  }

  // What is measured behind the last case is of all of them.
  void use_degrees_of(std::size_t c) {
    if (const auto chosen = degrees_.find(c); chosen != degrees_.end())
      base().options().run.ranks->regroup(chosen->second);
  }

  BenchPlan plan_;  // whose requests get the mode that goes with the chosen degrees
  std::optional<MadeFolder> save_dir_;              // goes again if nothing is kept in it
  std::map<std::size_t, ParallelDegrees> degrees_;  // that were chosen, by the case
  Log& log_;
  Progress progress_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::string>> first_;
  BenchResult result_;
};

}  // namespace

double BenchRun::stage(std::string_view name) const {
  for (const auto& [stage, own] : stages) {
    if (stage == name) return own;
  }
  return 0;
}

std::int64_t BenchExchanges::sent_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [axis, cost] : axes) bytes += cost.sent_bytes;
  return bytes;
}

double BenchExchanges::share_of_denoising() const {
  double seconds = 0;
  for (const auto& [axis, cost] : axes) {
    if (axis != RankAxis::request) seconds += cost.seconds;  // that of decoding
  }
  return seconds / denoise_seconds;
}

std::int64_t BenchMeasured::steps() const {
  return ran.updates * std::ssize(painted);
}

void check_bench(const BenchPlan& plan, Log& log) {
  Bench(plan, log).check();
}

BenchResult run_bench(const BenchPlan& plan, Log& log) {
  return Bench(plan, log).run();
}

}  // namespace diptych
