#include "lib/pipelines/wan/loras.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/models/lora/lora_key.h"
#include "lib/models/wan/lora.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::string_view kHigh = "high", kLow = "low", kBoth = "both";
constexpr std::string_view kSecond = "transformer_2.";  // of the keys of a pipeline with two

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}
bool is_upper(char c) {
  return std::isupper(static_cast<unsigned char>(c)) != 0;
}
std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// As a word of its own, of a name in capitals within ("WanHighNoise"), or before "noise".
bool has_word(std::string_view name, std::string_view word) {
  const std::string small = lower(name);
  for (std::size_t at = small.find(word); at != std::string::npos; at = small.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins =
        at == 0 || !is_letter(name[at - 1]) || (is_upper(name[at]) && !is_upper(name[at - 1]));
    const bool ends = end == name.size() || !is_letter(name[end]) ||
                      (is_upper(name[end]) && !is_upper(name[end - 1])) ||
                      std::string_view(small).substr(end).starts_with("noise");
    if (begins && ends) return true;
  }
  return false;
}

// "low" or "both" where keys begin with "transformer_2.", else "". Those of text encoders say
// nothing.
std::string_view experts_of_keys(const TensorFile& file) {
  bool second = false, first = false;
  for (const auto& [key, entry] : file.entries()) {
    if (key.starts_with(kSecond)) {
      second = true;
    } else if (!is_of_text_encoder(key)) {
      first = true;
    }
  }
  if (!second) return "";
  return first ? kBoth : kLow;
}

class LoraFiles {
 public:
  LoraFiles(const WanSettings& settings, const WanConfig& config, bool has_experts, Log& log)
      : settings_(settings),
        modules_(wan_lora_modules(config)),
        has_experts_(has_experts),
        log_(log) {}

  WanLoras read() {
    for (const AddedWeights& added : settings_.loras)
      about(Setting::of("lora"), [&] { add(added); });
    return std::move(loras_);
  }

 private:
  void add(const AddedWeights& added) {
    const TensorFile file = TensorFile::open(added.file);
    const std::string path = added.file.string();
    if (!has_experts_ && !added.part.empty())
      throw InputError("{}: {}=: the model has one transformer; expected FILE[:SCALE]", path,
                       added.part);
    const std::string_view named = experts_of_keys(file);
    if (!has_experts_ && !named.empty())
      throw InputError("{}: key {}: the model has one transformer", path,
                       shown_name(file.entries().lower_bound(kSecond)->first));
    // A record gives the part that the keys said.
    if (!named.empty() && !added.part.empty() && added.part != named)
      throw InputError("{}: {}=: its keys say which expert they are for ({}...)", path, added.part,
                       kSecond);
    std::string part = added.part, why;
    if (has_experts_ && part.empty()) std::tie(part, why) = guess(added.file, named);
    if (named == kBoth) {
      add_to(0, file, added, [](std::string_view key) { return !key.starts_with(kSecond); });
      add_to(1, file, added, [](std::string_view key) { return key.starts_with(kSecond); });
    } else {
      const Lora lora = read_lora(file, modules_, options(added, {}));
      if (part != kLow) merge(0, lora);
      if (part == kLow || part == kBoth) merge(1, lora);
      say(added, lora, part, why);
    }
    loras_.parts.push_back(part);
    loras_.files.push_back(added.file);
  }

  static std::pair<std::string, std::string> guess(const std::filesystem::path& file,
                                                   std::string_view by_keys) {
    if (!by_keys.empty()) return {std::string(by_keys), " (by its keys)"};
    const std::string_view named = expert_of_name(file.filename().string());
    if (!named.empty()) return {std::string(named), " (by the file's name)"};
    return {std::string(kBoth), " (the file's name says neither high nor low)"};
  }

  LoraOptions options(const AddedWeights& added,
                      std::function<bool(std::string_view)> takes) const {
    return {added.scale, settings_.lora_diffs == WanLoraDiffs::all, std::move(takes)};
  }

  void add_to(std::size_t place, const TensorFile& file, const AddedWeights& added,
              std::function<bool(std::string_view)> takes) {
    const Lora lora = read_lora(file, modules_, options(added, std::move(takes)));
    merge(place, lora);
    say(added, lora, std::string(place == 0 ? kHigh : kLow), " (by its keys)");
  }

  void merge(std::size_t place, const Lora& lora) {
    for (const auto& [name, changes] : lora.changes) {
      auto& all = loras_.changes[place][name];
      all.insert(all.end(), changes.begin(), changes.end());
    }
  }

  void say(const AddedWeights& added, const Lora& lora, const std::string& part,
           const std::string& why) {
    std::string line = fmt::format("--lora {}: {}", added.file.string(),
                                   counted(lora.factors, "matrix", "matrices"));
    if (!lora.ranks.empty()) line += fmt::format(" of rank {}", fmt::join(lora.ranks, ", "));
    if (lora.differences > 0) line += fmt::format(", {}", counted(lora.differences, "difference"));
    line += fmt::format(", times {}", added.scale);
    if (part == kBoth) line += fmt::format(", for both experts{}", why);
    if (part == kHigh || part == kLow)
      line += fmt::format(", for the expert of {} noise{}", part, why);
    if (!lora.unused.empty())
      line += fmt::format("; {} left out, which --lora-diffs all adds",
                          counted(lora.unused.size(), "other difference"));
    log_.info("{}", line);
    warn(added, lora.absent, "of modules that this model does not have");
    warn(added, lora.of_texts, "of a text encoder, which is not changed");
  }

  void warn(const AddedWeights& added, const std::vector<std::string>& keys,
            std::string_view what) {
    if (keys.empty()) return;
    log_.warning("--lora {}: {} left out, {}: {}{}", added.file.string(),
                 counted(keys.size(), "key"), what, shown_name(keys.front()),
                 keys.size() > 1 ? " and others" : "");
  }

  const WanSettings& settings_;
  std::vector<LoraModule> modules_;
  bool has_experts_;
  Log& log_;
  WanLoras loras_;
};

}  // namespace

std::string_view expert_of_name(std::string_view name) {
  const bool high = has_word(name, kHigh), low = has_word(name, kLow);
  if (high == low) return "";
  return high ? kHigh : kLow;
}

WanLoras read_wan_loras(const WanSettings& settings, const WanConfig& config, bool has_experts,
                        Log& log) {
  return LoraFiles(settings, config, has_experts, log).read();
}

std::vector<AddedWeightsRecord> recorded_loras(const WanLoras& loras) {
  std::vector<AddedWeightsRecord> records;
  for (std::size_t i = 0; i < loras.files.size(); ++i)
    records.push_back({file_sha256(loras.files[i]).value_or(""), loras.parts[i]});
  return records;
}

}  // namespace diptych
