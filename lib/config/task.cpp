#include "lib/config/task.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "lib/base/error.h"

namespace diptych {
namespace {

// Nothing is given where a configuration is only printed or checked.
void check_inputs(const RunConfig& run, const Task& task) {
  if (run.inputs.empty() || run.reads_images() == task.reads_pictures) return;
  const Setting setting = Setting::of("task", task.name);
  const Task* other = run.family->task_for(!task.reads_pictures, task.makes);
  if (!task.reads_pictures) {
    throw InputError(setting,
                     SettingText{"reads no pictures, found ", Setting::of("image"), "; expected ",
                                 std::string(other == nullptr ? "none" : other->name)});
  }
  SettingText text = {"needs a picture; expected ", Setting::of("image", "FILE")};
  if (task.makes == MediaKind::text && other != nullptr)
    text.insert(text.end(), {", or ", Setting::of("task", other->name)});
  throw InputError(setting, std::move(text));
}

const Task& choose_task(const RunConfig& run) {
  const Task* task = run.task == "auto" ? run.family->task_for(run.reads_images())
                                        : run.family->find_task(run.task);
  if (task != nullptr) return *task;
  if (run.task != "auto") throw std::logic_error("task: was not assigned");
  const bool pictures = run.reads_images();
  throw InputError(Setting::of(pictures ? "image" : "prompt"), "no task of {} {}", run.family->name,
                   pictures ? "reads pictures" : "goes without one");
}

// One result, whatever the number of pictures is; a flag keeps its origin, by which it is refused.
void make_one_answer(Resolved& resolved) {
  const std::size_t count = field_index("batch_count");
  const bool by_variable = resolved.origins[count] == environment_name("batch-count");
  resolved.options.run.sampling.batch_count = 1;
  if (by_variable || resolved.of_stage_config[count]) resolved.note(count, "default");
}

// The size in a stage config is that of pictures from text.
void take_size_of_input(Resolved& resolved) {
  const auto given = [&](std::string_view name) {
    return !resolved.is_default(name) && !resolved.of_stage_config[field_index(name)];
  };
  const bool own_width = given("width");
  if (own_width != given("height")) {
    throw InputError(Setting::absent(own_width ? "height" : "width"),
                     "not given; expected both, or none for the size of the last picture");
  }
  resolved.options.run.sampling.size_of_input = !own_width;
}

}  // namespace

void set_task(RunConfig& run, const Task& task) {
  run.task = task.name;
  run.makes = task.makes;
}

void settle_task(Resolved& resolved) {
  RunConfig& run = resolved.options.run;
  if (run.task == "auto" && run.inputs.empty()) return;  // nothing runs
  const Task& task = choose_task(run);
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
  for (const auto& [name, text] : task.defaults) {
    const std::size_t field = field_index(name, fields);
    if (resolved.origins[field] == "default")
      assign(fields[field], resolved.options, std::string(text), name);
  }
}

}  // namespace diptych
