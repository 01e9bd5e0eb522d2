// Writes texts with a language model, alone or with a drafter: each iteration drafts a block,
// verifies all of it in one forward of the target and keeps what the target would have written
// itself. specs: dflash.md sections 6 to 8. Port of z-lab/dflash @44947fb, dflash/model.py
// (dflash_generate), with static buffers: nothing is cropped, lengths are counters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/models/block_drafter/block_drafter.h"
#include "lib/pipelines/drafting/text_target.h"
#include "lib/pipelines/drafting/text_trace.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/token_sampler.h"

namespace diptych {

struct SpeculativeRequest {
  std::int64_t max_new_tokens = 2048;  // at least 1
  std::int64_t block_size = 0;         // 0: the drafter's; 1: the target alone
  std::vector<std::int64_t> stop_ids;  // empty: no text stops by itself
  TokenSampling sampling;              // a temperature below 1e-5 is greedy
  // Ids from here on have no text and are never chosen. 0: the model's vocab_size.
  std::int64_t vocab_limit = 0;
  // Leave the drafter out where it is measured, during the run, to make texts slower. Greedy texts
  // stay the same; sampled ones are others then, as well distributed, and depend on the clock.
  bool may_switch_off = false;
  // For measuring: each block of drafts gives as many tokens, the model's own choices behind its
  // rows, whatever the drafts are. At most the block. 0: those that the rule accepts.
  std::int64_t forced_acceptance = 0;
  // On CUDA: iterations are CUDA graphs where they can be (why_not_on_device) and no prompt is
  // traced; else the same operations are launched one by one.
  bool graphs = true;

  bool operator==(const SpeculativeRequest&) const = default;
};

struct SpeculativeText {
  // New tokens, at most max_new_tokens. The first stop id is kept as the last.
  std::vector<std::int64_t> ids;
  // Accepted drafts + 1 of each iteration, not cut by stop or length; 1 where nothing was drafted.
  std::vector<std::int64_t> acceptance;
  std::string finish_reason;  // kFinishedItself or kFinishedByLimit
  double prefill_seconds = 0;
  // Of decoding, up to this text's end: from behind the prefill of all prompts, what is captured
  // for the first block and, unless that is captured, its drafter call.
  double seconds = 0;
  bool switched_off = false;  // the drafter was left out before this text had ended
};

// What looks on while texts are written. Each may be empty.
struct SpeculativeObserver {
  // New tokens that are decided, cut as SpeculativeText::ids is; never none. false: the prompt ends
  // here, as if by itself (a stop string was met). May throw to stop everything.
  std::function<bool(std::size_t prompt, std::span<const std::int64_t> ids)> accepted;
  // Records the tensors of a prompt. A prompt that is traced enters the target in one piece.
  std::function<TextTrace(std::size_t prompt)> trace;
};

// Exponential(1) noise of sampled tokens, for as many rows of logits: float32 [rows, vocab_size] on
// the CPU. It is asked for one row at the prefill, then for a block's rows each iteration, and used
// on every device, so that a GPU draws the same as the CPU.
using NoiseRows = std::function<Tensor(std::size_t prompt, std::int64_t rows)>;
// A generator of its own for each prompt: what torch.multinomial draws on the CPU behind
// torch.manual_seed(seed).
NoiseRows seeded_noise(std::span<const std::uint64_t> seeds, std::int64_t vocab_size);

class BlockRunner;
struct BlockRunnerParts;

class SpeculativeWriter {
 public:
  // `drafter`: null for the target alone. It, the runtime and what the target asks must outlive the
  // writer. Uses the runtime's read_attention.
  SpeculativeWriter(TextTarget target, const BlockDrafter* drafter, const Runtime& runtime);
  SpeculativeWriter(const SpeculativeWriter&) = delete;
  SpeculativeWriter& operator=(const SpeculativeWriter&) = delete;
  ~SpeculativeWriter();
  // One text for each prompt. Prompts enter one by one and are then verified in shared forwards,
  // each with its own acceptance and end; those that have ended leave the batch. Several texts at
  // once equal those of one at a time up to rounding, which in float32 changes no id unless two
  // logits are as near as that. `noise` may be empty where nothing is sampled. Throws InputError as
  // TokenSampling::check, Interrupted, and NotFinite for logits that are NaN or infinite.
  std::vector<SpeculativeText> write(std::span<const std::vector<std::int64_t>> prompts,
                                     const SpeculativeRequest& request, const NoiseRows& noise,
                                     const SpeculativeObserver& observer);

  // The same of one text behind a context that the caller reads. First, for the rows of a context
  // and the request:
  KvCache& make_room(std::int64_t context, const SpeculativeRequest& request);
  // whose row 0 takes the context's keys and values; and, where there is a drafter, what the
  // target's layers gave for the context's rows [first, first + rows) (BlockDrafter::collect).
  void add_features(std::int64_t first, const Tensor& features);
  // Then the text. Its ids are those behind the first token. Nothing is recorded.
  SpeculativeText go_on(const TextContext& context, const SpeculativeRequest& request,
                        const NoiseRows& noise, const SpeculativeObserver& observer);
  std::int64_t capacity() const { return target_cache_ ? target_cache_->capacity() : 0; }

 private:
  void make_caches(std::int64_t rows, std::int64_t capacity, bool drafts);
  std::unique_ptr<BlockRunner> take_runner(const BlockRunnerParts& parts);
  std::vector<SpeculativeText> write_with(std::span<const std::vector<std::int64_t>> prompts,
                                          const TextContext* context,
                                          const SpeculativeRequest& request, const NoiseRows& noise,
                                          const SpeculativeObserver& observer);

  const TextTarget target_;
  const BlockDrafter* drafter_;
  const Runtime& runtime_;
  std::optional<KvCache> target_cache_, drafter_cache_;  // kept from call to call, grown as needed
  // With what they have captured, for later calls: of the target alone, and with the drafter.
  std::array<std::unique_ptr<BlockRunner>, 2> runners_;
};

}  // namespace diptych
