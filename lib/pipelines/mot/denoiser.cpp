#include "lib/pipelines/mot/denoiser.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/qwen_mot/kernel_work.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/runtime/row_share.h"
#include "lib/runtime/shared_branches.h"

namespace diptych {

namespace {

// bool [rows, 1]; undefined where no row is clean.
Tensor clean_mask(const DenoisedRows& rows) {
  bool any = false;
  std::vector<Tensor> parts;
  for (std::size_t s = 0; s < rows.clean_rows.size(); ++s) {
    const std::int64_t clean = rows.clean_rows[s];
    any |= clean > 0;
    parts.push_back(at::ones({clean, 1}, at::kBool));
    parts.push_back(at::zeros({rows.sizes[s].rows() - clean, 1}, at::kBool));
  }
  return any ? at::cat(parts) : Tensor();
}

}  // namespace

MotDenoiser::MotDenoiser(const MotModel& model, const PrefilledContexts& contexts,
                         const DenoisedRows& rows, const FlowSchedule& schedule, CfgMode mode,
                         const Runtime& runtime, const StepCacheConfig& cache)
    : model_(model),
      contexts_(contexts),
      runtime_(runtime),
      sizes_(rows.sizes.begin(), rows.sizes.end()),
      timesteps_(schedule.times.begin(), schedule.times.begin() + schedule.updates()),
      mode_(mode) {
  for (const LatentSize& size : sizes_) rows_ += size.rows();
  if (RowShare{runtime.ranks.get()}.divides()) share_ = share_among(1);
  if (const Tensor mask = clean_mask(rows); mask.defined()) is_clean_ = mask.to(runtime.device);
  follow_weights();
  if (cache.mode != StepCacheMode::none) {
    cache_.emplace(cache, contexts.distinct(), schedule.updates());
  }
  begin_picture();
  for (std::int64_t first = 0; first < contexts.distinct(); ++first) {
    for (std::int64_t count = 1; first + count <= contexts.distinct(); ++count) {
      // Without a cache a step computes its contexts from the first on.
      const bool used = mode == CfgMode::batched ? first == 0 || cache_.has_value() : count == 1;
      if (used) plans_.emplace(Range{first, count}, plan({first, count}));
    }
  }
}

void MotDenoiser::follow_weights() {
  const auto put = [](Tensor& place, const Tensor& values) {
    if (place.defined()) {
      place.copy_(values);  // where graphs find it
    } else {
      place = values;
    }
  };
  const MotLatents& latents = model_.latents;
  std::vector<Tensor> positions;
  for (const LatentSize& size : sizes_)
    positions.push_back(latents.positions(size.h, size.w, size.t));
  put(positions_, at::cat(positions));
  put(times_, latents.time_embedder.forward(timesteps_));
  if (is_clean_.defined()) {
    const float clean = 0;
    put(clean_time_, latents.time_embedder.forward(std::span(&clean, 1))[0]);
  }
  const Tensor ids = at::tensor({model_.markers.start, model_.markers.end}, at::kLong);
  put(markers_, model_.backbone.embed(ids.repeat({contexts_.samples()})));
}

// Ranks that divide the rows of so many contexts.
std::shared_ptr<const MotRowShare> MotDenoiser::share_among(std::int64_t contexts) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t c = 0; c < contexts; ++c) {
    for (const LatentSize& size : sizes_) rows.push_back(size.rows());
  }
  const QwenConfig& llm = model_.backbone.config;
  const MotHeads heads = {llm.num_attention_heads, llm.num_key_value_heads};
  return std::make_shared<MotRowShare>(*runtime_.ranks, rows, heads, runtime_.device);
}

Tensor MotDenoiser::own(const Tensor& all) const {
  return share_ ? share_->cut(all) : all;
}

Tensor MotDenoiser::join(const Tensor& own) const {
  return share_ ? share_->join(own) : own;
}

MotPlan MotDenoiser::plan(Range range) const {
  const auto [first, count] = range;
  std::vector<MotSample> rows;
  std::vector<Tensor> positions;
  for (std::int64_t c = first; c < first + count; ++c) {
    for (std::int64_t s = 0; s < contexts_.samples(); ++s) {
      const MotContext& context = contexts_.context(c, s);
      const std::int64_t latents = sizes_[static_cast<std::size_t>(s)].rows();
      rows.push_back({context.length(), context.position(), latents, 2});
      positions.push_back(context.block_positions(latents + 2));
    }
  }
  const auto options = at::TensorOptions().device(runtime_.device).dtype(runtime_.dtype);
  MotPlan plan = make_plan({rows, positions}, contexts_.cache_row(first, 0), contexts_.cache(),
                           model_.backbone.config, options);
  plan.wanted = MotWanted::generation;
  return share_ ? plan.divided(share_among(count)) : plan;
}

void MotDenoiser::follow_contexts() {
  for (auto& [range, laid_out] : plans_) laid_out.follow(plan(range));
}

