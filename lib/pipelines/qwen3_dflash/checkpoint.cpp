#include "lib/pipelines/qwen3_dflash/checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/qwen3_dflash/layout.h"
#include "lib/pipelines/qwen3_dflash/settings.h"
#include "lib/tensor/stored_tensors.h"
#include "lib/text/byte_level_bpe.h"
#include "lib/text/chat_template.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Qwen/Qwen3-8B, config.json.
Qwen3Config released_config() {
  Qwen3Config config;
  config.hidden_size = 4096;
  config.num_hidden_layers = 36;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.intermediate_size = 12288;
  config.vocab_size = 151936;
  config.max_position_embeddings = 40960;
  config.attention_bias = false;
  config.qk_norm = true;
  return config;
}

// The token that ends a turn: the tokenizer's, as the reference has it; in a folder without
// tokenizer_config.json the model's.
std::int64_t find_stop_id(const fs::path& folder, const Tokenizer& tokenizer) {
  std::error_code ignored;
  const fs::path file = folder / "tokenizer_config.json";
  if (!fs::exists(file, ignored)) {
    const auto json = read_json_object(folder / "config.json");
    const auto id = json.find("eos_token_id");
    if (id != json.end() && id->is_number_unsigned()) return id->get<std::int64_t>();
    throw InputError("{}: eos_token_id: found {}, expected a token id",
                     (folder / "config.json").string(),
                     id == json.end() ? "nothing" : shown_json(*id));
  }
  const auto json = read_json_object(file);
  auto token = json.value("eos_token", nlohmann::json());
  if (token.is_object()) token = token.value("content", nlohmann::json());
  const auto id = token.is_string() ? tokenizer.token_id(token.get<std::string>()) : std::nullopt;
  if (id) return *id;
  throw InputError("{}: eos_token: found {}, expected a token of the tokenizer", file.string(),
                   shown_json(token));
}

// "" where the chats of the folder are Qwen3's.
std::string why_no_chat(const fs::path& folder) {
  const auto found = find_chat_template(folder);
  if (!found) return fmt::format("{}: has no chat template", folder.string());
  const std::string_view missing = missing_in_qwen3_template(found->text);
  if (missing.empty()) return {};
  return fmt::format("{}: is not the template of Qwen3: it lacks {}", found->place, missing);
}

}  // namespace

// Random weights have the sizes of the folder's config, or of the released model.
Qwen3Checkpoint::Qwen3Checkpoint(const RunConfig& run, const Runtime& runtime)
    : runtime_(runtime), folder_(run.model), dummy_(run.load_format == LoadFormat::dummy) {
  if (folder_.empty() && !dummy_)
    throw InputError(Setting::absent("model"),
                     "missing; expected a Qwen3 checkpoint folder (or --load-format dummy)");
  if (folder_.empty()) {
    config_ = released_config();
    tokenizer_ = byte_tokenizer();
    stop_id_ = tokenizer_->token_id("<|im_end|>").value();
    weights_ = Weights::dummy(runtime.device, runtime.dtype);
  } else {
    open_folder();
  }
  const fs::path drafter = run.own.get<Qwen3Settings>().draft_model;
  if (!drafter.empty()) drafter_.emplace(drafter, config_, dummy_, runtime);
}

void Qwen3Checkpoint::open_folder() {
  require_folder(folder_, Setting::of("model"));
  if (!fs::exists(folder_ / "config.json") && fs::exists(folder_ / kRecordedTarget))
    throw InputError(Setting::of("model"), "{}: holds a model and its drafters; expected {}",
                     folder_.string(), (folder_ / kRecordedTarget).string());
  config_ = Qwen3Config::load(folder_ / "config.json");
  tokenizer_ = load_byte_level_bpe(folder_);
  stop_id_ = find_stop_id(folder_, *tokenizer_);
  why_no_chat_ = why_no_chat(folder_);
  weights_ = dummy_ ? Weights::dummy(runtime_.device, runtime_.dtype)
                    : Weights::open(folder_, runtime_.device, runtime_.dtype);
  if (!dummy_) check_qwen3_tensors(weights_, config_);  // ahead of the first byte
}

void Qwen3Checkpoint::require_chat() const {
  if (why_no_chat_.empty()) return;
  throw InputError(Setting::of("prompt_format", "chat"),
                   SettingText{why_no_chat_ + "; expected ", Setting::of("prompt_format", "raw"),
                               " and a prompt in the model's own format"});
}

void Qwen3Checkpoint::load(Progress& progress) {
  std::vector<Weights> sources = {weights_};
  if (drafter_) sources.push_back(drafter_->weights());
  constexpr std::uint64_t kMebi = 1 << 20;
  std::uint64_t total = 0, done = 0;
  for (const Weights& weights : sources) total += weights.total_bytes();
  progress.begin("load", static_cast<std::int64_t>(total / kMebi));  // MiB
  for (Weights& weights : sources) {
    weights.on_read([&](std::uint64_t bytes) {
      progress.update(static_cast<std::int64_t>((done += bytes) / kMebi));
    });
  }
  const MatrixQuantization quantization = {runtime_.quantization, runtime_.kernels.policy};
  {
    Weights::ReadAhead reading(weights_);
    target_ = Qwen3::load(weights_, config_, quantization);
    reading.finish();
  }
  if (drafter_) drafter_->load(quantization);
  for (Weights& weights : sources) weights.on_read({});
  progress.end();
}

std::string Qwen3Checkpoint::weights_hash(const std::stop_token& stop) const {
  std::string hash = fmt::format("{:.16}", weights_.hash(stop));
  if (drafter_) hash += fmt::format("-{:.16}", drafter_->weights().hash(stop));
  return hash;
}

void Qwen3Checkpoint::require_finite_weights() const {
  if (dummy_) return;
  require_finite(open_checkpoint(folder_));
  if (drafter_) drafter_->require_finite_weights();
}

StoredWeights stored_qwen3(const RunConfig& run) {
  if (run.load_format == LoadFormat::dummy || run.model.empty()) return {};
  return StoredWeights::of(open_checkpoint(run.model));
}

}  // namespace diptych
