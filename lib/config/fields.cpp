#include "lib/config/fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <random>
#include <ranges>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/config/family_fields.h"
#include "lib/config/flag_hints.h"
#include "lib/config/task.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The whole of `text` as a number, or nothing.
template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool all_digits(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

double parse_real(const std::string& text, const Subject& where) {
  const auto value = parse<double>(text);
  if (!value || !std::isfinite(*value)) {
    throw where.error("{} is not a finite number", in_quotes(text));
  }
  return *value;
}

std::string nearest_multiples(std::int64_t value, std::int64_t multiple, std::int64_t high) {
  const std::int64_t below = value / multiple * multiple;
  const std::int64_t above = below + multiple;
  if (below < multiple) return fmt::format("nearest is {}", multiple);
  if (above > high) return fmt::format("nearest is {}", below);
  return fmt::format("nearest are {} and {}", below, above);
}

// One overload per kind of slot: text to value, with its checks.
struct Assign {
  Options& options;
  const Field& field;
  const std::string& text;
  const Subject& where;

  void operator()(const WholeSlot& slot) const {
    const FamilyConfig* family = options.run.family;
    const FieldLimit limit = family ? family->limit_of(field.name) : FieldLimit{field.name};
    const std::int64_t low = std::max(slot.low, limit.low), high = std::min(slot.high, limit.high);
    const auto value = parse<std::int64_t>(text);
    if (!limit.why.empty() && value && *value >= slot.low && *value < low) {
      throw where.error("{} {}; expected at least {}", *value, limit.why, low);
    }
    const bool positive = value && *value > 0;
    if (positive && *value <= high && *value % limit.multiple != 0) {
      throw where.error("{} is not a multiple of {}; {}", *value, limit.multiple,
                        nearest_multiples(*value, limit.multiple, high));
    }
    if (limit.multiple > 1 && all_digits(text) && (!positive || *value > high)) {
      throw where.error(
          "{} is out of range; expected a multiple of {} from {} to {}, less with some models",
          text, limit.multiple, low, high);
    }
    slot.at(options) = whole_number(text, where, low, high);
    if (slot.is_side) options.run.sampling.size_of_input = false;
  }

  void operator()(const SeedSlot& slot) const {
    const bool draws = text == kRandomSeed || text == "-1";
    const auto value = draws ? draw_seed() : parse<std::uint64_t>(text);
    if (!value) {
      throw where.error("{} is not a whole number from 0 to 18446744073709551615, nor {}",
                        in_quotes(text), kRandomSeed);
    }
    slot.at(options) = *value;
    slot.drawn(options) = draws;
  }

  void operator()(const RealSlot& slot) const {
    const double value = parse_real(text, where);
    if (slot.low_included ? value < slot.low : value <= slot.low) {
      throw where.error("{} is out of range; expected {} {}", text,
                        slot.low_included ? "at least" : "more than", slot.low);
    }
    if (value > slot.high) {
      throw where.error("{} is out of range; expected at most {}", text, slot.high);
    }
    slot.at(options) = value;
  }

  void operator()(const FrameRateSlot& slot) const {
    if (text == kUnset) return slot.at(options).reset();
    const auto rate = parse_frame_rate(text);
    if (!rate)
      throw where.error(
          "{} is not a rate; expected {} to {}, as a number or a fraction such as 30000/1001",
          in_quotes(text), kMinFrameRate, kMaxFrameRate);
    if (rate->value() < kMinFrameRate || rate->value() > kMaxFrameRate)
      throw where.error("{} is out of range; expected {} to {}", text, kMinFrameRate,
                        kMaxFrameRate);
    slot.at(options) = rate;
  }

  void operator()(const FreeWholeSlot& slot) const {
    if (text == kUnset) return slot.at(options).reset();
    const auto value = parse<std::int64_t>(text);
    const bool outside = all_digits(text) && (!value || *value < slot.low || *value > slot.high);
    if (const auto range = outside ? slot.range(options) : std::nullopt) {
      throw where.error("{} is out of range; expected {} to {} of {}", text, range->low,
                        range->high, range->of);
    }
    slot.at(options) = whole_number(text, where, slot.low, slot.high);
  }

  void operator()(const IntervalSlot& slot) const {
    const auto parts = split(text, ',');
    if (parts.size() != 2) {
      throw where.error("{} is not an interval; expected LO,HI, such as 0.4,1", in_quotes(text));
    }
    const double low = parse_real(std::string(parts[0]), where);
    const double high = parse_real(std::string(parts[1]), where);
    if (!(0 <= low && low < high && high <= 1)) {
      throw where.error("{} is out of range; expected 0 <= LO < HI <= 1", text);
    }
    slot.low(options) = low;
    slot.high(options) = high;
  }

  void operator()(const ChoiceSlot& slot) const {
    std::string_view name = text;
    const auto other = std::ranges::find(slot.other_names, text, &OtherName::text);
    if (other != slot.other_names.end()) {
      if (other->name.empty()) throw where.error("{} {}", in_quotes(text), other->why);
      name = other->name;
    }
    const auto found = std::ranges::find(slot.names, name);
    if (found == slot.names.end()) {
      throw where.error("unknown value {}{}", in_quotes(text), suggestion(text, slot.names));
    }
    slot.set(options, static_cast<std::size_t>(found - slot.names.begin()));
  }

  void operator()(const TaskSlot& slot) const {
    const FamilyConfig* family = options.run.family;
    if (family == nullptr) throw std::logic_error("a task is of a family");
    const Task* task = family->find_task(text);
    if (task == nullptr && text != kAnyTask) {
      std::vector<std::string_view> known = {kAnyTask};
      for (const Task& each : family->tasks) known.push_back(each.name);
      if (is_video_task(text) && !family->makes(MediaKind::clip))
        throw where.error(
            "{} is of videos, which {} does not make (known: {}); --task, -c or -m for the whole "
            "list chooses another model",
            in_quotes(text), family->name, fmt::join(known, ", "));
      throw where.error("unknown value {}{}", in_quotes(text), suggestion(text, known));
    }
    if (task != nullptr) return set_task(options.run, *task);
    slot.at(options) = text;
    options.run.makes = MediaKind::picture;
  }

  void operator()(const AttentionSlot& slot) const {
    slot.at(options) = slot.may_be_empty && text.empty() ? "" : attention_name(text, where);
  }

  void operator()(const DeviceSlot& slot) const { slot.at(options) = device(""); }

  void operator()(const FreeDeviceSlot& slot) const {
    slot.at(options) = text == kSameDevice ? std::nullopt : std::optional(device("same, "));
  }

  // `more`: other values that are known.
  DeviceChoice device(std::string_view more) const {
    constexpr std::string_view kGpu = "gpu";  // gpu, gpu:1
    const bool is_gpu = text == kGpu || text.starts_with("gpu:");
    const auto device = parse_device(is_gpu ? "cuda" + text.substr(kGpu.size()) : text);
    if (!device) {
      throw where.error("unknown value {} (known: {}auto, cpu, cuda, cuda:N)", in_quotes(text),
                        more);
    }
    return *device;
  }

  void operator()(const TextSlot& slot) const {
    check_text(text, where);
    slot.at(options) = text;
  }

  void operator()(const PathSlot& slot) const {
    if (text.empty()) throw where.error("is empty; expected a path");
    if (text.find('\0') != std::string::npos) throw where.error("a path with a NUL");
    slot.at(options) = text;
  }

  void operator()(const BoolSlot& slot) const {
    static constexpr std::array<std::string_view, 4> kTrue = {"true", "on", "yes", "1"};
    static constexpr std::array<std::string_view, 4> kFalse = {"false", "off", "no", "0"};
    const bool on = std::ranges::find(kTrue, text) != kTrue.end();
    if (!on && std::ranges::find(kFalse, text) == kFalse.end()) {
      throw where.error("unknown value {}; expected true or false", in_quotes(text));
    }
    slot.at(options) = on;
  }

  void operator()(const InputsSlot& slot) const {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_array()) {
      throw where.error(
          "{} is no list of inputs; expected such as [{{\"image\": \"a.png\"}}, "
          "{{\"text\": \"make it red\"}}]",
          in_quotes(text));
    }
    slot.at(options).clear();
    for (const nlohmann::json& item : json) slot.at(options).push_back(read_input(item));
  }

  InputItem read_input(const nlohmann::json& item) const {
    const bool one = item.is_object() && item.size() == 1 && item.begin()->is_string();
    if (one && item.contains("text")) {
      const auto value = item["text"].get<std::string>();
      check_text(value, where);
      return {value, {}};
    }
    for (const MediaKind kind : {MediaKind::picture, MediaKind::clip}) {
      const std::string name(input_name(kind));
      if (!one || !item.contains(name)) continue;
      const auto path = item[name].get<std::string>();
      if (path.empty() || path.find('\0') != std::string::npos)
        throw where.error("{} whose path is empty or holds a NUL",
                          kind == MediaKind::picture ? "an image" : "a video");
      return InputItem::of_file(kind, path);
    }
    throw where.error(
        "{} is no input; expected {{\"text\": ...}}, {{\"image\": ...}} or {{\"video\": ...}}",
        in_quotes(item.dump()));
  }

  void operator()(const AddedWeightsSlot& slot) const {
    if (split_list(text).empty()) throw where.error("is empty; expected {}", field.value);
    slot.at(options).clear();
    for (const std::string_view part : split_list(text))
      slot.at(options).push_back(parse_added_weights(part, slot.parts, where));
  }

  void operator()(const TextListSlot& slot) const {
    std::vector<std::string> texts = read_texts(slot.exact);
    if (texts.empty()) throw where.error("is empty; expected {}", field.value);
    for (const std::string& each : texts) check_text(each, where);
    slot.at(options) = std::move(texts);
  }

  // What list_text() made, or "a;b".
  std::vector<std::string> read_texts(bool exact) const {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto is_text = [](const nlohmann::json& each) { return each.is_string(); };
    if (exact && json.is_array() && std::ranges::all_of(json, is_text)) {
      auto texts = json.get<std::vector<std::string>>();
      std::erase(texts, "");
      return texts;
    }
    if (exact && (text.starts_with('[') || text.starts_with('{')))
      throw where.error("{} is no list of texts; expected such as [\"a\", \"b\"]", in_quotes(text));
    const std::vector<std::string_view> parts = split_list(text);
    return {parts.begin(), parts.end()};
  }
};

