// A request to a Qwen3 as its session reads it, made once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/pipelines/drafting/speculative_writer.h"
#include "lib/session/job.h"
#include "lib/text/tokenizer.h"

namespace diptych {

class Qwen3Checkpoint;

struct Qwen3Job final : Job {
  // Renders and tokenises what is asked. Throws InputError for what the checkpoint cannot serve.
  Qwen3Job(RunConfig config, const Qwen3Checkpoint& checkpoint);
  // Of a recorded prompt, which need not be the tokens of any text.
  Qwen3Job(RunConfig config, std::vector<std::int64_t> prompt, const Qwen3Checkpoint& checkpoint);

  std::vector<std::int64_t> prompt;  // ids, at least one
  SpeculativeRequest request;
  std::vector<std::string> stops;

  bool is_traced() const { return !config().trace.empty(); }

 private:
  void decode_inputs() override {}  // there are no pictures
};

using Qwen3Jobs = std::vector<const Qwen3Job*>;  // of one run

// Whether both ask for texts of the same kind, whatever they are about.
bool share_qwen3_forwards(const RunConfig& a, const RunConfig& b,
                          const Qwen3Checkpoint& checkpoint);

}  // namespace diptych
