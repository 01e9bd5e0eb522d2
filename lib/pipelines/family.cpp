#include "lib/pipelines/family.h"

#include <utility>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/config/task.h"
#include "lib/pipelines/recorded_values.h"

namespace diptych {

RunConfig recorded_request(const RunConfig& config, const RecordedCase& recorded,
                           const std::function<void(RecordedValues&)>& add,
                           std::vector<InputItem> inputs) {
  Options options;
  options.run = config;
  Resolved request = without_sources(std::move(options));
  RecordedValues values(recorded, fields_of(request.options));
  add(values);
  give(request, values.values());
  request.options.run.inputs = std::move(inputs);
  settle_task(request);
  return std::move(request.options.run);
}

std::string RecordedCase::task() const {
  auto found = description.find("task");
  if (found == description.end()) found = description.find("kind");
  const std::string file = (folder / "case.json").string();
  if (found == description.end()) throw Unsupported("{}: names no task", file);
  if (!found->is_string()) throw InputError("{}: task: is not a string", file);
  return found->get<std::string>();
}

}  // namespace diptych
