#include "lib/pipelines/mot/contexts.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/trace.h"

namespace diptych {
namespace {

std::int64_t length_of(const Segment& segment) {
  if (const auto* text = std::get_if<TextSegment>(&segment))
    return static_cast<std::int64_t>(text->ids.size());
  return std::get<ImageSegment>(segment).rows + 2;  // and its two markers
}

// A text token moves the position by one, an image block as a whole likewise.
std::int64_t positions_of(const Segment& segment) {
  return std::holds_alternative<TextSegment>(segment) ? length_of(segment) : 1;
}

// Positions of a block of so many rows as a tensor; `position`: where there are none.
Tensor block_tensor(const BlockPositions& positions, std::int64_t rows, std::int64_t position) {
  if (positions.empty()) return at::full({rows}, position, at::kLong);
  return at::tensor(positions, at::kLong).view({3, rows});
}

std::size_t common_segments(const MotContext& a, const MotContext& b) {
  const auto [end, other] = std::ranges::mismatch(a.segments, b.segments);
  return static_cast<std::size_t>(end - a.segments.begin());
}

}  // namespace

std::int64_t MotContext::length_before(std::size_t segment) const {
  std::int64_t total = 0;
  for (const Segment& each : std::span(segments).first(segment)) total += length_of(each);
  return total;
}

std::int64_t MotContext::position_before(std::size_t segment) const {
  std::int64_t total = 0;
  for (const Segment& each : std::span(segments).first(segment)) total += positions_of(each);
  return total;
}

Tensor MotContext::positions(std::size_t segment) const {
  const std::int64_t before = position_before(segment), rows = length_of(segments[segment]);
  if (const auto* text = std::get_if<TextSegment>(&segments[segment])) {
    const std::int64_t first = text->position.value_or(before);
    return at::arange(first, first + rows, at::kLong);
  }
  return block_tensor(std::get<ImageSegment>(segments[segment]).positions, rows, before);
}

Tensor MotContext::block_positions(std::int64_t rows) const {
  return block_tensor(block, rows, position());
}

std::int64_t MotContext::length() const {
  return length_before(segments.size());
}

std::int64_t MotContext::position() const {
  return next_position.value_or(position_before(segments.size()));
}

Tensor in_token_order(const MotRows& rows) {
  if (!rows.gen.defined()) return rows.und;
  return at::cat({rows.und.narrow(0, 0, 1), rows.gen, rows.und.narrow(0, 1, 1)});
}

// Fills the cache rows of one distinct context.
class ContextReader {
 public:
  ContextReader(PrefilledContexts& contexts, std::int64_t distinct, const MotModel& model,
                const ContextsRequest& request, const Runtime& runtime)
      : contexts_(contexts),
        cache_(*contexts.cache_),
        distinct_(distinct),
        model_(model),
        request_(request),
        trace_(request.trace),
        runtime_(runtime),
        options_(at::TensorOptions().device(runtime.device).dtype(runtime.dtype)),
        read_(static_cast<std::size_t>(contexts.samples_), 0) {}

  // Starts each sample from the longest beginning that another context has already read.
  void copy_beginnings(const PrefilledContexts& from, std::int64_t contexts) {
    for (std::int64_t s = 0; s < contexts_.samples(); ++s) {
      for (std::int64_t c = 0; c < contexts; ++c) {
        const std::size_t common = common_segments(context(s), from.context(c, s));
        if (common <= read(s)) continue;
        cache_.copy_row(contexts_.cache_row(distinct_, s), from.cache(), from.cache_row(c, s),
                        context(s).length_before(common));
        read(s) = common;
      }
    }
  }

  void run() {
    const std::int64_t samples = contexts_.samples();
    for (bool more = true; more;) {
      more = false;
      for (std::int64_t s = 0; s < samples;) {
        if (done(s)) {
          ++s;
          continue;
        }
        check_interrupted();
        more = true;
        if (!std::holds_alternative<TextSegment>(next(s))) {
          read_image(s++);
          continue;
        }
        // The texts of neighbouring samples are one packed call.
        std::int64_t end = s + 1;
        while (end < samples && !done(end) && std::holds_alternative<TextSegment>(next(end))) ++end;
        read_texts(s, end);
        s = end;
      }
    }
  }

 private:
  std::size_t& read(std::int64_t sample) { return read_[static_cast<std::size_t>(sample)]; }
  const MotContext& context(std::int64_t sample) const {
    return contexts_.context(distinct_, sample);
  }
  const Segment& next(std::int64_t sample) { return context(sample).segments[read(sample)]; }
  bool done(std::int64_t sample) { return read(sample) == context(sample).segments.size(); }

