#include "apps/diptych/bench/drafting.h"

#include <fmt/format.h>

#include "lib/config/family_fields.h"

namespace diptych {
namespace {

const Field& field_of(std::string_view name, const Options& options) {
  const auto fields = fields_of(options);
  return fields[field_index(name, fields)];
}

bool drafts(const Resolved& request) {
  const Options& options = request.options;
  const auto& drafting = options.run.family->drafting;
  return drafting && options.run.answers() &&
         !value_text(field_of(drafting->field, options), options).empty() &&
         value_text(field_of(drafting->without.field, options), options) != drafting->without.text;
}

}  // namespace

std::vector<std::string> against_drafting(const Resolved& request) {
  if (!drafts(request)) return {};
  const auto& [field, text] = request.options.run.family->drafting->without;
  return {fmt::format("{}={}", field, text)};
}

RunConfig without_drafting(const Resolved& request) {
  Options plain = request.options;
  if (!drafts(request)) return plain.run;
  const auto& [field, text] = plain.run.family->drafting->without;
  assign(field_of(field, plain), plain, std::string(text), field);
  return plain.run;
}

nlohmann::ordered_json drafting_json(const DraftingReport& report) {
  return {{"block_size", report.block_size},  {"verifications", report.acceptance.size()},
          {"mean_acceptance", report.mean()}, {"position_rates", report.position_rates()},
          {"histogram", report.histogram()},  {"switched_off", report.switched_off}};
}

}  // namespace diptych
