#include "lib/models/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/lora/lora_header.h"
#include "lib/models/lora/lora_key.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/finite.h"

namespace diptych {
namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// The keys of one module.
struct ModuleKeys {
  std::map<LoraTensor, std::string> keys;
  const std::string* of(LoraTensor kind) const {
    const auto found = keys.find(kind);
    return found == keys.end() ? nullptr : &found->second;
  }
};

class LoraReader {
 public:
  LoraReader(const TensorFile& file, const std::vector<LoraModule>& modules,
             const LoraOptions& options)
      : file_(file), modules_(modules), options_(options), header_(LoraHeader::read(file)) {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      for (const std::string& name : modules[i].names) by_name_.emplace(lora_module(name), i);
    }
  }

  Lora read() {
    sort_keys();
    refuse_unknown();
    for (const auto& [module, keys] : found_) add_module(modules_[module], keys);
    if (lora_.changes.empty())
      throw InputError("{}: changes no tensor of the model; expected a LoRA file for it",
                       file_.path().string());
    return std::move(lora_);
  }

 private:
  template <typename... Args>
  InputError error(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    return InputError("{}: key {} {}", file_.path().string(), shown_name(key),
                      fmt::format(format, std::forward<Args>(args)...));
  }
  const TensorEntry& entry(const std::string& key) const {
    return file_.entries().find(key)->second;
  }

  void sort_keys() {
    for (const auto& [key, entry] : file_.entries()) {
      if (options_.takes && !options_.takes(key)) continue;
      const LoraKey parsed = parse_lora_key(key);
      if (is_of_text_encoder(key)) {
        lora_.of_texts.push_back(key);
        continue;
      }
      if (!parsed.form.empty())
        throw error(key, "is of {}, which is not supported; expected A and B (lora_A, lora_B)",
                    parsed.form);
      const auto known = by_name_.find(lora_module(parsed.module));
      const bool fits = parsed.kind != LoraTensor::other && known != by_name_.end() &&
                        has_target(modules_[known->second], parsed.kind);
      if (!fits) {
        unknown_.push_back(key);
      } else if (!modules_[known->second].is_here) {
        lora_.absent.push_back(key);
      } else {
        take(known->second, parsed.kind, key);
      }
    }
  }

  static bool has_target(const LoraModule& module, LoraTensor kind) {
    switch (kind) {
      case LoraTensor::down:
      case LoraTensor::up:
      case LoraTensor::alpha:
        return module.takes_factors && !module.weight.name.empty();
      case LoraTensor::difference:
        return !module.weight.name.empty() || !module.table.name.empty();
      case LoraTensor::bias_change:
        return !module.bias.name.empty();
      case LoraTensor::table_change:
        return !module.table.name.empty();
      case LoraTensor::other:
        break;
    }
    return false;
  }

  void take(std::size_t module, LoraTensor kind, const std::string& key) {
    const auto [other, is_new] = found_[module].keys.emplace(kind, key);
    if (!is_new)
      throw error(key, "is the same as {} by another name; expected one of them",
                  shown_name(other->second));
  }

  void refuse_unknown() const {
    if (unknown_.empty()) return;
    NearestName nearest(lora_module(parse_lora_key(unknown_.front()).module));
    for (const auto& [name, module] : by_name_) nearest.offer(name);
    const std::string& best = nearest.best();
    throw error(unknown_.front(), "fits nothing of the model{}{}",
                best.empty() ? "" : fmt::format("; the nearest module is {}", shown_name(best)),
                unknown_.size() == 1 ? ""
                                     : fmt::format(" ({} of the {} keys do not fit)",
                                                   unknown_.size(), file_.entries().size()));
  }

  Tensor values(const std::string& key) const {
    const TensorEntry& found = entry(key);
    if (!at::isFloatingType(found.dtype))
      throw error(key, "has dtype {}, expected a floating-point one", dtype_name(found.dtype));
    const Tensor values = file_.view(key);
    if (!std::isfinite(largest(values)))
      throw error(key, "holds NaN or infinity (in float32), expected numbers");
    return values;
  }

  // Of the magnitudes in float32, NaN where it holds one.
  static double largest(const Tensor& values) {
    if (values.numel() == 0) return 0;
    const auto [least, most] = at::aminmax(values.to(at::kFloat));
    return std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
  }

  // What a change counts times, because of the key.
  double factor(const std::string& key, double share) const {
    const double value = options_.scale * share;
    if (std::abs(value) <= kMost) return value;
    throw error(key, "gets the factor {}, expected one that float32 holds", value);
  }

  void add_module(const LoraModule& module, const ModuleKeys& keys) {
    const bool has_factors = add_factors(module, keys);
    const auto counts = [&](LoraDifference rule) {
      return options_.all_differences || rule == LoraDifference::always ||
             (rule == LoraDifference::with_factors && has_factors);
    };
    const auto add = [&](LoraTensor kind, const TensorShape& target, bool counted) {
      const std::string* key = keys.of(kind);
      if (key == nullptr) return;
      if (!counted) return lora_.unused.push_back(*key);
      add_difference(target, *key);
    };
    const bool of_table = module.weight.name.empty();
    add(LoraTensor::difference, of_table ? module.table : module.weight, counts(module.difference));
    add(LoraTensor::bias_change, module.bias, counts(module.bias_change));
    add(LoraTensor::table_change, module.table, options_.all_differences);
  }

