#include "lib/pipelines/mot/trace.h"

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

}  // namespace

void trace_contexts(const PrefilledContexts& contexts, TraceSink& trace) {
  for (const BranchContexts& branch : contexts.branches()) {
    trace_texts(trace, branch);
    std::vector<std::int64_t> lengths;
    for (const MotContext& sample : branch.samples) lengths.push_back(sample.length());
    trace.record(fmt::format("kv.{}.len", branch.name), ints(lengths));
    if (branch.samples.front().segments.empty()) continue;
    const std::int64_t context = *contexts.context_of(branch.name);
    for (std::int64_t layer = 0; layer < contexts.cache().shape().layers; ++layer) {
      for (const bool key : {true, false}) {
        const std::string name =
            fmt::format("kv.{}.layer{:02}.{}", branch.name, layer, key ? "key" : "value");
        if (!trace.wants(name)) continue;
        const Tensor all = key ? contexts.cache().keys(layer) : contexts.cache().values(layer);
        std::vector<Tensor> rows;
        for (std::int64_t s = 0; s < contexts.samples(); ++s) {
          rows.push_back(all[contexts.cache_row(context, s)].narrow(
              0, 0, lengths[static_cast<std::size_t>(s)]));
        }
        trace.record(name, at::cat(rows));
      }
    }
  }
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

void trace_generation(const PrefilledContexts& contexts, const MotModel& model,
                      std::span<const LatentSize> sizes, const Tensor& noise, TraceSink& trace) {
  std::vector<std::int64_t> marker_ids, marker_rows, latent_rows, block_lengths, own, context_keys;
  std::vector<Tensor> position_ids;
  std::int64_t row = 0, key = 0;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const std::int64_t rows = sizes[s].rows();
    marker_ids.insert(marker_ids.end(), {model.markers.start, model.markers.end});
    marker_rows.insert(marker_rows.end(), {row, row + rows + 1});
    for (std::int64_t i = 1; i <= rows; ++i) latent_rows.push_back(row + i);
    block_lengths.push_back(rows + 2);
    for (std::int64_t i = 0; i < contexts.context(0, static_cast<std::int64_t>(s)).length(); ++i)
      context_keys.push_back(key++);
    for (std::int64_t i = 0; i < rows + 2; ++i) own.push_back(key++);
    row += rows + 2;
    position_ids.push_back(model.latents.position_ids(sizes[s].h, sizes[s].w));
  }
  trace.record("gen.init_noise", noise);
  trace.record("gen.packed_text_ids", ints(marker_ids));
  trace.record("gen.packed_text_indexes", ints(marker_rows));
  trace.record("gen.packed_vae_token_indexes", ints(latent_rows));
  trace.record("gen.packed_vae_position_ids", at::cat(position_ids));
  trace.record("gen.packed_seqlens", ints(block_lengths));
  trace.record("gen.packed_indexes", ints(own));
  trace.record("gen.packed_key_value_indexes", ints(context_keys));
  for (const BranchContexts& branch : contexts.branches()) {
    trace.record(fmt::format("gen.{}.position_ids", branch.name),
                 ints(block_positions(branch, sizes)));
  }
}

void trace_step_inputs(TraceSink& trace, std::int64_t step, const Tensor& time_embed,
                       const Tensor& vae2llm) {
  trace.record(fmt::format("step{:03}.time_embed", step), time_embed);
  trace.record(fmt::format("step{:03}.vae2llm", step), vae2llm);
}

MotObserver trace_step_observer(const PrefilledContexts& contexts,
                                std::span<const LatentSize> sizes, std::int64_t step,
                                std::int64_t first, std::int64_t count, TraceSink& trace) {
  return
      [&contexts, sizes, step, first, count, &trace](std::string_view what, const MotRows& rows) {
        for (const BranchContexts& branch : contexts.branches()) {
          const std::int64_t context = *contexts.context_of(branch.name);
          if (context < first || context >= first + count) continue;
          const std::string prefix = fmt::format("step{:03}.{}.", step, branch.name);
          if (what == "embeds")
            trace.record(prefix + "position_ids", ints(block_positions(branch, sizes)));
          const std::string name = prefix + std::string(what);
          if (!trace.wants(name)) continue;
          std::vector<Tensor> parts;
          const auto samples = static_cast<std::int64_t>(sizes.size());
          std::int64_t gen = 0;
          for (const LatentSize& size : sizes) gen += size.rows();
          gen *= context - first;
          for (std::int64_t s = 0; s < samples; ++s) {
            const std::int64_t marker = 2 * ((context - first) * samples + s);
            const std::int64_t latents = sizes[static_cast<std::size_t>(s)].rows();
            parts.push_back(rows.und.narrow(0, marker, 1));
            parts.push_back(rows.gen.narrow(0, gen, latents));
            parts.push_back(rows.und.narrow(0, marker + 1, 1));
            gen += latents;
          }
          trace.record(name, at::cat(parts));
        }
      };
}

}  // namespace diptych
