#include "lib/pipelines/bagel/trace.h"

#include <fmt/format.h>

namespace diptych {
namespace {

Tensor ints(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

void trace_text_inputs(TraceSink& trace, const std::string& name, const BranchContexts& branch,
                       std::size_t segment) {
  std::vector<std::int64_t> ids, positions, indexes, lengths, before;
  std::int64_t index = 0;  // among the keys of all samples
  for (const MotContext& sample : branch.samples) {
    const std::vector<std::int64_t>& text = std::get<TextSegment>(sample.segments[segment]).ids;
    before.push_back(sample.length_before(segment));
    lengths.push_back(static_cast<std::int64_t>(text.size()));
    index += before.back();
    std::int64_t position = sample.position_before(segment);
    for (const std::int64_t id : text) {
      indexes.push_back(index++);
      positions.push_back(position++);
      ids.push_back(id);
    }
  }
  trace.record(name + ".packed_text_ids", ints(ids));
  trace.record(name + ".packed_text_position_ids", ints(positions));
  trace.record(name + ".position_ids", ints(positions));
  trace.record(name + ".packed_text_indexes", ints(indexes));
  trace.record(name + ".text_token_lens", ints(lengths));
  trace.record(name + ".key_values_lens", ints(before));
}

// The text segments that the official code reads in this branch; its pictures are traced where they
// are read.
void trace_texts(TraceSink& trace, const BranchContexts& branch) {
  for (std::size_t i = 0; i < branch.calls.size(); ++i) {
    const bool text = std::holds_alternative<TextSegment>(branch.samples.front().segments[i]);
    if (!text || branch.calls[i] < 0) continue;
    trace_text_inputs(trace, fmt::format("prefill.{:02}.{}.text", branch.calls[i], branch.name),
                      branch, i);
  }
}

std::vector<std::int64_t> block_positions(const BranchContexts& branch,
                                          std::span<const LatentSize> sizes) {
  std::vector<std::int64_t> positions;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    positions.insert(positions.end(), static_cast<std::size_t>(sizes[s].rows() + 2),
                     branch.samples[s].position());
  }
  return positions;
}

// decode.*: the logits are kept for the first three and the last token, as recordings have them.
class DecodeTrace final : public MotTextTrace {
 public:
  DecodeTrace(TraceSink& trace, const KvCache& cache, std::int64_t position) : trace_(trace) {
    const std::int64_t length = cache.length(0);
    trace_.record("decode.start_kv_len", at::full({1}, length, at::kLong));
    trace_.record("decode.start_position", at::full({1}, position, at::kLong));
    for (std::int64_t layer = 0; layer < cache.shape().layers; ++layer) {
      const auto record = [&](const char* what, const Tensor& rows) {
        trace_.record(fmt::format("decode.kv.layer{:02}.{}", layer, what),
                      rows[0].narrow(0, 0, length));
      };
      record("key", cache.keys(layer));
      record("value", cache.values(layer));
    }
  }

  void see(std::int64_t index, const Tensor& logits) override {
    const Tensor values = logits.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    const Tensor best = std::get<0>(values.topk(2));
    margins_.push_back(best[0].item<float>() - best[1].item<float>());
    if (index > static_cast<std::int64_t>(kFirst)) {
      steps_.pop_back();
      logits_.pop_back();
    }
    steps_.push_back(index);
    logits_.push_back(values);
  }

  void finish(const std::vector<std::int64_t>& ids, bool) override {
    trace_.record("decode.token_ids", at::tensor(ids, at::kLong));
    trace_.record("decode.margin", at::tensor(margins_, at::kFloat));
    trace_.record("decode.logits_steps", at::tensor(steps_, at::kLong));
    trace_.record("decode.logits", at::stack(logits_));
  }