  void add_difference(const TensorShape& target, const std::string& key) {
    const TensorEntry& found = entry(key);
    if (found.shape != target.shape) {
      throw error(key, "has shape {}, expected {} of {}", shown_shape(found.shape),
                  shown_shape(target.shape), shown_name(target.name));
    }
    WeightChange change;
    change.difference = values(key);
    change.factor = factor(key, 1);
    lora_.changes[target.name].push_back(std::move(change));
    ++lora_.differences;
  }

  // A and B, in two dimensions: of a convolution the last ones are together its inputs.
  bool add_factors(const LoraModule& module, const ModuleKeys& keys) {
    const std::string* const down = keys.of(LoraTensor::down);
    const std::string* const up = keys.of(LoraTensor::up);
    const std::string* const alpha = keys.of(LoraTensor::alpha);
    if (down == nullptr && up == nullptr) {
      if (alpha != nullptr) throw error(*alpha, "has neither A nor B beside it");
      return false;
    }
    if (down == nullptr) throw error(*up, "has no A (lora_A, lora_down) beside it");
    if (up == nullptr) throw error(*down, "has no B (lora_B, lora_up) beside it");
    const std::int64_t rank = check_factors(module.weight, *down, *up);
    WeightChange change;
    change.down = values(*down).reshape({rank, -1});
    change.up = values(*up).reshape({-1, rank});
    change.factor = factor(alpha != nullptr ? *alpha : *down, alpha_share(module, keys, rank));
    check_product(change, *down);
    lora_.changes[module.weight.name].push_back(std::move(change));
    lora_.ranks.insert(rank);
    ++lora_.factors;
    return true;
  }

  // B A is computed only where it may pass float32.
  void check_product(const WeightChange& change, const std::string& down) const {
    const double bound = largest(change.down) * largest(change.up) *
                         static_cast<double>(change.down.size(0)) *
                         std::max(1., std::abs(change.factor));
    if (bound <= kMost) return;
    const auto wide = [](const Tensor& part) { return part.to(at::kFloat); };
    if (!all_finite(wide(change.up).mm(wide(change.down)).mul_(change.factor)))
      throw error(down, "times its B and the factor {} passes float32", change.factor);
  }

  std::int64_t check_factors(const TensorShape& weight, const std::string& down,
                             const std::string& up) const {
    const auto &a = entry(down).shape, &b = entry(up).shape;
    const std::int64_t outputs = weight.shape[0], inputs = elements(weight.shape) / outputs;
    if (a.size() < 2 || a[0] < 1 || elements(a) != a[0] * inputs) {
      throw error(down, "has shape {}, expected [rank, {}] for {} {}", shown_shape(a), inputs,
                  shown_name(weight.name), shown_shape(weight.shape));
    }
    const bool fits = b.size() >= 2 && b[0] == outputs && elements(b) == outputs * a[0];
    if (!fits || b[1] != a[0]) {
      throw error(up, "has shape {}, expected [{}, {}] for {} {}, whose A has rank {}",
                  shown_shape(b), outputs, a[0], shown_name(weight.name), shown_shape(weight.shape),
                  a[0]);
    }
    return a[0];
  }

  double alpha_share(const LoraModule& module, const ModuleKeys& keys, std::int64_t rank) const {
    const auto by = static_cast<double>(rank);
    if (const std::string* key = keys.of(LoraTensor::alpha)) return number(*key) / by;
    if (!header_) return 1;
    return header_->alpha(module.name) / (header_->rank_stabilised ? std::sqrt(by) : by);
  }

  // Of any dtype: a number, not a weight.
  double number(const std::string& key) const {
    const TensorEntry& found = entry(key);
    if (elements(found.shape) != 1 || found.dtype == at::kBool)
      throw error(key, "has dtype {} and shape {}, expected one number", dtype_name(found.dtype),
                  shown_shape(found.shape));
    const double value = file_.view(key).to(at::kDouble).item<double>();
    if (!std::isfinite(value)) throw error(key, "is {}, expected a number", value);
    return value;
  }

  static constexpr double kMost = std::numeric_limits<float>::max();

  const TensorFile& file_;
  const std::vector<LoraModule>& modules_;
  const LoraOptions& options_;
  std::optional<LoraHeader> header_;
  std::map<std::string, std::size_t> by_name_;  // with _ for dots -> place in modules_
  std::map<std::size_t, ModuleKeys> found_;
  std::vector<std::string> unknown_;
  Lora lora_;
};

}  // namespace

Lora read_lora(const TensorFile& file, const std::vector<LoraModule>& modules,
               const LoraOptions& options) {
  return LoraReader(file, modules, options).read();
}

}  // namespace diptych
