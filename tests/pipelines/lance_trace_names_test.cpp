// The order in which a run of Lance computes what it records.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/pipelines/lance/trace_names.h"
#include "lib/pipelines/registry.h"

namespace {

using namespace diptych;

// In order of computation.
const std::vector<std::string> kRun = {
    "tokens.input_ids",
    "pos.cond",
    "vit.patches_first8",
    "vit.block00",
    "vit.block10",
    "vit.merger",
    "vae.cond.mu",
    "vae.cond.latent",
    "prefill.cond.seg00.embeds",
    "prefill.cond.seg00.layer00.attn.q",
    "prefill.cond.seg00.layer00.attn.out",
    "prefill.cond.seg00.layer00.hidden",
    "prefill.cond.seg01.embeds",
    "kv.cond.layer00.key",
    "schedule.t",
    "latent.initial",
    "step000.time_embed",
    "step000.cond.layer00.hidden",
    "step000.v_cond",
    "step000.v_text_uncond",
    "step000.v_guided_raw",
    "step000.v_guided",
    "step000.latent",
    "step001.time_embed",
    "latent.final",
    "vae_decode.video",
    "output.frame_first_u8",
};

TEST_CASE("Lance: names of a trace sort in order of computation") {
  auto names = kRun;
  std::mt19937 random(7);
  std::ranges::shuffle(names, random);
  // As `compare` does, which knows no family.
  const TraceNames known = trace_names_of(names);
  std::ranges::sort(names, [&](const std::string& a, const std::string& b) {
    return computed_before(a, b, known);
  });
  CHECK(names == kRun);
}

}  // namespace
