#include "lib/pipelines/qwen3_dflash/replay.h"

#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/drafting/speculative_writer.h"
#include "lib/pipelines/qwen3_dflash/target.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/session/make_runtime.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

// What a case may hold of the tensors of a run with drafts, and of a plain one.
constexpr std::array kDraftedGlobs = {"prefill.*", "block000.*", "block001.*", "dflash.*",
                                      "sampling.*"};
constexpr std::array kPlainGlobs = {"prefill.logits_last", "*.verify.logits"};

Tensor whole_numbers(const Ids& ids) {
  return at::tensor(ids, at::kLong);
}

TraceSink sink_for(std::span<const char* const> globs) {
  return TraceSink(std::vector<std::string>(globs.begin(), globs.end()));
}

// One prompt of a case.
struct RecordedPrompt {
  std::string key;  // "p00"
  Ids ids;
  SpeculativeRequest request;
  std::optional<std::uint64_t> seed;
  Ids new_ids, acceptance;  // what came of it
};

// A list of whole numbers that case.json has, too.
void check_list(std::string_view row, std::string_view what, const Ids& found,
                const Ids& expected) {
  if (found == expected) return;
  throw CheckFailed(fmt::format("{}: {} are [{}], expected [{}]", row, what, fmt::join(found, ", "),
                                fmt::join(expected, ", ")));
}

RecordedPrompt read_prompt(const RecordedCase& recorded, std::size_t index) {
  const auto at = [&](const char* key) { return fmt::format("/prompts/{}/{}", index, key); };
  RecordedPrompt prompt;
  prompt.key = recorded_field<std::string>(recorded, at("key"));
  prompt.ids = recorded_field<Ids>(recorded, at("input_ids"));
  prompt.request.max_new_tokens = recorded_field<std::int64_t>(recorded, at("max_new_tokens"));
  prompt.request.block_size = recorded_field<std::int64_t>(recorded, at("block_size"));
  prompt.request.sampling.temperature = recorded_field<double>(recorded, at("temperature"));
  prompt.new_ids = recorded_field<Ids>(recorded, at("new_ids"));
  prompt.acceptance = recorded_field<Ids>(recorded, at("acceptance_lengths"));
  const auto given = [&](const char* key) {
    const std::string pointer = at(key);
    return has_field(recorded, pointer) &&
           !recorded.description.at(nlohmann::json::json_pointer(pointer)).is_null();
  };
  if (given("stop_token_ids"))
    prompt.request.stop_ids = recorded_field<Ids>(recorded, at("stop_token_ids"));
  if (given("seed")) prompt.seed = recorded_field<std::uint64_t>(recorded, at("seed"));
  return prompt;
}

// The difference of the two largest logits behind each new token's predecessor.
Tensor logit_gaps(const TraceSink& trace, std::size_t tokens) {
  std::map<std::string, Tensor, std::less<>> logits(trace.tensors().begin(), trace.tensors().end());
  std::vector<Tensor> rows = {logits.at("prefill.logits_last")};
  for (std::size_t i = 0; i + 1 < tokens; ++i)
    rows.push_back(logits.at(fmt::format("block{:03}.verify.logits", i))[0]);
  const Tensor best = std::get<0>(at::stack(rows).topk(2, 1));
  return best.select(1, 0) - best.select(1, 1);
}

class Replayer {
 public:
  Replayer(const fs::path& checkpoint, const RunConfig& config, Log& log)
      : checkpoint_(checkpoint), runtime_(make_runtime(config, log)) {}

  void run(const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (task == "tokenizer") return replay_tokenizer(recorded, trace);
    if (task != "qwen3_dflash_generate") {
      throw Unsupported("{}: task '{}' is not in this version",
                        (recorded.folder / "case.json").string(), task);
    }
    const Qwen3& target = load_target(recorded);
    const BlockDrafter& drafter = load_drafter(recorded, target.config);
    SpeculativeWriter writer(text_target(target), &drafter, runtime_);
    const auto prompts = recorded_field<std::vector<nlohmann::json>>(recorded, "/prompts").size();
    for (std::size_t i = 0; i < prompts; ++i)
      replay_prompt(read_prompt(recorded, i), writer, target.config.vocab_size, trace);
  }

 private:
  fs::path folder_of(const RecordedCase& recorded, const char* which) const {
    return checkpoint_ / recorded_field<std::string>(recorded, fmt::format("/{}", which));
  }

  const Qwen3& load_target(const RecordedCase& recorded) {
    const fs::path folder = folder_of(recorded, "target");
    const auto found = targets_.find(folder);
    if (found != targets_.end()) return found->second;
    const auto weights = Weights::open(folder, runtime_.device, runtime_.dtype);
    Qwen3 target = Qwen3::load(weights, Qwen3Config::load(folder / "config.json"));
    return targets_.emplace(folder, std::move(target)).first->second;
  }

