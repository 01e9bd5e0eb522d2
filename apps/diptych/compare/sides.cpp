#include "apps/diptych/compare/sides.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/batch/run.h"
#include "apps/diptych/compare/folders.h"
#include "apps/diptych/compare/settings.h"
#include "apps/diptych/compare/table.h"
#include "apps/diptych/demo.h"
#include "apps/diptych/failure.h"
#include "apps/diptych/prompt_files.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/json_file.h"
#include "lib/base/stdin.h"
#include "lib/batch/list.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/request/request_checks.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kMostWarmups = 1'000;
constexpr const char* kSettingsName = "settings.json";

struct Side {
  std::string name;  // of its folder: "a", "b", "a-again"
  std::string text;  // of its settings
  Resolved defaults;
  std::vector<PlannedItem> items;
  BatchSettings settings;
  std::unique_ptr<BatchFolder> folder;
  // With the path of its folder below `above`.
  std::string title(const fs::path& above = {}) const {
    const std::string path = (above / name).string();
    return text.empty() ? path : fmt::format("{}: {}", path, text);
  }
};

// An error about a flag of this side names the side, too.
Resolved resolve_side(const SideSettings& side, const RequestFlags& both) {
  Resolved resolved;
  try {
    resolved = resolve_sources(sources_of(side.over(both), is_of_both_sides));
  } catch (const InputError& error) {
    const std::string text = error.what();
    const auto begins = [&](const std::string& label) { return text.starts_with(label); };
    if (std::ranges::any_of(side.labels(), begins)) throw InputError("{}: {}", side.flag, text);
    throw;
  }
  for (std::string& origin : resolved.origins) {
    const auto labels = side.labels();
    if (std::ranges::find(labels, origin) != labels.end())
      origin = fmt::format("{}: {}", side.flag, origin);
  }
  name_prompt_files(resolved, both);
  with_places(resolved, [&] { find_family(resolved.options.run.pipeline); });
  return resolved;
}

class SideComparison {
 public:
  SideComparison(const SideFlags& flags, const CompareOptions& options, Log& log)
      : flags_(flags), options_(options), out_(options.output), log_(log) {}

  int run() {
    resolve();
    if (flags_.print_config) return print_config();
    plan();
    check_other_model();
    make_folders();
    try {
      paint();
    } catch (...) {
      forget_settings();
      throw;
    }
    return report();
  }

 private:
  Side& a() { return sides_.front(); }
  Side& b() { return sides_.back(); }

  void resolve() {
    warn_of_idle_variables(log_, is_of_both_sides);
    const std::string text_of_a = flags_.a.value_or("");
    const SideSettings of_a = read_settings("--a", text_of_a),
                       of_b = read_settings("--b", *flags_.b);
    refuse_idle_flags(flags_, of_a, of_b);
    const auto add = [&](const char* name, const SideSettings& settings, const std::string& text) {
      Side side;
      side.name = name;
      side.text = text;
      side.defaults = resolve_side(settings, flags_);
      sides_.push_back(std::move(side));
    };
    add("a", of_a, text_of_a);
    if (flags_.repeat_a) add("a-again", of_a, text_of_a);
    add("b", of_b, *flags_.b);
    if (!differ(a().defaults.options, b().defaults.options)) {
      throw InputError(
          "--b: asks for what --a does; expected another setting (--repeat-a runs a "
          "twice)");
    }
  }

  static bool differ(const Options& a, const Options& b) {
    if (a.run.family != b.run.family) return true;
    return std::ranges::any_of(fields_of(a), [&](const Field& field) {
      return value_text(field, a) != value_text(field, b);
    });
  }

  int print_config() {
    for (const Side* side : {&a(), &b()})
      fmt::print("# {}\n{}", side->name, config_table(side->defaults));
    return kDone;
  }

  void plan() {
    for (Side& side : sides_) {
      with_places(side.defaults, [&] {
        read_inputs(side);
        require_model(side.defaults.options.run);
        const BatchList& list = list_of(side);
        refuse_prompt_beside(list, side);
        side.items = plan_batch(list, side.defaults, out_ / side.name);
        for (const PlannedItem& item : side.items) check_item(item);
        side.settings.defaults = side.defaults;
        side.settings.resume = flags_.resume;
        side.settings.progress = side.defaults.options.progress;
        side.settings.prints_paths = false;
        check_list_is_kept(flags_.prompts, out_ / side.name, {}, side.items);
      });
      take_seeds(side);
    }
    const std::int64_t warmup = whole_number(flags_.warmup, Setting::of("warmup"), 0, kMostWarmups);
    a().settings.warmup = b().settings.warmup = warmup;
    for (std::size_t i = 0; i < a().items.size(); ++i) check_same_files(a().items[i], b().items[i]);
  }

