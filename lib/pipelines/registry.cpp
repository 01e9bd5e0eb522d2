#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/bagel.h"
#include "lib/pipelines/bagel_replay.h"
#include "lib/pipelines/pipeline.h"

namespace diptych {
namespace {

struct Family {
  std::string_view name;
  OpenSession open;
  MakeCaseReplay make_replay;
  LayoutCheck check_layout;
};

constexpr std::array kFamilies = {Family{"bagel", open_bagel, replay_bagel, check_bagel_layout}};

const Family& find_family(std::string_view name) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  throw InputError("pipeline: unknown family '{}' (known: {})", name, known);
}

}  // namespace

OpenSession find_session(std::string_view family) {
  return find_family(family).open;
}
MakeCaseReplay find_case_replay(std::string_view family) {
  return find_family(family).make_replay;
}

LayoutCheck find_layout_check(std::string_view family) {
  return find_family(family).check_layout;
}

std::string checkpoint_family(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.json"))
    return std::filesystem::exists(folder / "llm_config.json") ? "bagel" : "";
  const auto json = read_json_object(folder / "config.json");
  const auto type = json.find("model_type");
  const std::string name = type != json.end() && type->is_string() ? type->get<std::string>() : "";
  const auto known = [&](const Family& family) { return family.name == name; };
  return std::ranges::any_of(kFamilies, known) ? name : "";
}

std::string RecordedCase::task() const {
  const auto found = description.find("task");
  const std::string file = (folder / "case.json").string();
  if (found == description.end()) throw Unsupported("{}: names no task", file);
  if (!found->is_string()) throw InputError("{}: task: is not a string", file);
  return found->get<std::string>();
}

}  // namespace diptych
