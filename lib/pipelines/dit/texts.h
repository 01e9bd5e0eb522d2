// The rows that a T5 or UMT5 encoder makes of prompts. It is as large as a transformer and is
// needed for a moment: it is loaded for the texts that are asked for, and goes behind them.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/log.h"
#include "lib/models/padded_texts.h"
#include "lib/models/umt5/umt5.h"
#include "lib/runtime/runtime.h"
#include "lib/tensor/weights.h"
#include "lib/text/unigram.h"

namespace diptych {

using TokenIds = std::vector<std::int64_t>;

// How the equal keys of the texts' padding enter the attention of a transformer.
SharedKeys preferred_shared_keys(const Runtime& runtime, std::int64_t head_dim);

class DitTexts {
 public:
  // `folder`: of the checkpoint, with tokenizer and text_encoder; empty: random weights of that
  // config, and bytes for tokens. Reads the tokenizer and headers. Throws InputError.
  DitTexts(const std::filesystem::path& folder, Umt5Config config, const Weights& weights,
           const Runtime& runtime);

  // Ids of a text, with the end mark, at most kMostIds of them; says once where a text was cut.
  // `setting`: the field of the text, for that message.
  TokenIds tokenize(std::string_view text, std::string_view setting, Log& log) const;
  static constexpr std::int64_t kMostIds = 512;

  // Texts that are to come: encode() takes the next ones of them along, since it loads the encoder.
  void expect(const std::vector<TokenIds>& texts);
  // Encodes those of the texts that are not kept yet. `room`: bytes of the device that the encoder
  // may take; where it needs more it runs on the CPU, which is said. nullopt: no limit.
  void encode(const std::vector<TokenIds>& texts, std::optional<std::int64_t> room, Log& log,
              Progress& progress);
  // [n, d_model] of a text that the last encode() was asked for, on the CPU in the run's dtype.
  const Tensor& rows(const TokenIds& ids) const { return kept_.at(ids); }

  const Weights& weights() const { return weights_; }
  const Umt5Config& config() const { return config_; }
  // The most that encoding these texts takes of the device, the weights among it.
  std::int64_t bytes(const std::vector<TokenIds>& texts) const;

 private:
  std::vector<TokenIds> missing(const std::vector<TokenIds>& texts);
  // The encoder's weights, on the device or on the CPU.
  Weights placed(std::int64_t needed, std::optional<std::int64_t> room, Log& log) const;

  const Runtime& runtime_;
  Umt5Config config_;
  Weights weights_;  // of the device
  std::optional<UnigramTokenizer> tokenizer_;
  std::map<TokenIds, Tensor> kept_;
  std::deque<TokenIds> expected_;
};

}  // namespace diptych
