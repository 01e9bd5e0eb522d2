#include "lib/config/task.h"

#include <algorithm>

#include "lib/base/error.h"

namespace diptych {
namespace {

// A default that holds for one task only.
struct TaskDefault {
  std::string_view field, text;
};
constexpr TaskDefault kEditDefaults[] = {
    {"cfg_img_scale", "2"}, {"cfg_interval", "0,1"}, {"cfg_renorm_type", "text_channel"}};

// Nothing is given where a configuration is only printed or checked.
void check_inputs(const RunConfig& run) {
  if (run.inputs.empty()) return;
  const bool pictures = run.reads_images();
  if (pictures && (run.task == "t2i" || run.task == "chat")) {
    throw InputError(Setting::of("task", run.task),
                     SettingText{"reads no pictures, found ", Setting::of("image"), "; expected ",
                                 run.task == "t2i" ? "edit" : "understand"});
  }
  if (!pictures && (run.task == "edit" || run.task == "understand")) {
    SettingText text = {"needs a picture; expected ", Setting::of("image", "FILE")};
    if (run.task != "edit") text.insert(text.end(), {", or ", Setting::of("task", "chat")});
    throw InputError(Setting::of("task", run.task), std::move(text));
  }
}

}  // namespace

std::string_view edit_default(std::string_view field) {
  const auto* const found = std::ranges::find(kEditDefaults, field, &TaskDefault::field);
  return found == std::ranges::end(kEditDefaults) ? "" : found->text;
}

void settle_task(Resolved& resolved) {
  RunConfig& run = resolved.options.run;
  if (run.task == "auto" && run.inputs.empty()) return;  // nothing runs
  if (run.task == "auto") run.task = run.reads_images() ? "edit" : "t2i";
  check_inputs(run);
  if (run.answers()) {  // it is of pictures; the origin of a flag stays, which is refused by that
    const std::size_t count = field_index("batch_count");
    const bool by_variable = resolved.origins[count] == environment_name("batch-count");
    run.sampling.batch_count = 1;
    if (by_variable || resolved.of_stage_config[count]) resolved.note(count, "default");
  }
  if (run.task != "edit") return;
  // The size in a stage config is that of pictures from text.
  const auto given = [&](std::string_view name) {
    return !resolved.is_default(name) && !resolved.of_stage_config[field_index(name)];
  };
  const bool own_width = given("width");
  if (own_width != given("height")) {
    throw InputError(Setting::absent(own_width ? "height" : "width"),
                     "not given; expected both, or none for the size of the last picture");
  }
  run.sampling.size_of_input = !own_width;
  for (const Resolved::EditValue& value : resolved.edit_values) {
    if (resolved.origins[value.field] != value.over) continue;
    assign(all_fields()[value.field], resolved.options, value.text, value.where);
    resolved.note(value.field, value.origin, value.from_stage_config);
  }
  for (const auto& [name, text] : kEditDefaults) {
    if (!resolved.is_default(name)) continue;
    assign(all_fields()[field_index(name)], resolved.options, std::string(text), name);
  }
}

}  // namespace diptych
