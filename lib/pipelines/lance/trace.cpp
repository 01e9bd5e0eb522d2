#include "lib/pipelines/lance/trace.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "lib/pipelines/lance/job.h"

namespace diptych {
namespace {

Tensor ints(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

// decode.*: rows of the first and the last token, logits of all.
class AnswerTrace final : public MotTextTrace {
 public:
  AnswerTrace(TraceSink& sink, const LanceTrace& names, std::int64_t eos)
      : sink_(sink), names_(names), eos_(eos) {}

  void see(std::int64_t, const Tensor& logits) override {
    logits_.push_back(logits.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  }

  std::function<MotObserver(std::int64_t index)> observers() override {
    return [this](std::int64_t index) -> MotObserver {
      last_.clear();
      return [this, index](std::string_view what, const MotRows& rows) {
        const std::string name = names_.row_name(what);
        if (name.empty() || name.find(".attn.") != std::string::npos) return;
        if (index == 0) sink_.record("decode.step000." + name, rows.und);
        last_[name] = rows.und.to(at::kCPU, at::kFloat, false, /*copy=*/true);
      };
    };
  }

  void finish(const std::vector<std::int64_t>& fed, bool by_limit) override {
    std::vector<std::int64_t> ids(fed.begin() + 1, fed.end());
    if (!by_limit) ids.push_back(eos_);
    sink_.record("decode.token_ids", ints(ids));
    sink_.record("decode.logits", at::stack(logits_));
    if (fed.size() < 2) return;
    for (const auto& [name, rows] : last_)
      sink_.record(fmt::format("decode.step{:03}.{}", fed.size() - 1, name), rows);
  }

 private:
  TraceSink& sink_;
  const LanceTrace& names_;
  std::int64_t eos_;
  std::vector<Tensor> logits_;
  std::map<std::string, Tensor> last_;  // of the token that was fed last
};

// Tokens of the rows of all blocks of these kinds.
std::vector<std::int64_t> rows_of(const LanceLayout& layout,
                                  std::initializer_list<LanceBlockKind> kinds) {
  std::vector<std::int64_t> rows;
  for (const LanceBlock& block : layout.blocks) {
    if (std::ranges::find(kinds, block.kind) == kinds.end()) continue;
    for (std::int64_t i = 0; i < block.grid.rows(); ++i) rows.push_back(block.first_row() + i);
  }
  return rows;
}

}  // namespace

std::string LanceTrace::call_name(const BranchContexts& branch, std::size_t segment) const {
  return fmt::format("prefill.{}.seg{:02}", branch.name, segment);
}

std::string LanceTrace::row_name(std::string_view what) const {
  if (what == "final_norm") return "norm_out";
  return what == "position_ids" ? std::string() : std::string(what);
}

void LanceTrace::record_tokens() const {
  const LanceLayout& layout = job_.layout;
  using enum LanceBlockKind;
  std::vector<std::int64_t> modality;
  for (const LanceModality each : layout.modality)
    modality.push_back(static_cast<std::int64_t>(each));
  sink().record("tokens.input_ids", ints(layout.ids));
  sink().record("tokens.modality", ints(modality));
  std::vector<std::int64_t> targets = rows_of(layout, {target});
  if (job_.task == LanceTask::i2v)  // its first frame is given
    targets.erase(targets.begin(), targets.begin() + job_.paint.clean_rows.front());
  sink().record("tokens.target_indexes", ints(targets));
  sink().record("tokens.vae_indexes", ints(rows_of(layout, {source, target})));
  sink().record("tokens.vit_indexes", ints(rows_of(layout, {vit})));
  std::vector<std::int64_t> grids, sizes;
  for (const LanceBlock& block : layout.blocks) {
    const LanceGrid& grid = block.grid;
    grids.insert(grids.end(), {grid.t, 2 * grid.h, 2 * grid.w});
    if (block.kind == vit) continue;
    const ImageSize size = diptych::decoded_size(grid);
    sizes.insert(sizes.end(), {diptych::decoded_frames(grid), size.height, size.width});
  }
  sink().record("tokens.video_grid_thw", ints(grids).view({-1, 3}));
  sink().record("tokens.video_sizes", ints(sizes).view({-1, 3}));
}

// What is read; of a question, as many more as its answer may have tokens.
void LanceTrace::record_positions() const {
  if (job_.answers()) {
    const LanceLayout& read = job_.read_layout();
    const Tensor known = positions(read);
    const std::int64_t next = known.max().item<std::int64_t>() + 1;
    const Tensor more = at::arange(next, next + job_.config().text.max_tokens, at::kLong);
    return sink().record("pos.cond", at::cat({known, more.expand({3, more.size(0)})}, 1));
  }
  const LanceLayout uncond = job_.layout.without_caption();
  sink().record("pos.cond", positions(job_.layout));
  sink().record("pos.cond.raw", raw_positions(job_.layout));
  sink().record("pos.text_uncond", positions(uncond));
  sink().record("pos.text_uncond.raw", raw_positions(uncond));
}

// The calls that are made for this branch.
void LanceTrace::record_calls(const BranchContexts& branch) const {
  const LanceLayout& layout = job_.read_layout();
  const bool uncond = branch.name != "cond";
  const LanceReading reading =
      uncond ? text_unconditional_reading(layout, job_.uncond_ids) : conditional_reading(layout);
  for (std::size_t i = 0; i < reading.context.size(); ++i) {
    if (branch.calls.at(i) < 0) continue;
    const auto& [split, position_ids] = reading.context[i];
    const std::string name = call_name(branch, i);
    const bool causal = split.mode == LanceSplitMode::causal;
    sink().record(name + ".range", ints({split.begin, split.end, causal ? 1 : 0}));
    sink().record(name + ".position_ids", position_ids);
  }
}

void LanceTrace::contexts(const PrefilledContexts& contexts) {
  record_tokens();
  record_positions();
  for (const BranchContexts& branch : contexts.branches()) {
    record_calls(branch);
    const auto first_own =
        std::ranges::find_if(branch.calls, [](std::int64_t c) { return c >= 0; });
    const auto segment = static_cast<std::size_t>(first_own - branch.calls.begin());
    const std::int64_t from = branch.samples.front().length_before(segment);
    trace_cache(contexts, branch, branch.name == "cond" ? "cond" : "text_uncond_tail", from,
                sink());
  }
}

void LanceTrace::start(const TracedStart& start) {
  const FlowSchedule& schedule = start.schedule;
  sink().record("schedule.t", at::tensor(schedule.times));
  sink().record("schedule.dt", schedule.step_sizes());
  const std::int64_t rows = start.latent.size(0);
  const bool begins_clean = job_.task == LanceTask::i2v;
  const bool reads_source = source_.defined() && !begins_clean;
  sink().record("latent.initial", reads_source
                                      ? at::cat({source_.to(at::kCPU), start.latent.to(at::kCPU)})
                                      : start.latent);
  const std::int64_t clean = begins_clean   ? job_.paint.clean_rows.front()
                             : reads_source ? source_.size(0)
                                            : 0;
  const std::int64_t noisy = begins_clean ? rows - clean : rows;
  const Tensor timestep = at::cat({at::zeros({clean}), at::ones({noisy})});
  sink().record("pre.timestep", timestep);
  sink().record("step000.timestep", timestep);
}

void LanceTrace::step_inputs(std::int64_t step, const Tensor& time, const Tensor& projected) {
  sink().record(fmt::format("step{:03}.time_embed", step), time);
  sink().record(fmt::format("step{:03}.vae2llm", step), projected);
}

void LanceTrace::velocities(const TracedVelocities& of) {
  const auto record = [&](std::string_view what, const Tensor& value) {
    sink().record(fmt::format("step{:03}.{}", of.step, what), value);
  };
  record("t", at::full({1}, of.t, at::kFloat));
  record("v_cond", of.v.front());
  if (of.guidance.terms_at(of.t) == 0) return;
  const GuidanceTerm& term = of.guidance.terms.front();
  const Tensor& uncond = of.v[static_cast<std::size_t>(*of.contexts.context_of(term.branch))];
  const Tensor raw = uncond + term.scale * (of.v.front() - uncond);
  record("v_text_uncond", uncond);
  record("v_guided_raw", raw);
  record("renorm_scale", of.guidance.renorm_factor(raw, of.v.front()).reshape({-1}));
  record("v_guided", of.guided);
}

std::unique_ptr<MotTextTrace> LanceTrace::text(const KvCache&, std::int64_t) {
  return std::make_unique<AnswerTrace>(sink(), *this, job_.checkpoint.markers.eos);
}

void LanceTrace::source(const WanVaeMoments& moments, const Tensor& latent) {
  sink().record("vae.cond.mu", moments.mu);
  sink().record("vae.cond.log_var", moments.log_var);
  sink().record("vae.cond.latent", latent);
  source_ = latent.flatten(0, 2);
}

QwenVisionObserver LanceTrace::vision(const Tensor& patches, const VisionGrid& grid) {
  const VisionWindows windows = vision_windows(grid, job_.checkpoint.config.vit);
  std::vector<std::int64_t> boundaries = {0};
  for (const std::int64_t length : windows.lengths)
    boundaries.push_back(boundaries.back() + length);
  sink().record("vit.patches_first8",
                patches.narrow(0, 0, std::min<std::int64_t>(8, patches.size(0))));
  sink().record("vit.grid_thw", ints({grid.t, grid.h, grid.w}).unsqueeze(0));
  sink().record("vit.window_index", windows.order);
  sink().record("vit.cu_window_seqlens", ints(boundaries));
  return [this](std::string_view name, const Tensor& value) { sink().record(name, value); };
}

void LanceTrace::decoded(const Tensor& frames, const Tensor& shown) {
  frames_.push_back(frames.to(at::kCPU, at::kFloat));
  shown_.push_back(shown);
}

void LanceTrace::finish_decoding() {
  const Tensor video = at::cat(frames_, 1), shown = at::cat(shown_);
  sink().record("vae_decode.video", video);
  for (const std::int64_t stride : {4, 8}) {
    const std::string name = fmt::format("vae_decode.video_stride{}", stride);
    if (sink().wants(name))
      sink().record(name,
                    video.slice(2, 0, c10::nullopt, stride).slice(3, 0, c10::nullopt, stride));
  }
  sink().record("output.frames_u8", shown);
  sink().record("output.frame_first_u8", shown[0]);
  sink().record("output.frame_last_u8", shown[-1]);
  frames_.clear();
  shown_.clear();
}

}  // namespace diptych
