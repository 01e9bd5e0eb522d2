#include "lib/pipelines/dit/replay_parts.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/dit/replay_models.h"
#include "lib/pipelines/dit/replay_samplers.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/text/prompt_cleaning.h"
#include "lib/text/unigram.h"
#include "lib/verify/metrics.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// rows.json, a list of objects.
class Rows {
 public:
  explicit Rows(const RecordedCase& recorded)
      : file_((recorded.folder / "rows.json").string()),
        rows_(parse_json(read_text_file(file_), file_)) {
    if (!rows_.is_array()) throw InputError("{}: expected a list of rows", file_);
  }

  std::size_t size() const { return rows_.size(); }

  template <typename T>
  T value(std::size_t row, const char* key) const {
    const Json::json_pointer path(fmt::format("/{}/{}", row, key));
    if (!rows_.contains(path)) throw InputError("{}: row {}: {}: missing", file_, row, key);
    try {
      return rows_.at(path).get<T>();
    } catch (const Json::exception&) {
      throw InputError("{}: row {}: {}: found {}, expected another type", file_, row, key,
                       shown_json(rows_.at(path)));
    }
  }

 private:
  std::string file_;
  Json rows_;
};

void replay_tokenizer(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  using Ids = std::vector<std::int64_t>;
  const UnigramTokenizer tokenizer = UnigramTokenizer::load(config.model / "tokenizer");
  const Rows rows(recorded);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto text = rows.value<std::string>(row, "text");
    const Ids found = tokenizer.encode(text), expected = rows.value<Ids>(row, "ids");
    if (found != expected)
      throw CheckFailed(fmt::format("row {}: {} becomes [{}], expected [{}]", row, shown_json(text),
                                    fmt::join(found, ", "), fmt::join(expected, ", ")));
    trace.count_row();
  }
}

void replay_cleaning(const RecordedCase& recorded, const RunConfig&, TraceSink& trace) {
  constexpr std::array kWays = {std::pair{"cleaned_with_ftfy", PromptCleaning::ftfy},
                                std::pair{"cleaned_without_ftfy", PromptCleaning::diffusers},
                                std::pair{"vllm_omni_clean", PromptCleaning::whitespace}};
  const Rows rows(recorded);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto raw = rows.value<std::string>(row, "raw");
    for (const auto& [key, cleaning] : kWays) {
      const std::string found = clean_prompt(raw, cleaning);
      const auto expected = rows.value<std::string>(row, key);
      if (found != expected)
        throw CheckFailed(fmt::format("row {}: {}: {} becomes {}, expected {}", row, key,
                                      shown_json(raw), shown_json(found), shown_json(expected)));
    }
    trace.count_row();
  }
}

// How the branches of a row's request run, in the words of the table.
std::string branches_of(const RecordedCase& recorded, const std::string& row) {
  if (recorded_field<double>(recorded, row + "/guidance_scale") <= 1) return "no_cfg";
  const auto present = recorded_field<std::vector<std::string>>(recorded, row + "/present");
  const std::vector<std::string_view> conditions(present.begin(), present.end());
  const auto reason = why_sequential(
      {.conditioned_by = conditions,
       .equal_text_shapes = recorded_field<bool>(recorded, row + "/pos_neg_shapes_equal"),
       .gated = recorded_field<double>(recorded, row + "/cfg_gate_step") < 1});
  const bool asked = recorded_field<bool>(recorded, row + "/use_batched_cfg");
  return asked && !reason ? "batched" : "sequential";
}

void replay_branches(const RecordedCase& recorded, const RunConfig&, TraceSink& trace) {
  const std::size_t rows = recorded_field<std::vector<Json>>(recorded, "/rows").size();
  for (std::size_t i = 0; i < rows; ++i) {
    const std::string row = fmt::format("/rows/{}", i);
    const std::string found = branches_of(recorded, row);
    const auto expected = recorded_field<std::string>(recorded, row + "/expected");
    if (found != expected)
      throw CheckFailed(fmt::format("row {}: {}, expected {}: {}", i, found, expected,
                                    recorded_field_or<std::string>(recorded, row + "/reason", "")));
    trace.count_row();
  }
}

void measure(const std::string& name, const Tensor& actual, const Tensor& expected,
             TraceSink& trace) {
  constexpr double kMostPsnr = 200;  // of equal pictures, where ours is infinite
  const auto record = [&](const char* what, double value) {
    trace.record(name + what, at::full({1}, value, at::kDouble));
  };
  record(".ssim", ssim(actual, expected));
  record(".ms_ssim", ms_ssim(actual, expected));
  record(".psnr", std::min(psnr(actual, expected), kMostPsnr));
}

// a_0.png, a_1.png, ... beside themselves and beside noisy_0.png, noisy_1.png, ...
void replay_measures(const RecordedCase& recorded, const RunConfig&, TraceSink& trace) {
  for (std::size_t frame = 0;; ++frame) {
    const fs::path file = recorded.folder / fmt::format("a_{}.png", frame);
    if (!fs::exists(file)) break;
    const Tensor picture = read_image(file);
    const Tensor noisy = read_image(recorded.folder / fmt::format("noisy_{}.png", frame));
    if (noisy.sizes() != picture.sizes())
      throw InputError("{}: has another size than the noisy one", file.string());
    measure(fmt::format("identical.frame{}", frame), picture, picture, trace);
    measure(fmt::format("noisy.frame{}", frame), noisy, picture, trace);
  }
}

struct PartReplay {
  std::string_view task;  // how it begins in case.json
  void (*replay)(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace);
};
constexpr std::array kParts = {
    PartReplay{"umt5_text_encode", replay_umt5_texts},
    PartReplay{"t5_text_encode", replay_t5_texts},
    PartReplay{"tokenize", replay_tokenizer},
    PartReplay{"prompt_clean", replay_cleaning},
    PartReplay{"vae", replay_dit_vae},
    PartReplay{"scheduler tables", replay_flow_tables},
    PartReplay{"solver step test", replay_flow_solvers},
    PartReplay{"decision table: batched or sequential CFG", replay_branches},
    PartReplay{"SSIM / MS-SSIM metric", replay_measures},
};

}  // namespace

bool replay_dit_part(const std::string& task, const RecordedCase& recorded, const RunConfig& config,
                     TraceSink& trace) {
  const auto* const part = std::ranges::find_if(
      kParts, [&](const PartReplay& known) { return task.starts_with(known.task); });
  if (part == kParts.end()) return false;
  part->replay(recorded, config, trace);
  return true;
}

}  // namespace diptych