  MotSample at_end_of(std::int64_t sample, std::int64_t gen_rows, std::int64_t und_rows) {
    const MotContext& c = context(sample);
    return {c.length_before(read(sample)), c.position_before(read(sample)), gen_rows, und_rows};
  }
  Tensor positions(std::int64_t sample) { return context(sample).positions(read(sample)); }

  // The trace's name of the next segment; nothing is named without one.
  std::string call_name(std::int64_t sample) {
    if (trace_ == nullptr) return {};
    const BranchContexts& branch =
        contexts_.branches_[contexts_.distinct_[static_cast<std::size_t>(distinct_)]];
    return trace_->call_name(branch, read(sample));
  }

  void forward(MotPlan plan, Tensor rows, const MotObserver& observer) {
    plan.wanted = MotWanted::none;
    if (observer) observer("embeds", plan.split(rows));
    model_.backbone.forward(plan, std::move(rows), cache_,
                            runtime_.read_attention.of(AttentionRole::self), runtime_.kernels,
                            observer);
  }

  void advance(std::int64_t sample, std::int64_t rows) {
    cache_.advance(contexts_.cache_row(distinct_, sample), rows);
    ++read(sample);
  }

  void read_texts(std::int64_t begin, std::int64_t end) {
    std::vector<MotSample> rows;
    std::vector<Tensor> position_ids;
    std::vector<std::int64_t> ids;
    for (std::int64_t s = begin; s < end; ++s) {
      const std::vector<std::int64_t>& text = std::get<TextSegment>(next(s)).ids;
      rows.push_back(at_end_of(s, 0, static_cast<std::int64_t>(text.size())));
      position_ids.push_back(positions(s));
      ids.insert(ids.end(), text.begin(), text.end());
    }
    const MotPlan plan =
        make_plan({rows, position_ids, /*text=*/true}, contexts_.cache_row(distinct_, begin),
                  cache_, model_.backbone.config, options_);
    forward(plan, embed(ids), observe(begin, rows.front()));
    for (std::int64_t s = begin; s < end; ++s)
      advance(s, rows[static_cast<std::size_t>(s - begin)].und_rows);
  }

  Tensor embed(const std::vector<std::int64_t>& ids) const {
    return model_.backbone.embed(at::tensor(ids, at::kLong));
  }
  Tensor markers() const { return embed({model_.markers.start, model_.markers.end}); }

  void read_image(std::int64_t sample) {
    const auto& segment = std::get<ImageSegment>(next(sample));
    const bool is_latent = segment.kind == ImageSegment::Kind::vae;
    const MotSample block =
        is_latent ? at_end_of(sample, segment.rows, 2) : at_end_of(sample, 0, segment.rows + 2);
    const ImageRows rows = request_.read_image(sample, segment, block, call_name(sample));
    const Tensor both = markers();
    const Tensor embeds = is_latent
                              ? at::cat({rows.gen, both})
                              : at::cat({both.narrow(0, 0, 1), rows.und, both.narrow(0, 1, 1)});
    forward(plan_block(sample, block), embeds, observe(sample, block));
    advance(sample, segment.rows + 2);
  }

  // `block`: of the first sample of a call.
  MotObserver observe(std::int64_t sample, const MotSample& block) {
    MotObserver recorded = record(sample, block);
    if (!request_.observer || distinct_ != 0) return recorded;
    MotObserver seen = request_.observer(block.context, block.gen_rows + block.und_rows);
    if (!recorded) return seen;
    return [recorded, seen](std::string_view what, const MotRows& rows) {
      recorded(what, rows);
      seen(what, rows);
    };
  }

  MotObserver record(std::int64_t sample, const MotSample& block) {
    if (trace_ == nullptr) return {};
    const SeenKeys keys = {cache_, contexts_.cache_row(distinct_, sample),
                           block.context + block.gen_rows + block.und_rows};
    return [trace = trace_, name = call_name(sample), keys](std::string_view what,
                                                            const MotRows& seen) {
      trace->rows(name, what, in_token_order(seen), keys);
    };
  }

  MotPlan plan_block(std::int64_t sample, const MotSample& block) {
    const Tensor position_ids = positions(sample);
    return make_plan({std::span(&block, 1), std::span(&position_ids, 1)},
                     contexts_.cache_row(distinct_, sample), cache_, model_.backbone.config,
                     options_);
  }