// One overload per kind of slot: the value for machines. Options are never changed through it.
struct ToJson {
  Options& options;

  template <typename AnySlot>
  Json operator()(const AnySlot& slot) const {
    return slot.at(options);
  }
  Json operator()(const IntervalSlot& slot) const {
    return Json::array({slot.low(options), slot.high(options)});
  }
  Json operator()(const FreeWholeSlot& slot) const {
    return slot.at(options) ? Json(*slot.at(options)) : Json(kUnset);
  }
  Json operator()(const FrameRateSlot& slot) const {
    const std::optional<FrameRate>& rate = slot.at(options);
    return rate ? rate_json(*rate) : Json(kUnset);
  }
  Json operator()(const ChoiceSlot& slot) const { return slot.names[slot.get(options)]; }
  Json operator()(const DeviceSlot& slot) const { return device_name(slot.at(options)); }
  Json operator()(const FreeDeviceSlot& slot) const {
    return slot.at(options) ? device_name(*slot.at(options)) : std::string(kSameDevice);
  }
  Json operator()(const PathSlot& slot) const { return slot.at(options).string(); }
  Json operator()(const AddedWeightsSlot& slot) const {
    Json list = Json::array();
    for (const AddedWeights& added : slot.at(options)) list.push_back(added_weights_text(added));
    return list;
  }
  Json operator()(const InputsSlot& slot) const {
    Json list = Json::array();
    for (const InputItem& item : slot.at(options)) {
      list.push_back(item.is_text()
                         ? Json{{"text", item.text}}
                         : Json{{std::string(input_name(item.kind())), item.file().string()}});
    }
    return list;
  }
};