  // What is wrong with b's model is said before a is run.
  void check_other_model() {
    if (same_model(a().defaults.options, b().defaults.options)) return;
    const auto able = std::ranges::find(b().items, std::string(), &PlannedItem::error);
    if (able == b().items.end()) return;
    with_places(b().defaults,
                [&] { open_session(b().defaults, *able, log_)->make_job(able->options.run); });
  }

  // The same for all sides; stdin is read once.
  void read_inputs(Side& side) {
    std::vector<InputItem>& inputs = side.defaults.options.run.inputs;
    if (&side != &a()) {
      inputs = a().defaults.options.run.inputs;
    } else {
      read_stdin_and_files(inputs, flags_.prompts == kStdin);
    }
  }

  // The keys of items are those of the side's family.
  const BatchList& list_of(const Side& side) {
    const FamilyConfig* family = side.defaults.options.run.family;
    if (list_ && family == list_family_) return *list_;
    if (list_ && flags_.prompts == kStdin)
      throw InputError("--prompts -: stdin is read once, but the sides are of two families");
    list_ = read_batch_list(flags_.prompts, fields_of(side.defaults.options));
    list_family_ = family;
    if (list_->items.empty()) throw InputError("{}: holds no prompt", flags_.prompts.string());
    return *list_;
  }

  void refuse_prompt_beside(const BatchList& list, const Side& side) const {
    if (list.prompts_only &&
        std::ranges::any_of(side.defaults.options.run.inputs, &InputItem::is_text)) {
      throw InputError(Setting::of("prompt"), "every line of {} is one; expected none",
                       flags_.prompts.string());
    }
  }

  void check_item(const PlannedItem& item) const {
    const auto given = [&](const std::string& origin) {
      return origin.starts_with("--a: ") || origin.starts_with("--b: ");
    };
    for (const Side& side : sides_) {
      const auto fields = fields_of(side.defaults.options);
      for (std::size_t i = 0; i < fields.size(); ++i) {
        const auto own = item.own.find(fields[i].name);
        if (own != item.own.end() && given(side.defaults.origins[i])) {
          throw InputError("{}: given together with {}; expected one of them", own->second,
                           side.defaults.origins[i]);
        }
      }
    }
    if (!item.error.empty()) return;
    if (item.options.run.answers()) {
      throw InputError("{}: task {}: makes a text; expected a picture or a video to compare",
                       item.where, item.options.run.task);
    }
    if (!item.options.contact_sheet.empty()) {
      throw InputError(
          "{}: contact_sheet: is not compared; expected none (each pair is written "
          "side by side)",
          item.where);
    }
  }

  // Both sides draw the same numbers, also where nobody said which.
  void take_seeds(Side& side) {
    for (std::size_t i = 0; i < side.items.size(); ++i) {
      SamplingConfig& own = side.items[i].options.run.sampling;
      const SamplingConfig& first = a().items[i].options.run.sampling;
      if (own.seed_drawn && first.seed_drawn) own.seed = first.seed;
      if (own.seed_drawn && flags_.resume)
        throw InputError(Setting::of("seed", "random"), "cannot be drawn again by --resume");
    }
  }

  static void check_same_files(const PlannedItem& a, const PlannedItem& b) {
    if (!a.error.empty() || !b.error.empty() || a.results == b.results) return;
    throw InputError("{}: --a writes {}, but --b {}; expected files of one name", a.where,
                     a.results.front().string(), b.results.front().string());
  }

  void make_folders() {
    about(Setting::of("output_dir"), [&] { made_.emplace(out_); });
    for (Side& side : sides_)
      side.folder = std::make_unique<BatchFolder>(out_ / side.name, Shard(), flags_.resume);
    const std::string settings = settings_json().dump(2);
    const fs::path file = out_ / kSettingsName;
    if (flags_.resume && fs::exists(file) && read_json_object(file) != settings_json()) {
      throw InputError("{}: is of a run with other settings; --resume expects the same",
                       file.string());
    }
    write_text_file(file, settings);
  }

