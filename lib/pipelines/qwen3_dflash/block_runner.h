// The forwards of texts that are written together: the prefill of each prompt, then iterations over
// packed blocks. Positions, anchors, drafts, choices and acceptance stay on the device; an
// iteration reads back one small tensor at its end and waits for nothing before. Where texts are
// in it, and how many rows a block has, are all that the shapes depend on.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/models/dflash/dflash.h"
#include "lib/models/qwen3/qwen3.h"
#include "lib/pipelines/qwen3_dflash/writer_trace.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/token_sampler.h"

namespace diptych {

// What an iteration gave one text.
struct BlockResult {
  std::int64_t acceptance = 0;        // accepted drafts + 1
  std::vector<std::int64_t> new_ids;  // as many
};

struct BlockRunnerParts {
  const Qwen3& target;
  const DflashDrafter* drafter = nullptr;  // null: the target alone
  const Runtime& runtime;
  KvCache& target_cache;
  KvCache* drafter_cache = nullptr;  // of the target cache's rows and capacity
  TokenSampling sampling;
  std::int64_t vocab_limit = 0;
};

class BlockRunner {
 public:
  explicit BlockRunner(const BlockRunnerParts& parts);

  // Reads a prompt into a row of the caches and begins a text there. `noise`: [1, vocab] where
  // tokens are sampled. -> the first new token.
  std::int64_t prefill(std::int64_t row, std::span<const std::int64_t> prompt, const Tensor& noise,
                       TextTrace& trace);
  // The drafts of a block of `width` rows (at least 2) behind the anchor of each of the first
  // `traces.size()` rows: int64 [texts, width - 1].
  Tensor draft(std::int64_t width, std::span<TextTrace> traces);
  // Verifies them; undefined drafts: a width of 1. `noise` [texts * width, vocab] on the CPU, where
  // tokens are sampled. Waits for the device.
  std::vector<BlockResult> verify(const Tensor& drafts, const Tensor& noise,
                                  std::span<TextTrace> traces);
  // A text moves to the row of one that has ended.
  void move(std::int64_t from, std::int64_t to);
  // From here on blocks have one row, and features are not kept any longer.
  void drop_drafter() { drafter_ = nullptr; }

 private:
  // The rows of a call: `width` of each of the first `texts` rows, behind what they hold.
  struct Packed {
    Tensor positions, slots;  // int64 [texts * width]
    AttentionLengths lengths;
  };
  struct Rotation {
    Tensor cos, sin;  // float32 [capacity, head_dim / 2]
  };

  QwenRows rows_of(const Packed& packed, const Rotation& table) const;
  void pack(std::int64_t texts, std::int64_t width);
  // Collects features where they are defined.
  Tensor forward(const QwenRows& rows, Tensor x, const Tensor& features,
                 const QwenObserver& observer);
  Tensor read_prompt(std::int64_t row, std::int64_t begin, const Tensor& ids, TextTrace& trace);
  void write_context(QwenRows rows, const Tensor& features, std::span<TextTrace> traces);
  Tensor choose(const Tensor& logits, const Tensor& noise) const;
  Tensor empty_features(std::int64_t rows) const;  // undefined without a drafter
  void set_length(std::int64_t row, std::int64_t length);
  std::vector<BlockResult> read(const Tensor& acceptance, const Tensor& choices,
                                const Tensor& block, std::span<TextTrace> traces);
  void show_prefill(std::int64_t row, const Tensor& logits, const Tensor& noise,
                    TextTrace& trace) const;
  void show_draft(const Tensor& hidden, const Tensor& logits, std::span<TextTrace> traces) const;
  void show_verify(const Tensor& logits, const Tensor& features, const Tensor& noise,
                   std::span<TextTrace> traces) const;

  const Qwen3& target_;
  const DflashDrafter* drafter_;
  const Runtime& runtime_;
  const AttentionBackend& attention_;
  KvCache& target_cache_;
  KvCache* drafter_cache_;
  TokenSampling sampling_;
  std::int64_t vocab_limit_;
  Rotation target_rotation_, drafter_rotation_;
  Tensor starts_, anchors_;  // int64 [rows]: the position of each text's anchor, and its id
  Packed packed_;            // of the iteration that runs
};

}  // namespace diptych