 private:
  static constexpr std::size_t kFirst = 3;
  TraceSink& trace_;
  std::vector<float> margins_;
  std::vector<std::int64_t> steps_;
  std::vector<Tensor> logits_;
};

}  // namespace

std::string BagelTrace::call_name(const BranchContexts& branch, std::size_t segment) const {
  const Segment& read = branch.samples.front().segments[segment];
  const auto* image = std::get_if<ImageSegment>(&read);
  const char* kind = image == nullptr                         ? "text"
                     : image->kind == ImageSegment::Kind::vae ? "vae"
                                                              : "vit";
  return fmt::format("prefill.{:02}.{}.{}", branch.calls.at(segment), branch.name, kind);
}

std::string BagelTrace::row_name(std::string_view what) const {
  return what.find(".attn.") == std::string_view::npos ? std::string(what) : std::string();
}

void BagelTrace::contexts(const PrefilledContexts& contexts) {
  for (const BranchContexts& branch : contexts.branches()) {
    trace_texts(sink(), branch);
    std::vector<std::int64_t> lengths;
    for (const MotContext& sample : branch.samples) lengths.push_back(sample.length());
    sink().record(fmt::format("kv.{}.len", branch.name), ints(lengths));
    if (branch.samples.front().segments.empty()) continue;
    trace_cache(contexts, branch, std::string(branch.name), 0, sink());
  }
}

void BagelTrace::start(const TracedStart& start) {
  TraceSink& trace = sink();
  std::vector<std::int64_t> marker_ids, marker_rows, latent_rows, block_lengths, own, context_keys;
  std::vector<Tensor> position_ids;
  std::int64_t row = 0, key = 0;
  for (std::size_t s = 0; s < start.sizes.size(); ++s) {
    const std::int64_t rows = start.sizes[s].rows();
    marker_ids.insert(marker_ids.end(), {start.model.markers.start, start.model.markers.end});
    marker_rows.insert(marker_rows.end(), {row, row + rows + 1});
    for (std::int64_t i = 1; i <= rows; ++i) latent_rows.push_back(row + i);
    block_lengths.push_back(rows + 2);
    for (std::int64_t i = 0; i < start.contexts.context(0, static_cast<std::int64_t>(s)).length();
         ++i)
      context_keys.push_back(key++);
    for (std::int64_t i = 0; i < rows + 2; ++i) own.push_back(key++);
    row += rows + 2;
    position_ids.push_back(start.model.latents.position_ids(start.sizes[s].h, start.sizes[s].w));
  }
  trace.record("gen.init_noise", start.latent);
  trace.record("gen.packed_text_ids", ints(marker_ids));
  trace.record("gen.packed_text_indexes", ints(marker_rows));
  trace.record("gen.packed_vae_token_indexes", ints(latent_rows));
  trace.record("gen.packed_vae_position_ids", at::cat(position_ids));
  trace.record("gen.packed_seqlens", ints(block_lengths));
  trace.record("gen.packed_indexes", ints(own));
  trace.record("gen.packed_key_value_indexes", ints(context_keys));
  for (const BranchContexts& branch : start.contexts.branches()) {
    trace.record(fmt::format("gen.{}.position_ids", branch.name),
                 ints(block_positions(branch, start.sizes)));
  }
}

void BagelTrace::step_inputs(std::int64_t step, const Tensor& time, const Tensor& projected) {
  sink().record(fmt::format("step{:03}.time_embed", step), time);
  sink().record(fmt::format("step{:03}.vae2llm", step), projected);
}

void BagelTrace::step_positions(std::int64_t step, const BranchContexts& branch,
                                std::span<const LatentSize> sizes) {
  sink().record(fmt::format("step{:03}.{}.position_ids", step, branch.name),
                ints(block_positions(branch, sizes)));
}

void BagelTrace::velocities(const TracedVelocities& of) {
  const auto record = [&](std::string_view what, const Tensor& value) {
    sink().record(fmt::format("step{:03}.{}", of.step, what), value);
  };
  record("t", at::full({1}, of.t, at::kFloat));
  record("v_cond", of.v.front());
  for (const GuidanceTerm& term : of.guidance.terms) {
    // The official code runs a branch whenever its scale is above 1, used or not. Where such a
    // context is among those that were computed, its velocity is known.
    if (!of.guidance.active(of.t) || term.scale <= 1) continue;
    const auto context = static_cast<std::size_t>(*of.contexts.context_of(term.branch));
    if (context < of.v.size()) record(fmt::format("v_{}", term.branch), of.v[context]);
  }
  record("v_guided", of.guided);
}

std::unique_ptr<MotTextTrace> BagelTrace::text(const KvCache& cache, std::int64_t position) {
  return std::make_unique<DecodeTrace>(sink(), cache, position);
}

void trace_image_block(TraceSink& trace, const std::string& name, const MotSample& block,
                       ImageMarkers markers, std::int64_t rows) {
  const Tensor positions = at::full({rows + 2}, block.position, at::kLong);
  trace.record(name + ".packed_text_ids", ints({markers.start, markers.end}));
  trace.record(name + ".packed_text_indexes", ints({0, rows + 1}));
  trace.record(name + ".packed_position_ids", positions);
  trace.record(name + ".position_ids", positions);
  trace.record(name + ".packed_seqlens", ints({rows + 2}));
  trace.record(name + ".key_values_lens", ints({block.context}));
}

}  // namespace diptych