Tensor MotDenoiser::embed(const Tensor& x, const Tensor& time) const {
  if (!is_clean_.defined()) return model_.latents.embed(x, time, positions_);
  return model_.latents.embed(x, at::where(is_clean_, clean_time_, time), positions_);
}

Tensor MotDenoiser::still(Tensor velocity) const {
  return is_clean_.defined() ? velocity.masked_fill(is_clean_, 0) : velocity;
}

void MotDenoiser::restart_cache(StepCaching caching) {
  caching_ = caching;
  cache_->begin_picture();
  keeps_layers_ = uses_cache() && trace_wants_rows();
}

std::vector<Tensor> MotDenoiser::velocities(const Tensor& x, std::int64_t step,
                                            std::int64_t count) const {
  const Tensor latents = embed(x, times_[step]);
  if (trace_ != nullptr) {
    trace_->step_inputs(step, times_[step], model_.latents.project(x));
  }
  const std::vector<bool> computed = uses_cache()
                                         ? cache_->begin_step(latents, step, count)
                                         : std::vector<bool>(static_cast<std::size_t>(count), true);
  const auto is_computed = [&](std::int64_t context) {
    return context < count && computed[static_cast<std::size_t>(context)];
  };
  if (shares_branches(runtime_.ranks.get())) {
    count_forwards(count);
    return share_branches(*runtime_.ranks, count, [&](std::int64_t context) {
      return compute({context, 1}, latents, step)[0];
    });
  }
  std::vector<Tensor> velocities;
  for (std::int64_t context = 0; context < count;) {
    if (!is_computed(context)) {
      velocities.push_back(predict(context++, latents, step));
      continue;
    }
    Range range = {context++, 1};
    for (; mode_ == CfgMode::batched && is_computed(context); ++context) ++range.second;
    count_forwards(range.second);
    for (Tensor& velocity : compute(range, latents, step))
      velocities.push_back(std::move(velocity));
  }
  return velocities;
}

std::vector<Tensor> MotDenoiser::velocities_at(const Tensor& x, const Tensor& time,
                                               std::int64_t count) const {
  const Tensor latents = embed(x, time);
  if (shares_branches(runtime_.ranks.get())) {
    return share_branches(*runtime_.ranks, count, [&](std::int64_t context) {
      return compute({context, 1}, latents, {})[0];
    });
  }
  std::vector<Tensor> velocities;
  for (const Range& range : calls_of(count)) {
    for (Tensor& velocity : compute(range, latents, {})) velocities.push_back(std::move(velocity));
  }
  return velocities;
}

// Of a step that computes the first `count` contexts, all of them.
std::vector<MotDenoiser::Range> MotDenoiser::calls_of(std::int64_t count) const {
  if (mode_ == CfgMode::batched) return {{0, count}};
  std::vector<Range> calls;
  for (std::int64_t context = 0; context < count; ++context) calls.emplace_back(context, 1);
  return calls;
}

std::function<void()> MotDenoiser::products_at(const Tensor& x, const Tensor& time,
                                               std::int64_t count) const {
  const MotBackbone& backbone = model_.backbone;
  const Tensor latents = embed(x, time);
  std::vector<std::pair<const MotPlan*, MotProductRows>> calls;
  for (const Range& range : calls_of(count)) {
    const MotPlan& plan = plans_.at(range);
    calls.emplace_back(&plan, backbone.product_rows(plan, packed(range, latents), contexts_.cache(),
                                                    runtime_.kernels));
  }
  return [this, calls = std::move(calls)] {
    for (const auto& [plan, rows] : calls) {
      model_.backbone.products(*plan, rows, contexts_.cache(),
                               runtime_.paint_attention.of(AttentionRole::self), runtime_.kernels);
    }
  };
}

std::vector<KernelWork> MotDenoiser::work_of(std::int64_t count) const {
  const bool fp8_attention = served_in_fp8(runtime_.paint_attention.of(AttentionRole::self));
  const QwenConfig& llm = model_.backbone.config;
  const Quantization quantization = model_.backbone.quantization;
  const bool mixed = runtime_.dtype != at::kFloat &&
                     runtime_.kernels.policy != KernelPolicy::reference &&
                     has_mixed_kernel(markers_.device());
  std::vector<KernelWork> sum;
  for (const Range& range : calls_of(count)) {
    const MotPlan& plan = plans_.at(range);
    const bool one_gated =
        quantization == Quantization::none &&
        gates_in_one_kernel(markers_.options(), plan.gen_rows, llm.intermediate_size,
                            llm.hidden_size, runtime_.kernels);
    add_work(sum, 1,
             mot_work(plan, llm, {runtime_.dtype, quantization},
                      {runtime_.kernels.tuning, fp8_attention, one_gated, mixed}));
  }
  return sum;
}

bool MotDenoiser::is_plain() const {
  return trace_ == nullptr && !observer_ && !uses_cache();
}

