#include "lib/tensor/weight_sources.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWeight = ".weight", kFormat = ".comfy_quant", kMark = "scaled_fp8";
constexpr std::array<std::string_view, 2> kScales = {".scale_weight", ".weight_scale"};
constexpr std::array<std::string_view, 2> kActivationScales = {".scale_input", ".input_scale"};

bool is_fp8(at::ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2;
}

// "a.b" of "a.b.weight"; nothing for another name.
std::optional<std::string_view> without(std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  return name.substr(0, name.size() - end.size());
}

// The file that holds a stored tensor, and its entry.
class Stored {
 public:
  explicit Stored(const CheckpointFiles& checkpoint) : checkpoint_(checkpoint) {}

  bool has(std::string_view name) const { return checkpoint_.owner.contains(name); }
  const TensorFile& file(std::string_view name) const {
    return checkpoint_.files[checkpoint_.owner.find(name)->second];
  }
  const TensorEntry& entry(std::string_view name) const {
    return file(name).entries().find(name)->second;
  }
  Tensor view(std::string_view name) const { return file(name).view(name); }
  template <typename... Args>
  InputError error(std::string_view name, fmt::format_string<Args...> format,
                   Args&&... args) const {
    return InputError("{}: tensor {} {}", file(name).path().string(), shown_name(name),
                      fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const CheckpointFiles& checkpoint_;
};

// One value, or one for each row of the weight.
bool fits(const std::vector<std::int64_t>& scale, const std::vector<std::int64_t>& weight) {
  if (scale.empty() || (scale.size() == 1 && scale[0] == 1)) return true;
  if (weight.empty() || scale.size() > weight.size() || scale[0] != weight[0]) return false;
  return std::all_of(scale.begin() + 1, scale.end(), [](std::int64_t size) { return size == 1; });
}

Tensor read_scale(const Stored& stored, const std::string& name, const TensorEntry& weight) {
  const TensorEntry& entry = stored.entry(name);
  const bool plain = at::isFloatingType(entry.dtype) && !is_fp8(entry.dtype);
  if (!plain)
    throw stored.error(name, "has dtype {}, expected F32 for the scale of a weight",
                       dtype_name(entry.dtype));
  if (!fits(entry.shape, weight.shape)) {
    throw stored.error(name,
                       "has shape {}, expected one scale or one for each row of the weight {}; "
                       "scales of blocks are not supported",
                       shown_shape(entry.shape), shown_shape(weight.shape));
  }
  const Tensor scale = stored.view(name).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  if (!scale.isfinite().all().item<bool>())
    throw stored.error(name, "holds NaN or infinity, expected the scale of a weight");
  if (scale.numel() == 1) return scale.reshape({});
  std::vector<std::int64_t> rows(weight.shape.size(), 1);
  rows[0] = weight.shape[0];
  return scale.reshape(rows);
}

// Of a weight: its scale, undefined where it has none.
Tensor scale_of(const Stored& stored, const std::string& weight) {
  const auto module = without(weight, kWeight);
  if (!module) return {};
  std::string name;
  for (const std::string_view end : kScales) {
    const std::string candidate = fmt::format("{}{}", *module, end);
    if (!stored.has(candidate)) continue;
    if (!name.empty())
      throw stored.error(candidate, "is beside {}; expected one scale of a weight",
                         shown_name(name));
    name = candidate;
  }
  if (name.empty()) return {};
  const TensorEntry& entry = stored.entry(weight);
  if (is_fp8(entry.dtype)) return read_scale(stored, name, entry);
  // Of whole numbers nothing can be made: whoever asks for them says so.
  if (!at::isFloatingType(entry.dtype)) return {};
  if (!read_scale(stored, name, entry).eq(1).all().item<bool>()) {
    throw stored.error(name, "is the scale of a weight with dtype {}, expected fp8",
                       dtype_name(entry.dtype));
  }
  return {};
}

// Belongs to a weight that is there.
bool is_beside_weight(const Stored& stored, std::string_view name) {
  const auto belongs = [&](std::string_view end) {
    const auto module = without(name, end);
    return module && stored.has(fmt::format("{}{}", *module, kWeight));
  };
  return std::ranges::any_of(kScales, belongs) || std::ranges::any_of(kActivationScales, belongs) ||
         belongs(kFormat);
}

bool is_mark(std::string_view name) {
  const auto before = without(name, kMark);
  return before && (before->empty() || before->ends_with('.'));
}

// {"format": "float8_e4m3fn"} of a layer, from a tensor or the header.
void check_format(const std::string& place, const Json& layer) {
  const bool has = layer.is_object() && layer.contains("format") && layer["format"].is_string();
  const std::string format = has ? layer["format"].get<std::string>() : "";
  if (layer.is_object() && layer.contains("convrot") && layer["convrot"] != false)
    throw InputError("{}: weights in the format convrot are not supported", place);
  if (format == "float8_e4m3fn" || format == "float8_e5m2") return;
  throw InputError("{}: format {} is not supported; expected float8_e4m3fn or float8_e5m2", place,
                   has ? shown_name(format) : "of a layer, which it does not name,");
}

void check_formats(const CheckpointFiles& checkpoint, const Stored& stored) {
  for (const auto& [name, place] : checkpoint.owner) {
    if (!name.ends_with(kFormat)) continue;
    const auto bytes = stored.file(name).bytes(name);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    check_format(fmt::format("{}: tensor {}", stored.file(name).path().string(), shown_name(name)),
                 Json::parse(text, nullptr, /*allow_exceptions=*/false));
  }
  for (const TensorFile& file : checkpoint.files) {
    const auto text = file.metadata().find("_quantization_metadata");
    if (text == file.metadata().end()) continue;
    const Json json = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
    const std::string place = fmt::format("{}: _quantization_metadata", file.path().string());
    if (!json.is_object() || !json.contains("layers") || !json["layers"].is_object())
      throw InputError("{}: expected an object with \"layers\"", place);
    for (const auto& [module, layer] : json["layers"].items())
      check_format(fmt::format("{}: {}", place, shown_name(module)), layer);
  }
}

}  // namespace

WeightSources weight_sources(const CheckpointFiles& checkpoint, const WeightReading& reading) {
  const Stored stored(checkpoint);
  check_formats(checkpoint, stored);
  WeightSources sources;
  for (const auto& [name, place] : checkpoint.owner) {
    if (!name.starts_with(reading.prefix) || is_beside_weight(stored, name) || is_mark(name))
      continue;
    const std::string inner = name.substr(reading.prefix.size());
    const auto known = reading.names.find(inner);
    const std::string& own = known == reading.names.end() ? inner : known->second;
    if (own.empty()) continue;
    const auto [other, is_new] =
        sources.emplace(own, WeightSource{place, name, scale_of(stored, name)});
    if (!is_new)
      throw stored.error(name, "is the same as {} by another name; expected one of them",
                         shown_name(other->second.stored));
  }
  return sources;
}

Tensor computed_weight(const Tensor& stored, const Tensor& scale,
                       const std::vector<WeightChange>& changes, at::Device device) {
  // What is stored may be a read-only map.
  Tensor weight = stored.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  if (scale.defined()) weight.mul_(scale.to(device));
  const auto here = [&](const Tensor& part) { return part.to(device, at::kFloat); };
  for (const WeightChange& change : changes) {
    if (change.difference.defined()) {
      weight.add_(here(change.difference).view(weight.sizes()), change.factor);
      continue;
    }
    weight.view({weight.size(0), -1})
        .addmm_(here(change.up), here(change.down), /*beta=*/1, change.factor);
  }
  return weight;
}

}  // namespace diptych
