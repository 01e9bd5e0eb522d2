// The forwards of texts that are written together: the prefill of each prompt, then iterations over
// packed blocks. Positions, anchors, drafts, choices and acceptance stay on the device; an
// iteration reads back one small tensor at its end and waits for nothing before. Where texts are
// in it, and how many rows a block has, are all that the shapes depend on. Forwards of blocks are
// captured, each of these shapes once, and replayed, where that is wished and can be.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/models/block_drafter/block_drafter.h"
#include "lib/pipelines/drafting/block_attention.h"
#include "lib/pipelines/drafting/text_target.h"
#include "lib/pipelines/drafting/text_trace.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/token_sampler.h"

namespace diptych {

// What an iteration gave one text.
struct BlockResult {
  std::int64_t acceptance = 0;        // accepted drafts + 1
  std::vector<std::int64_t> new_ids;  // as many
};

struct BlockRunnerParts {
  const TextTarget& target;
  const BlockDrafter* drafter = nullptr;  // null: the target alone
  const Runtime& runtime;
  KvCache& target_cache;
  KvCache* drafter_cache = nullptr;  // of the target cache's rows and capacity
  TokenSampling sampling;
  std::int64_t vocab_limit = 0;
  bool graphs = true;  // where they can be had; else the same operations are launched one by one
  // As SpeculativeRequest::forced_acceptance.
  std::int64_t forced_acceptance = 0;
};

class BlockRunner {
 public:
  // Iterations that run_ahead() does at once, at most.
  static constexpr std::int64_t kMostAhead = 8;

  explicit BlockRunner(const BlockRunnerParts& parts);

  // Whether it does what one of these parts would: then its captured forwards serve again.
  bool serves(const BlockRunnerParts& parts) const;
  // Before the next texts; undoes drop_drafter().
  void restart() {
    drafter_ = parts_.drafter;
    shift_ = 0;
  }

  // Reads a prompt into a row of the caches and begins a text there. `noise`: [1, vocab] where
  // tokens are sampled. Waits for the device. -> the first new token.
  std::int64_t prefill(std::int64_t row, std::span<const std::int64_t> prompt, const Tensor& noise,
                       TextTrace& trace);
  // Begins the one text behind a context that lies in row 0 of the caches.
  void go_on(const TextContext& context);
  // Whether iterations of the first `traces.size()` rows with blocks of `width` rows are captured:
  // not where one is traced.
  bool captures(std::int64_t width, std::span<const TextTrace> traces);
  // Captures what is not yet captured of such an iteration, so that the first is no slower than
  // others. Texts and their caches stay as they are.
  void prepare(std::int64_t width, std::span<const TextTrace> traces);
  // Makes the drafts of a block of `width` rows (at least 2) behind the anchor of each of the first
  // `traces.size()` rows.
  void draft(std::int64_t width, std::span<TextTrace> traces);
  // Verifies them; a width of 1 has none. `noise` [texts * width, vocab] on the CPU, where tokens
  // are sampled. Waits for the device.
  std::vector<BlockResult> verify(std::int64_t width, const Tensor& noise,
                                  std::span<TextTrace> traces);
  // As many verify() of a width of 1, greedy, for the one text that is left, none of which waits
  // for the one before; for whom captures() is true. `take` is given the results in order until it
  // returns false: the text then ends with that one, and what follows it is as if it never was.
  void run_ahead(std::int64_t count, const std::function<bool(const BlockResult&)>& take);
  // A text moves to the row of one that has ended.
  void move(std::int64_t from, std::int64_t to);
  // From here on blocks have one row, and features are not kept any longer.
  void drop_drafter() { drafter_ = nullptr; }

