#include "lib/pipelines/mot/trace.h"

#include <fmt/format.h>

namespace diptych {
namespace {

constexpr std::string_view kAttended = ".attn.out";

// Rows of one branch of a step, all samples, in the official order of each.
Tensor in_token_order(const MotRows& rows, std::span<const LatentSize> sizes,
                      std::int64_t branch_of_call) {
  const auto samples = static_cast<std::int64_t>(sizes.size());
  std::int64_t gen = 0;
  for (const LatentSize& size : sizes) gen += size.rows();
  gen *= branch_of_call;
  std::vector<Tensor> parts;
  for (std::int64_t s = 0; s < samples; ++s) {
    const std::int64_t marker = 2 * (branch_of_call * samples + s);
    const std::int64_t latents = sizes[static_cast<std::size_t>(s)].rows();
    parts.push_back(rows.und.narrow(0, marker, 1));
    parts.push_back(rows.gen.narrow(0, gen, latents));
    parts.push_back(rows.und.narrow(0, marker + 1, 1));
    gen += latents;
  }
  return at::cat(parts);
}

}  // namespace

bool MotTrace::wants_rows(const std::string& prefix, std::string_view what) const {
  const std::string name = row_name(what);
  return !name.empty() && sink_.wants(fmt::format("{}.{}", prefix, name));
}

void MotTrace::rows(const std::string& prefix, std::string_view what, const Tensor& rows,
                    const SeenKeys& keys) const {
  const std::string name = row_name(what);
  if (name.empty()) return;
  sink_.record(fmt::format("{}.{}", prefix, name), rows);
  if (!shows_keys() || !what.ends_with(kAttended)) return;
  // "layerNN.attn.out"
  const std::int64_t layer = std::stoll(std::string(what.substr(5)));
  const std::string attention = fmt::format("{}.layer{:02}.attn.", prefix, layer);
  const auto record = [&](const char* which, const Tensor& all) {
    sink_.record(attention + which, all[keys.row].narrow(0, 0, keys.length));
  };
  record("k", keys.cache.keys(layer));
  record("v", keys.cache.values(layer));
}

MotObserver trace_step_observer(const PrefilledContexts& contexts,
                                std::span<const LatentSize> sizes, std::int64_t step,
                                std::int64_t first, std::int64_t count, MotTrace& trace) {
  return
      [&contexts, sizes, step, first, count, &trace](std::string_view what, const MotRows& rows) {
        for (const BranchContexts& branch : contexts.branches()) {
          const std::int64_t context = *contexts.context_of(branch.name);
          if (context < first || context >= first + count) continue;
          if (what == "embeds") trace.step_positions(step, branch, sizes);
          const std::string prefix = fmt::format("step{:03}.{}", step, branch.name);
          const SeenKeys keys = {contexts.cache(), contexts.cache_row(context, 0),
                                 branch.samples.front().length() + sizes.front().rows() + 2};
          if (trace.wants_rows(prefix, what) || trace.shows_keys())
            trace.rows(prefix, what, in_token_order(rows, sizes, context - first), keys);
        }
      };
}

void trace_cache(const PrefilledContexts& contexts, const BranchContexts& branch,
                 const std::string& name, std::int64_t from, TraceSink& sink) {
  const std::int64_t context = *contexts.context_of(branch.name);
  for (std::int64_t layer = 0; layer < contexts.cache().shape().layers; ++layer) {
    for (const bool key : {true, false}) {
      const std::string full =
          fmt::format("kv.{}.layer{:02}.{}", name, layer, key ? "key" : "value");
      if (!sink.wants(full)) continue;
      const Tensor all = key ? contexts.cache().keys(layer) : contexts.cache().values(layer);
      std::vector<Tensor> rows;
      for (std::int64_t s = 0; s < contexts.samples(); ++s) {
        const std::int64_t length = branch.samples[static_cast<std::size_t>(s)].length();
        rows.push_back(all[contexts.cache_row(context, s)].narrow(0, from, length - from));
      }
      sink.record(full, at::cat(rows));
    }
  }
}

}  // namespace diptych
