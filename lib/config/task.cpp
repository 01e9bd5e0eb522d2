#include "lib/config/task.h"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/config/family_fields.h"
#include "lib/config/result_formats.h"

namespace diptych {
namespace {

struct KindOfInput {
  MediaKind kind;
  std::int64_t InputCounts::*count;
  ReadCount TaskReads::*reads;
  std::string_view one;  // "picture"
};
constexpr std::array kFiles = {
    KindOfInput{MediaKind::picture, &InputCounts::pictures, &TaskReads::pictures, "picture"},
    KindOfInput{MediaKind::clip, &InputCounts::clips, &TaskReads::clips, "video"}};

std::string count_text(std::int64_t count, std::string_view one) {
  return counted(static_cast<std::size_t>(count), one);
}

// What the task reads and there is too little of, else a task that reads what there is.
void refuse_kind(const RunConfig& run, const Task& task, const KindOfInput& of) {
  SettingText text = {fmt::format("reads no {}, found ", kind_name(of.kind)),
                      Setting::of(input_name(of.kind)), "; expected "};
  const Task* other = run.family->task_for(run.input_counts(), task.makes);
  const auto* const missing = std::ranges::find_if(kFiles, [&](const KindOfInput& each) {
    return run.input_counts().*each.count < (task.reads.*each.reads).least;
  });
  if (missing != kFiles.end()) {
    text.emplace_back(Setting::of(input_name(missing->kind), "FILE"));
    if (other != nullptr) text.insert(text.end(), {", or ", Setting::of("task", other->name)});
  } else {
    text.emplace_back(std::string(other == nullptr ? "none" : other->name));
  }
  throw InputError(Setting::of("task", task.name), std::move(text));
}

void refuse_too_few(const RunConfig& run, const Task& task, const KindOfInput& of) {
  const std::int64_t least = (task.reads.*of.reads).least;
  const std::int64_t found = run.input_counts().*of.count;
  const Setting file = Setting::of(input_name(of.kind), "FILE");
  SettingText text = {
      least == 1 ? fmt::format("needs a {}; expected ", of.one)
                 : fmt::format("needs {}, found {}; expected ", count_text(least, of.one), found),
      file};
  const Task* other = run.family->task_for(run.input_counts(), task.makes);
  if (task.makes == MediaKind::text && other != nullptr)
    text.insert(text.end(), {", or ", Setting::of("task", other->name)});
  throw InputError(Setting::of("task", task.name), std::move(text));
}

void refuse_too_many(const RunConfig& run, const Task& task, const KindOfInput& of) {
  const auto& [least, most] = task.reads.*of.reads;
  throw InputError(
      Setting::of("task", task.name),
      SettingText{fmt::format("reads {}{}, found {}; expected ", least == most ? "" : "at most ",
                              count_text(most, of.one), run.input_counts().*of.count),
                  Setting::of(input_name(of.kind)),
                  most == 1 ? " once" : fmt::format(" {} times", most)});
}

// Nothing is given where a configuration is only printed.
void check_inputs(const RunConfig& run, const Task& task) {
  if (run.inputs.empty()) return;
  for (const KindOfInput& of : kFiles) {
    const std::int64_t found = run.input_counts().*of.count;
    const auto& [least, most] = task.reads.*of.reads;
    if (found > 0 && most == 0) refuse_kind(run, task, of);
    if (found < least) refuse_too_few(run, task, of);
    if (found > most) refuse_too_many(run, task, of);
  }
}

[[noreturn]] void refuse_inputs(const RunConfig& run) {
  const FamilyConfig& family = *run.family;
  const InputCounts counts = run.input_counts();
  std::string found;
  MediaKind last = MediaKind::text;
  for (const KindOfInput& of : kFiles) {
    if (counts.*of.count == 0) continue;
    last = of.kind;
    if (!family.reads(of.kind))
      throw InputError(Setting::of(input_name(of.kind)), "no task of {} reads {}", family.name,
                       kind_name(of.kind));
    found += (found.empty() ? "" : " and ") + count_text(counts.*of.count, of.one);
  }
  throw InputError(Setting::of(input_name(last)), "no task of {} {}", family.name,
                   found.empty() ? "goes without a picture or a video" : "reads " + found);
}

// The kinds of results that their name says, else those of the format; empty: any.
std::vector<MediaKind> wished_kinds(const Resolved& resolved) {
  const Options& options = resolved.options;
  if (!resolved.is_default("output")) {
    auto kinds = kinds_of_name(options.output);
    if (!kinds.empty()) return kinds;
  }
  return options.format ? kinds_of(*options.format) : std::vector<MediaKind>{};
}

// No task makes what the name of the output says from what is given: what is too much, or what
// else to give. `makers`: the tasks that make it, at least one.
void refuse_other_inputs(const RunConfig& run, const std::vector<const Task*>& makers) {
  const std::string_view results = kind_name(makers.front()->makes);
  for (const KindOfInput& of : kFiles) {
    std::int64_t most = 0;
    for (const Task* task : makers) most = std::max(most, (task->reads.*of.reads).most);
    if (const std::int64_t found = run.input_counts().*of.count; found > most)
      throw InputError(Setting::of(input_name(of.kind)), "no task of {} that makes {} reads {}",
                       run.family->name, results,
                       most == 0 ? std::string(kind_name(of.kind)) : count_text(found, of.one));
  }
  std::vector<Setting> missing;
  for (const Task* task : makers) {
    for (const KindOfInput& of : kFiles) {
      const std::string_view name = input_name(of.kind);
      const bool is_new = std::ranges::find(missing, name, &Setting::name) == missing.end();
      if (is_new && run.input_counts().*of.count < (task->reads.*of.reads).least)
        missing.push_back(Setting::of(name, "FILE"));
    }
  }
  if (missing.empty()) return;
  SettingText text = {fmt::format("not given; {} makes {} from ", run.family->name, results)};
  for (const Setting& each : missing)
    text.insert(text.end(), {each.name == missing.front().name ? "" : " or ", each});
  throw InputError(Setting::absent(missing.front().name), std::move(text));
}

// The tasks that make one of these kinds.
std::vector<const Task*> makers_of(const FamilyConfig& family, std::span<const MediaKind> kinds) {
  std::vector<const Task*> makers;
  for (const Task& task : family.tasks) {
    if (std::ranges::find(kinds, task.makes) != kinds.end()) makers.push_back(&task);
  }
  return makers;
}

const Task& choose_task(const Resolved& resolved) {
  const RunConfig& run = resolved.options.run;
  if (run.task != kAnyTask) {
    const Task* task = run.family->find_task(run.task);
    if (task == nullptr) throw std::logic_error("task: was not assigned");
    return *task;
  }
  const InputCounts inputs = run.input_counts();
  const std::vector<MediaKind> wished = wished_kinds(resolved);
  const Task* task = run.family->task_for(inputs, wished);
  if (task == nullptr) {
    const auto makers = makers_of(*run.family, wished);
    if (!makers.empty()) refuse_other_inputs(run, makers);
    task = run.family->task_for(inputs);
  }
  if (task == nullptr) refuse_inputs(run);
  return *task;
}

// What is asked stands in a file: no text is added to it.
bool asks_by_file(const Resolved& resolved) {
  const std::string_view name = resolved.options.run.family->prompt_file;
  if (name.empty()) return false;
  const auto fields = fields_of(resolved.options);
  return !value_text(fields[field_index(name, fields)], resolved.options).empty();
}

// One result, whatever the number of pictures is; a flag keeps its origin, by which it is refused.
void make_one_answer(Resolved& resolved) {
  const std::size_t count = field_index("batch_count");
  const bool by_variable = resolved.origins[count] == environment_name("batch-count");
  resolved.options.run.sampling.batch_count = 1;
  if (by_variable || resolved.of_stage_config[count])
    resolved.note(count, std::string(kOfDefaults));
}

// The size in a stage config is that of results from text.
void take_size_of_input(Resolved& resolved) {
  const auto given = [&](std::string_view name) {
    return !resolved.is_default(name) && !resolved.of_stage_config[field_index(name)];
  };
  const bool own_width = given("width");
  if (own_width != given("height")) {
    throw InputError(Setting::absent(own_width ? "height" : "width"),
                     "not given; expected both, or none for the size of {}",
                     sized_by(resolved.options.run));
  }
  resolved.options.run.sampling.size_of_input = !own_width;
}

}  // namespace

void set_task(RunConfig& run, const Task& task) {
  run.task = task.name;
  run.makes = task.makes;
  run.sampling.frames_of_input = task.frames_of_input;
}

std::string_view sized_by(const RunConfig& run) {
  const Task* task = run.family->find_task(run.task);
  return task != nullptr && task->reads.clips.most > 0 ? "the video" : "the last picture";
}

bool stand_in_for_prompt(Resolved& resolved) {
  RunConfig& run = resolved.options.run;
  if (run.reads_texts() || asks_by_file(resolved)) return false;
  run.inputs.push_back({"prompt", {}});
  return true;
}

namespace {

// The name of an output counts for more than a format that a variable says.
void prefer_name(Resolved& resolved) {
  const std::size_t format = field_index("format", fields_of(resolved.options));
  if (resolved.is_default("output") || kinds_of_name(resolved.options.output).empty() ||
      resolved.origins[format] != environment_name("format")) {
    return;
  }
  resolved.options.format.reset();
  resolved.note(format, std::string(kOfDefaults));
}

}  // namespace

void settle_task(Resolved& resolved) {
  prefer_name(resolved);
  RunConfig& run = resolved.options.run;
  if (run.inputs.empty() && asks_by_file(resolved)) run.inputs.push_back({"", {}});
  if (run.task == kAnyTask && run.inputs.empty()) {  // nothing runs
    if (run.family->tasks.size() == 1) set_task(run, run.family->tasks.front());
    return;
  }
  const Task& task = choose_task(resolved);
  set_task(run, task);
  check_inputs(run, task);
  if (run.answers()) make_one_answer(resolved);
  if (task.size_of_input) take_size_of_input(resolved);
  const auto fields = fields_of(resolved.options);
  for (const Resolved::TaskValue& value : resolved.task_values) {
    if (value.task != task.name || resolved.origins[value.field] != value.over) continue;
    assign(fields[value.field], resolved.options, value.text, value.where);
    resolved.note(value.field, value.origin, value.from_stage_config);
  }
  const auto apply = [&](std::string_view name, const std::string& text) {
    const std::size_t field = field_index(name, fields);
    if (resolved.origins[field] != kOfDefaults) return;
    // Of a side, too, which does not settle that the size is not the input's.
    const bool size_of_input = run.sampling.size_of_input;
    assign(fields[field], resolved.options, text, name);
    run.sampling.size_of_input = size_of_input;
  };
  for (const auto& [name, text] : task.defaults) apply(name, std::string(text));
  if (run.family->of_checkpoint == nullptr) return;
  for (const auto& [name, text] : run.family->of_checkpoint(run)) apply(name, text);
}

}  // namespace diptych