template <typename AnySlot>
bool same_value(const AnySlot& slot, Options& a, Options& b) {
  return slot.at(a) == slot.at(b);
}
bool same_value(const ChoiceSlot& slot, Options& a, Options& b) {
  return slot.get(a) == slot.get(b);
}
bool same_value(const IntervalSlot& slot, Options& a, Options& b) {
  return slot.low(a) == slot.low(b) && slot.high(a) == slot.high(b);
}

}  // namespace

std::size_t field_index(std::string_view name, std::span<const Field> fields) {
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end()) throw std::logic_error(fmt::format("no field '{}'", name));
  return static_cast<std::size_t>(found - fields.begin());
}

bool is_of_request(Scope scope) {
  return scope != Scope::command && scope != Scope::display && scope != Scope::session &&
         scope != Scope::parallel;
}

bool is_of_request(const Field& field) {
  return is_of_request(field.scope) && !field.flags.empty();
}

bool is_side(const Field& field) {
  const auto* whole = std::get_if<WholeSlot>(&field.slot);
  return whole != nullptr && whole->is_side;
}

bool is_shared_by_forwards(const Field& field) {
  using enum Scope;
  return field.scope == painting || field.scope == guidance || field.scope == step_cache ||
         field.scope == report;
}

bool is_of_painting(const Field& field) {
  using enum Scope;
  return field.scope == picture || field.scope == start || field.scope == encoding ||
         field.scope == enhancing || is_shared_by_forwards(field);
}