// Rows of its own for every branch, [count * (own rows + 2 * samples), hidden].
Tensor MotDenoiser::packed(Range range, const Tensor& latents) const {
  const auto count = static_cast<std::size_t>(range.second);
  std::vector<Tensor> parts(count, own(latents));
  parts.insert(parts.end(), count, markers_);
  return at::cat(parts);
}

std::vector<Tensor> MotDenoiser::compute(Range range, const Tensor& latents,
                                         std::optional<std::int64_t> step) const {
  const auto [first, count] = range;
  const MotPlan& plan = plans_.at(range);
  // The backbone works in place: `stream` holds what leaves the last layer afterwards.
  Tensor rows = packed(range, latents);
  const Tensor stream = plan.split(rows).gen.view({count, own_rows(), -1});
  std::vector<Tensor> layers;  // [count, rows + 2 * samples, hidden] each
  MotObserver observer;
  if (trace_ != nullptr) {
    const MotObserver show =
        trace_step_observer(contexts_, sizes_, step.value(), range.first, range.second, *trace_);
    observer = [&layers, show, range, this](std::string_view what, const MotRows& seen) {
      show(what, seen);
      if (keeps_layers_ && what.ends_with(".hidden")) {
        layers.push_back(at::cat({seen.gen.view({range.second, rows_, -1}),
                                  seen.und.view({range.second, markers_.size(0), -1})},
                                 1));
      }
    };
    observer("embeds", plan.split(rows));
  }
  const MotRows out = model_.backbone.forward(plan, std::move(rows), contexts_.cache(),
                                              runtime_.paint_attention.of(AttentionRole::self),
                                              runtime_.kernels, observer);
  for (std::int64_t i = 0; i < count; ++i) {
    if (observer_) observer_(step.value(), first + i, own(latents), stream[i]);
    if (!uses_cache()) continue;
    const Tensor kept = keeps_layers_ ? at::stack(layers, 1)[i] : stream[i];
    cache_->store(first + i, cache_input(own(latents)), kept);
  }
  std::vector<Tensor> velocities = model_.latents.velocity(out.gen).split(own_rows());
  for (Tensor& velocity : velocities) velocity = join(velocity);
  return velocities;
}

Tensor MotDenoiser::predict(std::int64_t context, const Tensor& latents, std::int64_t step) const {
  const MotBackbone& backbone = model_.backbone;
  const Tensor kept = cache_->predict(context, cache_input(own(latents)));
  if (keeps_layers_) trace_prediction(context, latents, kept, step);
  const Tensor last = keeps_layers_ ? rows_of(kept[-1]).gen : kept;
  return join(model_.latents.velocity(
      rms_norm(last, backbone.norm_gen, backbone.config.rms_norm_eps, runtime_.kernels)));
}

// What the cache is given as a context's input, of the shape of a layer's kept rows.
Tensor MotDenoiser::cache_input(const Tensor& latents) const {
  return keeps_layers_ ? at::cat({latents, markers_}) : latents;
}

// [rows + 2 * samples, hidden] of one context -> latent rows and markers.
MotRows MotDenoiser::rows_of(const Tensor& all) const {
  return {all.narrow(0, 0, rows_), all.narrow(0, rows_, markers_.size(0))};
}

// layers [layers, rows + 2 * samples, hidden]: the prediction.
void MotDenoiser::trace_prediction(std::int64_t context, const Tensor& latents,
                                   const Tensor& layers, std::int64_t step) const {
  const MotBackbone& backbone = model_.backbone;
  const MotObserver show = trace_step_observer(contexts_, sizes_, step, context, 1, *trace_);
  show("embeds", {latents, markers_});
  for (std::int64_t i = 0; i < layers.size(0); ++i) {
    show(fmt::format("layer{:02}.hidden", i), rows_of(layers[i]));
  }
  const MotRows last = rows_of(layers[-1]);
  const double eps = backbone.config.rms_norm_eps;
  show("final_norm", {rms_norm(last.gen, backbone.norm_gen, eps, runtime_.kernels),
                      rms_norm(last.und, backbone.norm, eps, runtime_.kernels)});
}

// Whether the trace asks for any rows inside a step's branches. Without, their memory (every layer
// of every branch, seven times with TaylorSeer) is not spent.
bool MotDenoiser::trace_wants_rows() const {
  if (trace_ == nullptr) return false;
  std::vector<std::string> names = {"embeds", "position_ids", "final_norm"};
  for (std::size_t i = 0; i < model_.backbone.layers.size(); ++i) {
    names.push_back(fmt::format("layer{:02}.hidden", i));
  }
  for (std::int64_t step = 0; step < times_.size(0); ++step) {
    for (const BranchContexts& branch : contexts_.branches()) {
      for (const std::string& name : names) {
        if (trace_->wants_rows(fmt::format("step{:03}.{}", step, branch.name), name)) return true;
      }
    }
  }
  return false;
}

}  // namespace diptych
