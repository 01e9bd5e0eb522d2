#include "apps/diptych/bench/plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/request_sources.h"
#include "lib/base/error.h"
#include "lib/batch/plan.h"
#include "lib/config/family_fields.h"
#include "lib/config/words.h"
#include "lib/request/request_checks.h"

namespace diptych {
namespace {

constexpr const char* kAgainst = "--against";

// Whether --against may change fields of this scope. Both sides of a comparison must stay the same
// request to the same command.
bool may_differ(Scope scope) {
  using enum Scope;
  for (const Scope fixed : {command, display, parallel, request, report, output}) {
    if (scope == fixed) return false;
  }
  return true;
}

// Fields by their own names and those of their flags, with _ for -.
struct Key {
  const Field* field = nullptr;
  const FlagGroup* group = nullptr;  // instead
};
std::map<std::string, Key, std::less<>> keys_that_differ(std::span<const Field> fields) {
  std::map<std::string, Key, std::less<>> keys;
  for (const Field& field : fields) {
    if (!may_differ(field.scope)) continue;
    keys.emplace(field.name, Key{&field});
    for (const std::string_view flag : long_names(field.flags))
      keys.emplace(with_underscores(flag), Key{&field});
  }
  for (const FlagGroup& group : all_flag_groups()) {
    if (!may_differ(group.scope)) continue;
    for (const std::string_view flag : long_names(group.flags))
      keys.emplace(with_underscores(flag), Key{nullptr, &group});
  }
  return keys;
}

void set(Resolved& resolved, const Field& field, const std::string& text,
         const std::string& origin) {
  assign(field, resolved.options, text, value_place(field, origin));
  resolved.note(field_index(field.name, fields_of(resolved.options)), origin);
}

void set(Resolved& resolved, const FlagGroup& group, const std::string& text,
         const std::string& origin) {
  for (const auto& [name, value] : group.expand(text, origin))
    set(resolved, all_fields()[field_index(name)], value, origin);
}

// Indices of width and height.
std::vector<std::size_t> sides_of(std::span<const Field> fields) {
  std::vector<std::size_t> sides;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (is_side(fields[i])) sides.push_back(i);
  }
  return sides;
}

// One of --sizes.
void set_size(Resolved& resolved, const std::string& text, const std::string& origin) {
  assign_size(resolved.options, text);
  for (const std::size_t side : sides_of(fields_of(resolved.options))) resolved.note(side, origin);
  require_meaning(resolved, origin);
}

// Whether a value of --against is a size.
bool gives_size(const std::string& text, std::span<const Field> fields) {
  const auto keys = keys_that_differ(fields);
  const auto key = keys.find(text.substr(0, text.find('=')));
  if (key == keys.end()) return false;
  return key->second.group == nullptr ? is_side(*key->second.field)
                                      : key->second.group->scope == Scope::picture;
}

void set_against(Resolved& resolved, const std::string& text) {
  const auto keys = keys_that_differ(fields_of(resolved.options));
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError("{}: {} is no KEY=VALUE, such as cfg_mode=sequential", kAgainst,
                     in_quotes(text));
  }
  const std::string name = with_underscores(text.substr(0, equals)),
                    value = text.substr(equals + 1);
  const auto key = keys.find(name);
  if (key == keys.end()) {
    std::vector<std::string_view> known;
    for (const auto& [each, unused] : keys) known.push_back(each);
    throw InputError("{}: unknown key {}{}", kAgainst, in_quotes(name), suggestion(name, known));
  }
  const std::string origin = fmt::format("{}: {}", kAgainst, name);
  if (std::ranges::find(resolved.origins, origin) != resolved.origins.end())
    throw InputError("{}: given twice; expected one value", origin);
  if (key->second.group != nullptr) return set(resolved, *key->second.group, value, origin);
  set(resolved, *key->second.field, value, origin);
}

bool differs(const Options& a, const Options& b) {
  return std::ranges::any_of(fields_of(a), [&](const Field& field) {
    return value_text(field, a) != value_text(field, b);
  });
}

std::string case_name(const RunConfig& run) {
  if (run.answers() || run.sampling.size_of_input) return run.task;
  return fmt::format("{}x{}", run.sampling.width, run.sampling.height);
}

void check(const Resolved& resolved, std::string_view given) {
  with_places(resolved, [&] {
    require_meaning(resolved, given);
    require_runnable(resolved.options);
  });
}

BenchCase plan_case(const Resolved& base, const std::vector<std::string>& against) {
  check(base, "--");
  BenchCase planned;
  planned.name = case_name(base.options.run);
  planned.settings.push_back({"base", base});
  if (against.empty()) return planned;
  Resolved other = base;
  for (const std::string& text : against) set_against(other, text);
  const std::string label = fmt::format("{}", fmt::join(against, " "));
  // Otherwise a setting would be compared with itself.
  if (!differs(base.options, other.options))
    throw InputError("{}: {} is what the request has already", kAgainst, in_quotes(label));
  // A flag of the base may have no meaning beside the other value.
  check(other, kAgainst);
  if (!same_model(base.options, other.options) && base.options.run.max_vram > 0) {
    throw InputError(Setting::of("max_vram"),
                     "holds for the whole process, but {} {} needs a second model", kAgainst,
                     label);
  }
  planned.settings.push_back({label, std::move(other)});
  return planned;
}

std::vector<BenchCase> plan_batch_sizes(const Resolved& request, const BenchVariants& variants) {
  const Setting flag = Setting::of("batch_sizes");
  if (!request.options.run.answers())
    throw InputError(flag,
                     "has no meaning where something is painted; expected a task that "
                     "writes texts");
  std::vector<BenchCase> cases;
  for (const std::string& each : split_list(*variants.batch_sizes)) {
    BenchCase& planned = cases.emplace_back(plan_case(request, variants.against));
    planned.together = whole_number(each, flag, 1, kMostTogether);
    planned.name += fmt::format("-x{}", planned.together);
    const auto same = [&](const BenchCase& other) { return other.together == planned.together; };
    if (std::ranges::count_if(cases, same) > 1)
      throw InputError(flag, "{} given twice", planned.together);
  }
  return cases;
}

}  // namespace

std::vector<BenchCase> plan_bench(const Resolved& request, const BenchVariants& variants) {
  const auto& [sizes, batch_sizes, against, sizes_origin] = variants;
  if (sizes && batch_sizes)
    throw InputError(
        Setting::of("batch_sizes"),
        SettingText{"given together with ", Setting::of("sizes"), "; expected one of them"});
  if (batch_sizes) return plan_batch_sizes(request, variants);
  if (!sizes) return {plan_case(request, against)};
  const Setting sizes_flag = Setting::of("sizes");
  const auto fields = fields_of(request.options);
  for (const std::size_t side : sides_of(fields)) {
    const std::string& origin = request.origins[side];
    if (origin.starts_with("--"))
      throw InputError("{}: given together with {}; expected one of them", origin, sizes_origin);
  }
  if (std::ranges::any_of(against,
                          [&](const std::string& text) { return gives_size(text, fields); }))
    throw InputError(sizes_flag, "given together with a size of {}; expected one of them",
                     kAgainst);
  std::vector<BenchCase> cases;
  for (const std::string& each : split_list(*sizes)) {
    Resolved resolved = request;
    set_size(resolved, each, sizes_origin);
    cases.push_back(plan_case(resolved, against));
    const auto same = [&](const BenchCase& other) { return other.name == cases.back().name; };
    if (std::ranges::count_if(cases, same) > 1)
      throw InputError(sizes_flag, "{} given twice", cases.back().name);
  }
  return cases;
}

}  // namespace diptych