  PrefilledContexts& contexts_;
  KvCache& cache_;
  std::int64_t distinct_;
  const MotModel& model_;
  const ContextsRequest& request_;
  MotTrace* trace_;
  const Runtime& runtime_;
  at::TensorOptions options_;
  std::vector<std::size_t> read_;  // per sample: segments in the cache
};

PrefilledContexts::PrefilledContexts(const MotModel& model, const ContextsRequest& request,
                                     const Runtime& runtime)
    : branches_(request.branches), samples_(static_cast<std::int64_t>(request.own_rows.size())) {
  // Equal contexts become one, but for those whose step caches differ.
  for (std::size_t b = 0; b < branches_.size(); ++b) {
    const auto same = std::find_if(distinct_.begin(), distinct_.end(), [&](std::size_t other) {
      return branches_[other].shares_with(branches_[b]);
    });
    context_of_branch_.push_back(same - distinct_.begin());
    if (same == distinct_.end()) distinct_.push_back(b);
  }
  std::int64_t capacity = 0;
  for (const BranchContexts& branch : branches_) {
    for (std::size_t s = 0; s < request.own_rows.size(); ++s) {
      capacity = std::max(capacity, branch.samples[s].length() + request.own_rows[s]);
    }
  }
  // What is only read from, to write a text behind a copy, needs no room.
  if (request.own_rows.front() > 0) capacity = KvCache::rounded_capacity(capacity);
  const auto options = at::TensorOptions().device(runtime.device).dtype(runtime.dtype);
  cache_.emplace(model.backbone.config.kv_shape(), distinct() * samples_, capacity, options);
}

PrefilledContexts PrefilledContexts::read(const MotModel& model, const ContextsRequest& request,
                                          const Runtime& runtime) {
  TORCH_CHECK(!request.observer || request.own_rows.size() == 1, "[contexts] an observer of ",
              request.own_rows.size(), " samples");
  PrefilledContexts contexts(model, request, runtime);
  for (std::int64_t i = 0; i < contexts.distinct(); ++i) {
    ContextReader reader(contexts, i, model, request, runtime);
    if (request.earlier != nullptr)
      reader.copy_beginnings(*request.earlier, request.earlier->distinct());
    reader.copy_beginnings(contexts, i);
    reader.run();
  }
  return contexts;
}

PrefilledContexts PrefilledContexts::received(const MotModel& model, const ContextsRequest& request,
                                              const Runtime& runtime,
                                              std::span<const Tensor> rows) {
  PrefilledContexts contexts(model, request, runtime);
  KvCache& cache = *contexts.cache_;
  TORCH_CHECK(std::ssize(rows) == 2 * cache.rows(), "[contexts] ", rows.size(), " tensors for ",
              cache.rows(), " rows");
  for (std::int64_t row = 0; row < cache.rows(); ++row) {
    const auto at = static_cast<std::size_t>(2 * row);
    cache.write_row(row, rows[at], rows[at + 1]);
  }
  return contexts;
}

std::vector<Tensor> PrefilledContexts::rows() const {
  std::vector<Tensor> rows;
  for (std::int64_t row = 0; row < cache_->rows(); ++row) {
    rows.push_back(cache_->row_keys(row).contiguous());
    rows.push_back(cache_->row_values(row).contiguous());
  }
  return rows;
}

bool PrefilledContexts::laid_out_as(const PrefilledContexts& other) const {
  return samples_ == other.samples_ && distinct_ == other.distinct_ &&
         context_of_branch_ == other.context_of_branch_ &&
         cache().capacity() == other.cache().capacity() &&
         std::ranges::equal(branches_, other.branches_, {}, &BranchContexts::name,
                            &BranchContexts::name);
}

bool PrefilledContexts::as_long_as(const PrefilledContexts& other) const {
  for (std::int64_t c = 0; c < distinct(); ++c) {
    for (std::int64_t s = 0; s < samples_; ++s) {
      if (context(c, s).length() != other.context(c, s).length()) return false;
    }
  }
  return true;
}

void PrefilledContexts::copy(const PrefilledContexts& other) {
  TORCH_CHECK(laid_out_as(other), "[contexts] laid out otherwise");
  for (std::int64_t row = 0; row < cache_->rows(); ++row) {
    cache_->copy_row(row, other.cache(), row, other.cache().length(row));
  }
  branches_ = other.branches_;
}

std::optional<std::int64_t> PrefilledContexts::context_of(std::string_view branch) const {
  for (std::size_t b = 0; b < branches_.size(); ++b) {
    if (branches_[b].name == branch) return context_of_branch_[b];
  }
  return std::nullopt;
}

const MotContext& PrefilledContexts::context(std::int64_t distinct, std::int64_t sample) const {
  return branches_[distinct_[static_cast<std::size_t>(distinct)]]
      .samples[static_cast<std::size_t>(sample)];
}

}  // namespace diptych
