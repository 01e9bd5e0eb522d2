#include "lib/models/qwen_mot/plan.h"

#include <tuple>
#include <utility>
#include <vector>

#include "lib/models/qwen/rope.h"
#include "lib/ops/linear_operand.h"

namespace diptych {

void MotPlan::follow(const MotPlan& other) {
  TORCH_CHECK(gen_rows == other.gen_rows && und_rows == other.und_rows &&
                  first_cache_row == other.first_cache_row && cache_rows == other.cache_rows,
              "[mot] a plan of other rows");
  cos.copy_(other.cos);
  sin.copy_(other.sin);
  slots.copy_(other.slots);
  if (share) all_slots.copy_(other.all_slots);
  gen.follow(other.gen);
  und.follow(other.und);
}

MotRows MotPlan::split(const Tensor& rows) const {
  MotRows parts;
  if (gen_rows > 0) parts.gen = rows.narrow(0, 0, gen_rows);
  if (und_rows > 0) parts.und = rows.narrow(0, gen_rows, und_rows);
  return parts;
}

MotPlan MotPlan::leaving() const {
  MotPlan rest = *this;
  if (wanted != MotWanted::all) rest.und_rows = 0;
  if (wanted == MotWanted::none) rest.gen_rows = 0;
  return rest;
}

MotPlan MotPlan::divided(std::shared_ptr<const MotRowShare> among) const {
  MotPlan part = *this;
  const auto own = [&](const Tensor& rows) {
    return at::cat({among->cut(rows.narrow(0, 0, gen_rows)), rows.narrow(0, gen_rows, und_rows)});
  };
  part.gen_rows = among->own();
  part.cos = own(cos);
  part.sin = own(sin);
  part.slots = own(slots);
  part.all_slots = slots.narrow(0, 0, gen_rows).contiguous();
  part.gen = AttentionLengths::make(among->attending_rows(), gen.k, gen.capacity, slots.device());
  part.share = std::move(among);
  return part;
}

Quantization MotPlan::row_format(Quantization projections) const {
  const auto fits = [&](std::int64_t rows) {
    return rows == 0 || quantizes_rows(projections, rows);
  };
  return fits(gen_rows) && fits(und_rows) ? projections : Quantization::none;
}

namespace {

// Of every sample the positions of its rows. Text counts up; all rows of an image block are at
// their sample's one position.
std::vector<Tensor> positions_of(std::span<const MotSample> samples, bool text) {
  std::vector<Tensor> positions;
  for (const MotSample& sample : samples) {
    const std::int64_t rows = sample.gen_rows + sample.und_rows;
    positions.push_back(text ? at::arange(sample.position, sample.position + rows, at::kLong)
                             : at::full({rows}, sample.position, at::kLong));
  }
  return positions;
}

// The positions of all rows, generation rows first: int64 [rows] or [3, rows].
Tensor in_plan_order(std::span<const MotSample> samples, std::span<const Tensor> positions) {
  TORCH_CHECK(samples.size() == positions.size(), "[mot] positions of ", positions.size(), " of ",
              samples.size(), " samples");
  std::vector<Tensor> gen, und;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const std::int64_t before = samples[s].gen_rows > 0 && samples[s].und_rows > 0 ? 1 : 0;
    const Tensor& all = positions[s];
    const std::int64_t rows = samples[s].gen_rows + samples[s].und_rows;
    TORCH_CHECK(all.size(-1) == rows, "[mot] positions ", all.sizes(), " for ", rows, " rows");
    gen.push_back(all.narrow(-1, before, samples[s].gen_rows));
    und.push_back(all.narrow(-1, 0, before));
    und.push_back(all.narrow(-1, before + samples[s].gen_rows, samples[s].und_rows - before));
  }
  gen.insert(gen.end(), und.begin(), und.end());
  return at::cat(gen, -1);
}

// The cache slots of all rows, generation rows first. A sample's rows go behind its context in the
// order of its tokens, an image block as [first understanding row, generation rows, other
// understanding rows].
std::vector<std::int64_t> cache_slots(std::span<const MotSample> samples, std::int64_t capacity) {
  std::vector<std::int64_t> slots;
  const auto base_of = [&](std::size_t i) {
    return static_cast<std::int64_t>(i) * capacity + samples[i].context;
  };
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (std::int64_t i = 0; i < samples[s].gen_rows; ++i)
      slots.push_back(base_of(s) + (samples[s].und_rows > 0 ? 1 : 0) + i);
  }
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (std::int64_t i = 0; i < samples[s].und_rows; ++i)
      slots.push_back(base_of(s) + (i == 0 ? 0 : samples[s].gen_rows) + i);
  }
  return slots;
}

}  // namespace

MotPlan make_plan(const MotBlock& block, std::int64_t first_cache_row, const KvCache& cache,
                  const QwenConfig& config, const at::TensorOptions& options) {
  MotPlan plan;
  std::vector<std::int64_t> gen_q, und_q, keys;
  for (const MotSample& sample : block.samples) {
    plan.gen_rows += sample.gen_rows;
    plan.und_rows += sample.und_rows;
    gen_q.push_back(sample.gen_rows);
    und_q.push_back(sample.und_rows);
    keys.push_back(sample.context + sample.gen_rows + sample.und_rows);
  }
  const at::Device device = options.device();
  const Tensor positions = in_plan_order(block.samples, block.positions).to(device);
  std::tie(plan.cos, plan.sin) =
      qwen_rope_table(positions, config, c10::typeMetaToScalarType(options.dtype()));
  plan.slots = at::tensor(cache_slots(block.samples, cache.capacity()), at::kLong).to(device);
  if (plan.gen_rows > 0) plan.gen = AttentionLengths::make(gen_q, keys, cache.capacity(), device);
  if (plan.und_rows > 0) plan.und = AttentionLengths::make(und_q, keys, cache.capacity(), device);
  plan.first_cache_row = first_cache_row;
  plan.cache_rows = static_cast<std::int64_t>(block.samples.size());
  plan.causal = block.text;
  // Understanding mode, be it text or the patches of a picture, rounds as Qwen2 does.
  plan.rounding = plan.gen_rows == 0 ? RopeRounding::every_step : RopeRounding::at_the_end;
  return plan;
}

MotPlan plan_image_block(std::span<const MotSample> samples, std::int64_t first_cache_row,
                         const KvCache& cache, const QwenConfig& config,
                         const at::TensorOptions& options) {
  const std::vector<Tensor> positions = positions_of(samples, /*text=*/false);
  return make_plan({samples, positions, false}, first_cache_row, cache, config, options);
}

MotPlan plan_text(std::span<const MotSample> samples, std::int64_t first_cache_row,
                  const KvCache& cache, const QwenConfig& config,
                  const at::TensorOptions& options) {
  const std::vector<Tensor> positions = positions_of(samples, /*text=*/true);
  return make_plan({samples, positions, true}, first_cache_row, cache, config, options);
}

}  // namespace diptych
