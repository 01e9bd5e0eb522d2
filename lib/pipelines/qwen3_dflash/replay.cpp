#include "lib/pipelines/qwen3_dflash/replay.h"

#include <array>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/qwen3_dflash/session.h"
#include "lib/pipelines/qwen3_dflash/settings.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/pipelines/recorded_values.h"
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

// A list of whole numbers that case.json has, too.
void check_list(std::string_view row, std::string_view what, const Ids& found,
                const Ids& expected) {
  if (found == expected) return;
  throw CheckFailed(fmt::format("{}: {} are [{}], expected [{}]", row, what, fmt::join(found, ", "),
                                fmt::join(expected, ", ")));
}

// One prompt of a case.
class RecordedPrompt {
 public:
  RecordedPrompt(const RecordedCase& recorded, std::size_t index)
      : recorded_(recorded), place_(fmt::format("/prompts/{}/", index)) {}

  std::string key() const { return recorded_field<std::string>(recorded_, place_ + "key"); }
  Ids ids(const char* name) const { return recorded_field<Ids>(recorded_, place_ + name); }
  bool has(const char* name) const {
    const std::string pointer = place_ + name;
    return has_field(recorded_, pointer) &&
           !recorded_.description.at(nlohmann::json::json_pointer(pointer)).is_null();
  }
  // What a user asks; nothing where the recorded ids are of no text.
  std::optional<std::string> asked() const {
    const char* name = is_chat() ? "chat_user" : "text";
    if (!has(name)) return std::nullopt;
    return recorded_field<std::string>(recorded_, place_ + name);
  }
  void add_values(RecordedValues& values) const {
    values.add_text("task", "/task", "chat");
    values.add_text("prompt_format", place_ + "chat_user", is_chat() ? "chat" : "raw");
    if (has("enable_thinking")) values.add<bool>("enable_thinking", place_ + "enable_thinking");
    values.add<std::int64_t>("max_tokens", place_ + "max_new_tokens");
    values.add<double>("temperature", place_ + "temperature");
    values.add<std::int64_t>("block_size", place_ + "block_size");
    if (has("seed")) values.add<std::uint64_t>("seed", place_ + "seed");
  }

 private:
  bool is_chat() const { return has("chat_user"); }

  const RecordedCase& recorded_;
  std::string place_;
};

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
      : checkpoint_(checkpoint), config_(config), log_(log) {}

  void run(const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (task == "tokenizer") return replay_tokenizer(recorded, trace);
    if (task != "qwen3_dflash_generate") {
      throw Unsupported("{}: task '{}' is not in this version",
                        (recorded.folder / "case.json").string(), task);
    }
    open_session(recorded);
    const auto prompts = recorded_field<std::vector<nlohmann::json>>(recorded, "/prompts").size();
    for (std::size_t i = 0; i < prompts; ++i)
      replay_prompt(recorded, RecordedPrompt(recorded, i), trace);
  }

 private:
  // Of the case's model and drafter; cases of the same ones share it.
  void open_session(const RecordedCase& recorded) {
    const auto folder = [&](const char* which) {
      return checkpoint_ / recorded_field<std::string>(recorded, fmt::format("/{}", which));
    };
    auto& draft_model = config_.own.get<Qwen3Settings>().draft_model;
    if (session_ && config_.model == folder("target") && draft_model == folder("drafter")) return;
    session_.reset();  // its weights go before others come
    config_.model = folder("target");
    draft_model = folder("drafter");
    session_ = std::make_unique<Qwen3Session>(config_, log_);
  }

  // As a user asks for it, or of recorded ids that are of no text.
  std::unique_ptr<Qwen3Job> make_job(const RecordedCase& recorded,
                                     const RecordedPrompt& prompt) const {
    const auto asked = prompt.asked();
    const RunConfig request = recorded_request(
        config_, recorded, [&](RecordedValues& values) { prompt.add_values(values); },
        {{asked.value_or(""), {}}});
    const Qwen3Checkpoint& checkpoint = session_->checkpoint();
    auto job = asked ? std::make_unique<Qwen3Job>(request, checkpoint)
                     : std::make_unique<Qwen3Job>(request, prompt.ids("input_ids"), checkpoint);
    job->request.vocab_limit = 0;  // the reference chooses ids without text, too
    job->request.stop_ids = prompt.has("stop_token_ids") ? prompt.ids("stop_token_ids") : Ids();
    return job;
  }

  void replay_prompt(const RecordedCase& recorded, const RecordedPrompt& prompt, TraceSink& trace) {
    const std::string key = prompt.key();
    const auto record = [&](std::string_view name, const Tensor& value) {
      trace.record(fmt::format("{}.{}", key, name), value);
    };
    const auto job = make_job(recorded, prompt);
    record("tokens.input_ids", whole_numbers(job->prompt));
    check_list(key, "input_ids", job->prompt, prompt.ids("input_ids"));
    const auto record_ids = [&](const char* way, const Ids& ids) {
      Ids all = job->prompt;
      all.insert(all.end(), ids.begin(), ids.end());
      record(fmt::format("{}.new_ids", way), whole_numbers(ids));
      record(fmt::format("{}.output_ids", way), whole_numbers(all));
    };
    TraceSink drafted = sink_for(kDraftedGlobs);
    const SpeculativeText text = write(*job, drafted);
    record_ids(kDraftedText, text.ids);
    for (const auto& [name, value] : drafted.tensors()) record(name, value);
    check_list(key, "acceptance_lengths", text.acceptance, prompt.ids("acceptance_lengths"));
    check_list(key, "new_ids", text.ids, prompt.ids("new_ids"));
    trace.count_row();
    // A case has plain texts of greedy prompts alone.
    if (!trace.wants(key + ".plain.new_ids")) return;
    job->request.block_size = 1;
    TraceSink plain = sink_for(kPlainGlobs);
    const Ids ids = write(*job, plain).ids;
    record_ids("plain", ids);
    record("plain.logit_gap", logit_gaps(plain, ids.size()));
  }

  SpeculativeText write(const Qwen3Job& job, TraceSink& sink) {
    SpeculativeObserver observer;
    observer.trace = [&](std::size_t) { return TextTrace(&sink, kDraftedText); };
    return session_->write({&job}, observer, progress_).front();
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
  RunConfig config_;
  Log& log_;
  Progress progress_{log_, ProgressStyle::none};
  std::unique_ptr<Qwen3Session> session_;
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
