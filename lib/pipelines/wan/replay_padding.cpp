#include "lib/pipelines/wan/replay_padding.h"

#include <array>
#include <utility>

#include "lib/base/error.h"
#include "lib/models/wan/wan.h"
#include "lib/pipelines/dit/texts.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

constexpr std::string_view kTask = "one transformer forward with four treatments";

struct Step {
  Tensor text;       // [n, text_dim]: the rows that are not padding
  Tensor latents;    // [1, channels, frames, height, width]
  Tensor timesteps;  // [1]
};

Step read_step(const RecordedCase& recorded) {
  const auto file = recorded.folder / "inputs.safetensors";
  const SafetensorsFile inputs = SafetensorsFile::open(file);
  const Tensor rows = inputs.view("prompt_embeds")[0];
  const Tensor own = rows.ne(0).any(-1).nonzero();
  if (own.numel() == 0) throw InputError("{}: prompt_embeds: all rows are zero", file.string());
  const std::int64_t length = own.max().item<std::int64_t>() + 1;
  return {rows.narrow(0, 0, length).clone(), inputs.view("x").clone(),
          at::full({1}, recorded_field<float>(recorded, "/timestep"))};
}

Tensor velocity(const WanTransformer& model, const Runtime& runtime, const Step& step,
                std::int64_t padded_to) {
  const Tensor& x = step.latents;
  const WanContext context =
      model.make_context({.rows = {step.text}, .padded_to = padded_to}, runtime.kernels);
  const WanPlan plan = model.plan(context, {x.size(2), x.size(3), x.size(4)},
                                  preferred_shared_keys(runtime, model.config.attention_head_dim));
  const WanTime time = model.embed_time(plan, step.timesteps, runtime.kernels);
  Tensor rows = model.embed_latents(plan, x.to(runtime.device), runtime.kernels);
  rows = model.run_blocks(plan, context, time, std::move(rows),
                          runtime.paint_attention.of(AttentionRole::self), runtime.kernels);
  return model.head(plan, time, rows, runtime.kernels);
}

}  // namespace

bool replay_wan_padding(const std::string& task, const RecordedCase& recorded,
                        const RunConfig& config, TraceSink& trace) {
  if (!task.starts_with(kTask)) return false;
  RunConfig exact = config;
  exact.dtype = DtypeChoice::float32;
  Log quiet(LogLevel::quiet);
  const Runtime runtime = make_runtime(exact, quiet);
  const auto folder = config.model / "transformer";
  const WanTransformer model = WanTransformer::load(
      Weights::open(folder, runtime.device, at::kFloat), WanConfig::load(folder / "config.json"));
  const Step step = read_step(recorded);
  const std::int64_t length = step.text.size(0);
  trace.record("context_length", at::full({1}, length, at::kLong));
  constexpr std::int64_t kShort = 64;
  for (const auto& [name, rows] : {std::pair{"v.padded_to_512_no_mask__reference", kWanTextRows},
                                   std::pair{"v.padded_to_64_no_mask", kShort},
                                   std::pair{"v.padded_to_512_masked_to_length", length},
                                   std::pair{"v.context_cut_to_length", length}}) {
    if (length <= rows) trace.record(name, velocity(model, runtime, step, rows));
  }
  return true;
}

}  // namespace diptych