  // Every value of both sides but how progress is shown.
  Json settings_json() {
    Json json = Json::object();
    for (Side* side : {&a(), &b()}) {
      Json& values = json[side->name]["values"] = Json::object();
      const Options& options = side->defaults.options;
      for (const Field& field : fields_of(options)) {
        if (field.scope == Scope::display || field.scope == Scope::output ||
            field.scope == Scope::parallel)
          continue;
        values[std::string(field.name)] = value_text(field, options);
      }
      json[side->name]["settings"] = side->text;
    }
    return json;
  }

  // Where nothing was made, nothing stays.
  void forget_settings() const {
    const auto has_records = [](const Side& side) {
      return !side.folder->manifest().records().empty();
    };
    if (std::ranges::any_of(sides_, has_records)) return;
    std::error_code ignored;
    fs::remove(out_ / kSettingsName, ignored);
  }

  // Items that fail are in the manifests, and so in the report.
  void paint() {
    if (a().defaults.uses_demo) note_demo(a().defaults.options.run, log_);
    std::vector<BatchPass> passes;
    for (const Side& side : sides_)
      passes.push_back({side.title(), &side.items, &side.settings, side.folder.get()});
    const std::span<const BatchPass> all = passes;
    if (same_model(a().defaults.options, b().defaults.options)) {
      run_batches(all, log_);
      return;
    }
    run_batches(all.first(all.size() - 1), log_);
    run_batches(all.last(1), log_);  // b, whose model is loaded when the other is gone
  }

  int report() {
    CompareOptions options = options_;
    options.actual = out_ / "a";
    options.expected = out_ / "b";
    options.output = out_ / "side-by-side";
    options.titles = {a().title(out_), b().title(out_)};
    CompareReport found = compare_folders(options);
    if (flags_.repeat_a) add_repeat(found);
    if (options.json) {
      for (const Side* side : {&a(), &b()}) {
        found.json[side->name] = {{"folder", (out_ / side->name).string()},
                                  {"settings", side->text}};
      }
      found.json["pass"] = found.pass;
      fmt::print("{}\n", found.json.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      found.lines.push_back(fmt::format("side by side: {}", options.output.string()));
      print_lines(out_.string(), found);
    }
    if (!found.incomplete.empty()) return kSomeFailed;
    return found.pass ? kDone : kCheckFailed;
  }

  // How far two runs of a differ: what of the difference to b may be chance.
  void add_repeat(CompareReport& found) const {
    CompareOptions options;
    options.actual = out_ / "a";
    options.expected = out_ / "a-again";
    options.json = true;
    CompareReport again = compare_folders(options);
    const Json& total = again.json["total"];
    std::string text = "a again: ";
    if (!again.incomplete.empty()) {
      text += again.incomplete;
    } else if (total["compared"] == total["equal"]) {
      text += "all equal";
    } else {
      const auto value = [&](const char* name, const char* key) {
        return total.contains(name) ? total[name][key].dump() : "none";
      };
      text += fmt::format("{} of {} not equal, ssim mean {}, worst {}, max abs {}",
                          total["compared"].get<std::size_t>() - total["equal"].get<std::size_t>(),
                          total["compared"].get<std::size_t>(), value("ssim", "mean"),
                          value("ssim", "worst"), value("max_abs", "worst"));
    }
    found.lines.push_back(text);
    if (found.incomplete.empty()) found.incomplete = again.incomplete;
    found.json["repeat_a"] = std::move(again.json);
  }

  const SideFlags& flags_;
  const CompareOptions& options_;
  const fs::path& out_;
  Log& log_;
  std::optional<MadeFolder> made_;
  std::vector<Side> sides_;  // a, where it is repeated a again, b
  std::optional<BatchList> list_;
  const FamilyConfig* list_family_ = nullptr;
};

}  // namespace

int compare_sides(const SideFlags& flags, const CompareOptions& options, Log& log) {
  if (!flags.b)
    throw InputError("--b: not given; expected settings, such as \"--cfg-mode batched\"");
  if (flags.prompts.empty())
    throw InputError("--prompts: not given; expected a .txt, .jsonl or .yaml, as of `batch`");
  if (options.output.empty())
    throw InputError("-o/--output-dir: not given; expected a folder for what both sides make");
  std::optional<Setting> of_files = options.trace_gate();
  if (!options.difference.empty()) of_files = Setting::of("diff");
  if (of_files) throw InputError(*of_files, "is not for --a and --b");
  require_possible(options.gates);
  return SideComparison(flags, options, log).run();
}

}  // namespace diptych
