#include "lib/pipelines/family.h"

#include "lib/base/error.h"

namespace diptych {

std::string RecordedCase::task() const {
  const auto found = description.find("task");
  const std::string file = (folder / "case.json").string();
  if (found == description.end()) throw Unsupported("{}: names no task", file);
  if (!found->is_string()) throw InputError("{}: task: is not a string", file);
  return found->get<std::string>();
}

}  // namespace diptych
