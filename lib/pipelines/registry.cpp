#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel.h"
#include "lib/pipelines/bagel_replay.h"
#include "lib/pipelines/pipeline.h"

namespace diptych {
namespace {

struct Family {
  std::string_view name;
  Pipeline run;
  MakeCaseReplay make_replay;
};

constexpr std::array kFamilies = {Family{"bagel", run_bagel, replay_bagel}};

const Family& find_family(std::string_view name) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  throw InputError("pipeline: unknown family '{}' (known: {})", name, known);
}

}  // namespace

Pipeline find_pipeline(std::string_view family) {
  return find_family(family).run;
}
MakeCaseReplay find_case_replay(std::string_view family) {
  return find_family(family).make_replay;
}

std::string RecordedCase::task() const {
  const auto found = description.find("task");
  if (found == description.end() || !found->is_string()) {
    throw InputError("{}: task: missing or not a string", (folder / "case.json").string());
  }
  return found->get<std::string>();
}

}  // namespace diptych
