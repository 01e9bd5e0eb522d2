#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "apps/diptych/bench/datasets.h"
#include "apps/diptych/bench/drafting.h"
#include "apps/diptych/record/result_record.h"
#include "lib/base/messages.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "diptych.bench.datasets";
constexpr int kSchemaVersion = 1;

bool is_drafted(const DatasetMeasured& set) {
  return set.answers.front().plain.has_value();
}

double speed_up(const DatasetMeasured& set) {
  const double plain = set.plain_tokens_per_second();
  return plain > 0 ? set.tokens_per_second() / plain : 0;
}

std::string percentages(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares) text += fmt::format(" {:5.1f}", 100 * share);
  return text;
}

// Shares of the verifications.
std::vector<double> histogram_shares(const DraftingReport& drafting) {
  std::vector<double> shares;
  for (const std::int64_t count : drafting.histogram())
    shares.push_back(static_cast<double>(count) /
                     static_cast<double>(std::max<std::size_t>(drafting.acceptance.size(), 1)));
  return shares;
}

std::string drafting_rows(const DatasetMeasured& set) {
  const DraftingReport all = set.drafting();
  const auto row = [](std::string_view name, const std::string& value) {
    return fmt::format("  {:<18}{}\n", name, value);
  };
  std::string text;
  text += row("acceptance", fmt::format(" {:.3f} of {}, the mean of the answers' means ({:.3f} of "
                                        "all verifications)",
                                        set.mean_acceptance(), all.block_size, all.mean()));
  text += row("by position, %", percentages(all.position_rates()));
  text += row("lengths 0 to N, %", percentages(histogram_shares(all)));
  text += row("tok/s", fmt::format(" {:.2f}, without the drafter {:.2f}", set.tokens_per_second(),
                                   set.plain_tokens_per_second()));
  text += row("speed-up", fmt::format(" {:.3f}", speed_up(set)));
  text += row("same text", fmt::format(" {} of {}", set.equal_texts(), set.answers.size()));
  return text;
}

// "80 rows", or "12 of 80 rows" of a run that ended early.
std::string rows_text(const DatasetMeasured& set) {
  const std::string all = counted(set.dataset.rows.size(), "row");
  return set.asked == set.dataset.rows.size() ? all : fmt::format("{} of {}", set.asked, all);
}

std::string set_table(const DatasetMeasured& set, const Report& ran) {
  std::int64_t tokens = 0;
  for (const DatasetAnswer& answer : set.answers) tokens += answer.drafted.tokens;
  std::string text =
      fmt::format("{} ({}): {}, {}, {} tokens; {}, attention {}\n", printable(set.dataset.name),
                  name_of(set.dataset.kind), rows_text(set), counted(set.answers.size(), "answer"),
                  tokens, ran.dtype, ran.attention);
  if (is_drafted(set)) {
    text += drafting_rows(set);
  } else {
    text += fmt::format("  {:<18} {:.2f}\n", "tok/s", set.tokens_per_second());
  }
  if (const auto accuracy = set.accuracy()) {
    const std::size_t judged = set.judged();
    const bool all = judged == set.answers.size();
    text += fmt::format("  {:<18} {:.1f} %{}\n", "accuracy", 100 * *accuracy,
                        all ? "" : fmt::format(" of the {} whose right answer is known", judged));
  }
  return text;
}

Json text_json(const Text& text) {
  Json json = {{"text", text.text},
               {"finish_reason", text.finish_reason},
               {"tokens", text.tokens},
               {"seconds", text.seconds}};
  if (text.drafting) json["acceptance"] = text.drafting->acceptance;
  return json;
}

Json set_json(const DatasetMeasured& set) {
  Json json = {{"name", set.dataset.name},
               {"kind", name_of(set.dataset.kind)},
               {"rows", set.dataset.rows.size()},
               {"asked", set.asked},
               {"tokens_per_second", set.tokens_per_second()}};
  if (is_drafted(set)) {
    json["plain_tokens_per_second"] = set.plain_tokens_per_second();
    json["speed_up"] = speed_up(set);
    json["mean_acceptance"] = set.mean_acceptance();
    json["equal_texts"] = set.equal_texts();
    json["drafting"] = drafting_json(set.drafting());
  }
  const auto accuracy = set.accuracy();
  json["accuracy"] = accuracy ? Json(*accuracy) : Json();
  json["judged"] = set.judged();
  json["answers"] = Json::array();
  for (const DatasetAnswer& answer : set.answers) {
    Json each = text_json(answer.drafted);
    each["row"] = answer.place;
    each["turn"] = answer.turn;
    if (answer.right) each["right"] = *answer.right;
    if (answer.plain) each["plain"] = text_json(*answer.plain);
    json["answers"].push_back(std::move(each));
  }
  return json;
}

}  // namespace

std::string datasets_table(const DatasetResult& result) {
  std::string text;
  for (const DatasetMeasured& set : result.sets) {
    if (!set.answers.empty()) text += set_table(set, result.ran);
  }
  return text;
}

Json datasets_json(const Resolved& request, const DatasetResult& result) {
  Json json = {{"schema", kSchema},
               {"schema_version", kSchemaVersion},
               {"version", DIPTYCH_VERSION},
               {"libtorch", TORCH_VERSION},
               {"device", result.ran.device},
               {"dtype", result.ran.dtype},
               {"quantization", result.ran.quantization},
               {"attention", result.ran.attention},
               {"weights_hash", result.weights_hash.empty() ? Json() : Json(result.weights_hash)},
               {"requested", requested_json(request.options)},
               {"datasets", Json::array()}};
  for (const DatasetMeasured& set : result.sets) {
    if (!set.answers.empty()) json["datasets"].push_back(set_json(set));
  }
  return json;
}

}  // namespace diptych
