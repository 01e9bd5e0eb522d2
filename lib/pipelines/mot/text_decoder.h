// One token after the other through the understanding experts. On CUDA, with `auto` attention,
// kernels that are not `reference` and these experts on the device, a step (embedding, layers,
// logits, the choice of the next token and the advance of all counters) is launched without waiting
// for the one before, as one graph unless that is not wished.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/models/qwen_mot/backbone.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/token_sampler.h"

namespace diptych {

struct DecodeStart {
  std::int64_t token = 0;        // the first to be fed
  std::int64_t stop = 0;         // ends the text; it is not fed
  std::int64_t position = 0;     // rope position of the first token
  std::int64_t vocab_limit = 0;  // ids from here on have no text
  std::int64_t max_tokens = 0;   // fed at most
  TokenSampling sampling;
  bool graph = true;  // where the decoder has one; else the same operations are launched one by one
};

// Called with the number of tokens fed so far; may throw to stop.
using DecodeProgress = std::function<void(std::int64_t fed)>;
// Called with the logits [vocab] behind fed token `index`, in order.
using LogitsFn = std::function<void(std::int64_t index, const Tensor& logits)>;
// What watches the rows of the forward of fed token `index`; it is shown "embeds" first.
using TokenObserver = std::function<MotObserver(std::int64_t index)>;

class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  // The row that the text is appended to; the caller fills it with the context before decode().
  virtual KvCache& cache() = 0;
  // Fed tokens, the first among them. `generator`: of sampled text.
  virtual std::vector<std::int64_t> decode(const DecodeStart& start, at::Generator& generator,
                                           const DecodeProgress& progress,
                                           const LogitsFn& logits) = 0;
};

// Why texts are written without a graph although device, attention and kernels are those of one:
// the kernel does not take the model's heads.
std::optional<std::string> missing_text_kernel(const QwenConfig& config, const Runtime& runtime);

// `capacity`: of the cache's one row: context and text. `observers`: empty: nobody watches, else
// there is no graph.
std::unique_ptr<TextDecoder> make_text_decoder(const MotBackbone& model, std::int64_t capacity,
                                               const Runtime& runtime,
                                               TokenObserver observers = {});

}  // namespace diptych
