#include "lib/pipelines/qwen3_dflash/job.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/qwen3_dflash/checkpoint.h"
#include "lib/pipelines/qwen3_dflash/memory.h"
#include "lib/pipelines/qwen3_dflash/settings.h"
#include "lib/text/chat_messages.h"

namespace diptych {
namespace {

// What is asked, in the format that the checkpoint was trained on.
std::string render_chat(const RunConfig& run, const Qwen3Settings& own) {
  ChatRequest chat;
  if (!own.messages.empty())
    chat = about(Setting::of("messages"), [&] { return read_chat_messages(own.messages); });
  std::vector<ChatMessage>& messages = chat.messages;
  for (const ChatTurn& turn : run.history) messages.push_back({turn.role, turn.text});
  const bool has_system = !messages.empty() && messages.front().role == ChatRole::system;
  if (!own.system.empty() && has_system)
    throw InputError(Setting::of("system"),
                     SettingText{"given together with a system message of ",
                                 Setting::of("messages"), "; expected one of them"});
  if (!own.system.empty()) messages.insert(messages.begin(), {ChatRole::system, own.system});
  // A conversation in a file may end with what is asked.
  const std::string prompt = run.prompt();
  if (!prompt.empty() || own.messages.empty()) messages.push_back({ChatRole::user, prompt});
  if (messages.back().role == ChatRole::assistant || messages.back().role == ChatRole::system)
    throw InputError(Setting::absent("prompt"),
                     "not given; the messages end with one of the {}, expected what the user says "
                     "next",
                     name_of(messages.back().role));
  chat.enable_thinking = own.enable_thinking;
  return about(Setting::of("messages"), [&] { return render_qwen3_chat(chat); });
}

// What has a meaning in a conversation alone.
void refuse_chat_settings(const RunConfig& run, const Qwen3Settings& own) {
  const Setting raw = Setting::of("prompt_format", "raw");
  const auto refuse = [&](std::string_view field) {
    throw InputError(Setting::of(field), SettingText{"has no meaning with ", raw});
  };
  if (!own.system.empty()) refuse("system");
  if (!own.messages.empty()) refuse("messages");
  if (own.enable_thinking) refuse("enable_thinking");
  if (!run.history.empty()) throw InputError(raw, "a conversation has a format; expected chat");
}

// `block`: of the drafter, where none is asked for. A block of 1 has no drafts: what drafting is
// held against.
void check_forced_acceptance(const Qwen3Settings& own, LoadFormat weights, std::int64_t block) {
  const Setting forced = Setting::of("forced_acceptance", std::to_string(own.forced_acceptance));
  if (own.draft_model.empty())
    throw InputError(Setting::of("forced_acceptance"),
                     SettingText{"given without ", Setting::of("draft_model", "DIR")});
  if (weights != LoadFormat::dummy)
    throw InputError(forced, SettingText{"the text would not be the model's; expected ",
                                         Setting::of("load_format", "dummy")});
  if (own.adaptive_drafting)
    throw InputError(forced, SettingText{"given together with ", Setting::of("adaptive_drafting"),
                                         "; expected one of them"});
  if (block > 1 && own.forced_acceptance > block)
    throw InputError(forced, "a block has {} tokens; expected at most as many", block);
}

// The same, once what it says of drafts can be served.
const RunConfig& checked(const RunConfig& run, const Qwen3Checkpoint& checkpoint) {
  const auto own = run.own.get<Qwen3Settings>();
  require_drafter(own);
  if (own.adaptive_drafting && own.draft_model.empty())
    throw InputError(Setting::of("adaptive_drafting"),
                     SettingText{"given without ", Setting::of("draft_model", "DIR")});
  if (own.forced_acceptance > 0)
    check_forced_acceptance(own, run.load_format,
                            drafted_block(checkpoint.drafter(), own.block_size));
  return run;
}

// What is asked, rendered and tokenised.
std::vector<std::int64_t> tokens_of(const RunConfig& run, const Qwen3Checkpoint& checkpoint) {
  const auto own = run.own.get<Qwen3Settings>();
  if (own.prompt_format == PromptFormat::raw) {
    refuse_chat_settings(run, own);
    return checkpoint.tokenizer().encode(run.prompt());
  }
  checkpoint.require_chat();
  return checkpoint.tokenizer().encode(render_chat(run, own));
}

void check_length(const Qwen3Job& job, const QwenConfig& model) {
  const std::int64_t room = model.max_position_embeddings - std::ssize(job.prompt);
  if (job.request.max_new_tokens <= room) return;
  if (room < 1)
    throw InputError(Setting::of("prompt"), "has {} tokens, the model {} positions; expected fewer",
                     job.prompt.size(), model.max_position_embeddings);
  throw InputError(SettingProblem{
      Setting::of("max_tokens"),
      fmt::format("{}", job.request.max_new_tokens),
      {fmt::format(", but the prompt has {} tokens and the model {} positions; expected at most {}",
                   job.prompt.size(), model.max_position_embeddings,
                   std::max<std::int64_t>(room, 0))}});
}

SpeculativeRequest request_of(const RunConfig& run, const Qwen3Checkpoint& checkpoint) {
  const auto own = run.own.get<Qwen3Settings>();
  SpeculativeRequest request;
  request.max_new_tokens = run.text.max_tokens;
  request.block_size = own.block_size;
  const bool ends_itself = !own.ignore_eos && own.forced_acceptance == 0;
  if (ends_itself) request.stop_ids = {checkpoint.stop_id()};
  request.sampling = {run.text.temperature, run.text.top_k, run.text.top_p};
  constexpr double kGreedy = 1e-5;  // as the reference
  if (request.sampling.temperature < kGreedy) request.sampling.temperature = 0;
  request.vocab_limit = std::min(checkpoint.tokenizer().size(), checkpoint.config().vocab_size);
  request.may_switch_off = own.adaptive_drafting;
  request.forced_acceptance = own.forced_acceptance;
  request.graphs = !run.enforce_eager;
  return request;
}

}  // namespace

Qwen3Job::Qwen3Job(RunConfig of, const Qwen3Checkpoint& checkpoint)
    : Qwen3Job(of, tokens_of(checked(of, checkpoint), checkpoint), checkpoint) {}

Qwen3Job::Qwen3Job(RunConfig of, std::vector<std::int64_t> ids, const Qwen3Checkpoint& checkpoint)
    : Job(std::move(of)), prompt(std::move(ids)) {
  const RunConfig& run = config();
  const auto own = run.own.get<Qwen3Settings>();
  if (prompt.empty())
    throw InputError(Setting::of("prompt"), "is empty; expected a text to go on with");
  const auto beyond = std::ranges::max_element(prompt);
  if (*beyond >= checkpoint.config().vocab_size)
    throw InputError("the tokenizer gives token {}, but the model's vocab_size is {}", *beyond,
                     checkpoint.config().vocab_size);
  request = request_of(run, checkpoint);
  request.sampling.check();
  // A text that draws would draw other numbers where it is written without drafts.
  if (own.adaptive_drafting && request.sampling.temperature > 0)
    throw InputError(
        Setting::of("adaptive_drafting"),
        SettingText{"given together with ",
                    Setting::of("temperature", fmt::format("{}", run.text.temperature)),
                    ": the text would depend on the clock; expected one of them"});
  stops = own.stop;
  check_length(*this, checkpoint.config());
}

bool share_qwen3_forwards(const RunConfig& a, const RunConfig& b,
                          const Qwen3Checkpoint& checkpoint) {
  return a.trace.empty() && b.trace.empty() &&
         request_of(a, checkpoint) == request_of(b, checkpoint);
}

}  // namespace diptych
