#include "lib/pipelines/qwen3_dflash/trace_names.h"

#include <array>
#include <string_view>

namespace diptych {
namespace {

// Every name begins with its prompt, "p00", or with a row of the tokenizer's tables.
constexpr auto kStages = std::to_array<std::string_view>({"s", "c", "p"});

constexpr auto kWithin = std::to_array<std::string_view>(
    {"tokens", "prefill", "block", "sampling", "dflash", "plain",
     // of the prefill
     "embed", "layer", "final_norm", "context_feature", "kv", "logits_last", "prefill_probs",
     "prefill_noise",
     // of a block
     "target_hidden", "ctx_fc", "ctx_norm", "noise_embedding", "norm_out", "draft_kv",
     "draft_logits", "verify", "feature", "logits", "probs", "noise",
     // of a whole text
     "first_token", "draft_ids", "block_ids", "posterior_ids", "acceptance_lengths", "output_ids",
     "new_ids", "logit_gap"});

constexpr TraceNames kNames = {kStages, kWithin, {}, {}};

}  // namespace

const TraceNames& qwen3_dflash_trace_names() {
  return kNames;
}

}  // namespace diptych