bool is_of_input(const Field& field, const SamplingConfig& sampling) {
  if (field.name == "video_frames") return sampling.frames_of_input;
  return sampling.size_of_input && is_side(field);
}

bool may_share_forwards(const RunConfig& a, const RunConfig& b) {
  if (a.family != b.family) return false;
  Options of_a, of_b;
  of_a.run = a;
  of_b.run = b;
  const auto is_same = [&](const Field& field) {
    return std::visit([&](const auto& slot) { return same_value(slot, of_a, of_b); }, field.slot);
  };
  return std::ranges::all_of(fields_of(of_a) | std::views::filter(is_shared_by_forwards), is_same);
}

bool same_model(const Options& a, const Options& b) {
  if (a.run.family != b.run.family) return false;
  return std::ranges::all_of(fields_of(a), [&](const Field& field) {
    using enum Scope;
    const bool of_model =
        field.scope == command || field.scope == session || field.scope == parallel;
    return !of_model || value_text(field, a) == value_text(field, b);
  });
}

bool is_list(const Field& field) {
  return std::holds_alternative<TextListSlot>(field.slot) ||
         std::holds_alternative<AddedWeightsSlot>(field.slot);
}

std::vector<std::string_view> long_names(std::string_view flags) {
  std::vector<std::string_view> names;
  for (const std::string_view flag : split(flags, ',')) {
    if (flag.starts_with("--")) names.push_back(flag.substr(2));
  }
  return names;
}

std::string flag_label(std::string_view flags) {
  return fmt::format("--{}", fmt::join(long_names(flags), "/--"));
}

std::string with_underscores(std::string_view long_name) {
  std::string name(long_name);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string environment_name(std::string_view long_name) {
  std::string name = "DIPTYCH_";
  for (const char letter : long_name) {
    name +=
        letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name;
}

void assign(const Field& field, Options& options, const std::string& text, const Subject& where) {
  const FamilyConfig* family = options.run.family;
  if (family != nullptr && !family->uses(field.name))
    throw where.error("the family {} has no use for it", family->name);
  std::visit(Assign{options, field, text, where}, field.slot);
}

nlohmann::ordered_json value_json(const Field& field, const Options& options) {
  Options copy = options;
  return std::visit(ToJson{copy}, field.slot);
}

nlohmann::ordered_json rate_json(FrameRate rate) {
  return rate.seconds == 1 ? Json(rate.frames) : Json(frame_rate_text(rate));
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts = split(text, ';');
  std::erase(parts, "");
  return parts;
}

std::string list_text(const std::vector<std::string>& texts) {
  return Json(texts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string inputs_text(const std::vector<InputItem>& inputs) {
  Options options;
  options.run.inputs = inputs;
  return value_text(all_fields()[field_index("inputs")], options);
}

std::string value_text(const Field& field, const Options& options) {
  const nlohmann::ordered_json value = value_json(field, options);
  if (value.is_string()) return value.get<std::string>();
  if (std::holds_alternative<InputsSlot>(field.slot)) {
    return value.empty() ? "" : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump();
  const auto* const list = std::get_if<TextListSlot>(&field.slot);
  if (list != nullptr && list->exact)
    return value.empty() ? "" : list_text(value.get<std::vector<std::string>>());
  return is_list(field) ? fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ";"))
                        : fmt::format("{}", fmt::join(value.get<std::vector<double>>(), ","));
}

std::uint64_t draw_seed() {
  return std::random_device{}();
}

std::int64_t whole_number(std::string_view text, const Subject& where, std::int64_t low,
                          std::int64_t high) {
  const auto value = parse<std::int64_t>(text);
  if (!value && !all_digits(text)) {
    throw where.error("{} is not a whole number", in_quotes(text));
  }
  if (!value || *value < low || *value > high) {
    throw where.error("{} is out of range; expected {} to {}", text, low, high);
  }
  return *value;
}

std::string attention_name(std::string_view text, const Subject& where) {
  static constexpr std::array<std::string_view, 6> kNames = {"auto",  "math",  "sdpa",
                                                             "flash", "cudnn", "hopper"};
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPythonNames = {
      {{"flash_attn", "flash"}, {"torch_sdpa", "sdpa"}, {"cudnn_attn", "cudnn"}}};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::ranges::find(kNames, lower) != kNames.end()) return lower;
  for (const auto& [python, name] : kPythonNames) {
    if (lower == python) return std::string(name);
  }
  throw where.error("unknown attention backend {}{}; also FLASH_ATTN, TORCH_SDPA, CUDNN_ATTN",
                    in_quotes(text), suggestion(lower, kNames));
}

}  // namespace diptych