  const BlockDrafter& load_drafter(const RecordedCase& recorded, const QwenConfig& target) {
    const fs::path folder = folder_of(recorded, "drafter");
    const auto found = drafters_.find(folder);
    if (found != drafters_.end()) return found->second;
    const auto weights = Weights::open(folder, runtime_.device, runtime_.dtype);
    const auto config = BlockDrafterConfig::load(folder / "config.json", target);
    return drafters_.emplace(folder, BlockDrafter::load(weights, config)).first->second;
  }

  void replay_prompt(const RecordedPrompt& prompt, SpeculativeWriter& writer, std::int64_t vocab,
                     TraceSink& trace) const {
    const auto record = [&](std::string_view name, const Tensor& value) {
      trace.record(fmt::format("{}.{}", prompt.key, name), value);
    };
    record("tokens.input_ids", whole_numbers(prompt.ids));
    const auto record_ids = [&](const char* way, const Ids& ids) {
      Ids all = prompt.ids;
      all.insert(all.end(), ids.begin(), ids.end());
      record(fmt::format("{}.new_ids", way), whole_numbers(ids));
      record(fmt::format("{}.output_ids", way), whole_numbers(all));
    };
    TraceSink drafted = sink_for(kDraftedGlobs);
    const SpeculativeText text = write(prompt, writer, vocab, drafted);
    record_ids(kDraftedText, text.ids);
    for (const auto& [name, value] : drafted.tensors()) record(name, value);
    check_list(prompt.key, "acceptance_lengths", text.acceptance, prompt.acceptance);
    check_list(prompt.key, "new_ids", text.ids, prompt.new_ids);
    trace.count_row();
    // A case has plain texts of greedy prompts alone.
    if (!trace.wants(prompt.key + ".plain.new_ids")) return;
    RecordedPrompt alone = prompt;
    alone.request.block_size = 1;
    TraceSink plain = sink_for(kPlainGlobs);
    const Ids ids = write(alone, writer, vocab, plain).ids;
    record_ids("plain", ids);
    record("plain.logit_gap", logit_gaps(plain, ids.size()));
  }

  static SpeculativeText write(const RecordedPrompt& prompt, SpeculativeWriter& writer,
                               std::int64_t vocab, TraceSink& sink) {
    NoiseRows noise;
    if (prompt.seed) noise = seeded_noise(std::span(&*prompt.seed, 1), vocab);
    const SpeculativeObserver observer{{},
                                       [&](std::size_t) { return TextTrace(&sink, kDraftedText); }};
    return writer.write(std::span(&prompt.ids, 1), prompt.request, noise, observer).front();
  }

  // Of texts and of what chats are rendered to, ids are tensors of the case and rows of its tables.
  void replay_tokenizer(const RecordedCase& recorded, TraceSink& trace) const {
    const auto tokenizer = load_byte_level_bpe(checkpoint_ / "target");
    const auto replay_row = [&](const std::string& row, const char* text) {
      const auto key = recorded_field<std::string>(recorded, row + "/key");
      const Ids ids =
          tokenizer->encode(recorded_field<std::string>(recorded, fmt::format("{}/{}", row, text)));
      trace.record(key + ".ids", whole_numbers(ids));
      check_list(key, "ids", ids, recorded_field<Ids>(recorded, row + "/ids"));
      trace.count_row();
      return ids;
    };
    const auto rows_of = [&](const char* table) {
      return recorded_field<std::vector<nlohmann::json>>(recorded, table).size();
    };
    for (std::size_t i = 0; i < rows_of("/strings"); ++i) {
      const std::string row = fmt::format("/strings/{}", i);
      const std::string found = tokenizer->decode(replay_row(row, "text"));
      const auto expected = recorded_field<std::string>(recorded, row + "/decoded");
      if (found != expected) {
        throw CheckFailed(fmt::format("{}: its ids become {}, expected {}", row, shown_json(found),
                                      shown_json(expected)));
      }
    }
    for (std::size_t i = 0; i < rows_of("/chats"); ++i)
      replay_row(fmt::format("/chats/{}", i), "rendered");
  }

  fs::path checkpoint_;
  Runtime runtime_;
  std::map<fs::path, Qwen3> targets_;
  std::map<fs::path, BlockDrafter> drafters_;
};

}  // namespace

CaseReplay replay_qwen3_dflash(const fs::path& checkpoint, const RunConfig& config, Log& log) {
  const auto replayer = std::make_shared<std::unique_ptr<Replayer>>();
  return [=, &log](const RecordedCase& recorded, TraceSink& trace) {
    if (*replayer == nullptr) *replayer = std::make_unique<Replayer>(checkpoint, config, log);
    (*replayer)->run(recorded, trace);
  };
}

}  // namespace diptych