 private:
  struct Rotation {
    Tensor cos, sin;  // float32 [capacity, head_dim / 2]
  };
  // The rows of a call.
  struct Packed {
    Tensor positions, slots;  // int64 [rows]
    AttentionLengths lengths;
  };
  // `width` rows of each of the first `texts` texts, behind what they hold. Its tensors stay where
  // they are; a forward reads and writes nothing else that outlasts it, but caches and anchors.
  struct Block {
    std::int64_t texts = 0, width = 0;
    bool on_device = false;  // attention reads lengths there, and nothing waits
    Packed packed;
    Tensor offsets;      // int64 [1, width], of a text's rows from its anchor
    Tensor first_slots;  // int64 [texts, 1]
    Tensor drafts;       // int64 [texts, width - 1]
    Tensor noise;        // float32 [texts * width, vocab], where tokens are sampled
    // int64 [kMostAhead, texts, 1 + 2 * width]: acceptance, choices, and the block itself, of as
    // many iterations, one after the other and from the front again.
    Tensor results;
    Tensor place;           // int64 [1]: of the next iteration in them
    std::int64_t next = 0;  // the same, for the host
  };
  enum class Forward { draft, verify, verify_for_drafts };

  const AttentionBackend& attention_of(const Block& block) const;
  QwenRows target_rows(const Packed& packed) const;
  QwenRows drafter_rows(const Packed& packed) const;
  static QwenRows rows_at(const Tensor& positions, const Packed& packed, const Rotation& table);
  Block& block_of(std::int64_t texts, std::int64_t width);
  void follow_lengths(Block& block, std::int64_t iterations) const;
  void place_rows(const Block& block) const;
  Forward verification() const;
  RepeatedWork work_of(Block& block, Forward forward, std::int64_t times);
  void run(Block& block, std::int64_t times, std::span<TextTrace> traces);  // verifications
  void settle();
  void launch_draft(const Block& block, std::span<TextTrace> traces);
  void launch_verify(const Block& block, std::span<TextTrace> traces);
  void take_noise(Block& block, const Tensor& noise);
  Tensor noise_room(const Block& block);
  // Collects features where they are defined.
  Tensor forward(const QwenRows& rows, Tensor x, const Tensor& features,
                 const AttentionBackend& attention, const QwenObserver& observer);
  Tensor read_prompt(std::int64_t row, std::int64_t begin, const Tensor& ids, TextTrace& trace);
  void write_context(QwenRows rows, const Tensor& features, std::span<TextTrace> traces);
  Tensor empty_features(std::int64_t rows) const;  // undefined without a drafter
  void set_length(std::int64_t row, std::int64_t length);
  Tensor acceptance_of(const Block& block, const Tensor& choices) const;  // int64 [texts]
  BlockResult read(const Block& block, const Tensor& numbers, std::int64_t row, TextTrace& trace);
  void show_prefill(std::int64_t row, const Tensor& logits, const Tensor& noise,
                    TextTrace& trace) const;
  void show_draft(const Block& block, const Tensor& hidden, const Tensor& logits,
                  std::span<TextTrace> traces) const;
  void show_verify(const Block& block, const Tensor& logits, const Tensor& features,
                   std::span<TextTrace> traces) const;

  BlockRunnerParts parts_;
  const TextTarget& target_;
  const BlockDrafter* drafter_;
  const Runtime& runtime_;
  const AttentionBackend& attention_;  // of prompts
  BlockAttention block_attention_;     // of blocks that are on the device
  KvCache& target_cache_;
  KvCache* drafter_cache_;
  TokenSampling sampling_;
  std::int64_t vocab_limit_;
  std::int64_t shift_ = 0;  // from rows to the positions by which the target turns them
  Rotation target_rotation_, drafter_rotation_;
  Tensor starts_, anchors_;  // int64 [rows]: the position of each text's anchor, and its id
  std::map<std::pair<std::int64_t, std::int64_t>, Block> blocks_;  // by texts and width
  std::map<std::int64_t, Tensor> noise_;  // by width: float32 [cache rows * width, vocab]
  std::unique_ptr<LaunchGraphs> graphs_;  // once something is captured
  std::set<std::int64_t> captured_;       // keys of graphs_
  bool draft_pending_ = false;            // launched with the next verification
  bool settled_ = true;  // nothing is launched on another stream than that of graphs
};

}  // namespace diptych
