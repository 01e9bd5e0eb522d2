#include "lib/models/wan_vae/trace.h"

#include <fmt/format.h>

namespace diptych {
namespace {

// "encoder.down3" -> "down_blocks3"; `step` stands behind the side.
std::string golden_step(std::string_view step) {
  if (step == "conv1") return "conv_in";
  if (step == "middle0") return "mid_resnet";
  if (step == "middle1") return "mid_attn";
  if (step == "middle2") return "mid_block";
  for (const std::string_view stage : {"down", "up"}) {
    if (step.starts_with(stage))
      return fmt::format("{}_blocks{}", stage, step.substr(stage.size()));
  }
  return std::string(step);
}

}  // namespace

WanVaeObserver wan_vae_trace_to(TraceSink& trace) {
  return [&trace](std::int64_t chunk, std::string_view name, const Tensor& value) {
    const std::size_t dot = name.find('.');
    const std::string_view side = name.substr(0, dot) == "encoder" ? "encode" : "decode";
    trace.record(fmt::format("{}.chunk{:02}.{}", side, chunk, golden_step(name.substr(dot + 1))),
                 value.unsqueeze(0));
  };
}

}  // namespace diptych
