#include "lib/pipelines/qwen3_dflash/block_runner.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/models/qwen/rope.h"
#include "lib/sampling/speculative.h"
#include "lib/sampling/token_rows.h"

namespace diptych {
namespace {

// Rows of a prompt that enter at once: what a layer holds of them, and their features, stay small.
constexpr std::int64_t kPrefillRows = 4096;

// The rows of text `index` in a packed call.
Tensor of_text(const Tensor& packed, std::size_t index, std::int64_t width) {
  return packed.narrow(0, static_cast<std::int64_t>(index) * width, width);
}

bool any(std::span<const TextTrace> traces) {
  return std::ranges::any_of(traces, [](const TextTrace& trace) { return bool(trace); });
}

void show_block(std::span<TextTrace> traces, std::string_view what, const Tensor& rows) {
  if (!any(traces)) return;
  const std::int64_t width = rows.size(0) / static_cast<std::int64_t>(traces.size());
  for (std::size_t i = 0; i < traces.size(); ++i) traces[i].block(what, of_text(rows, i, width));
}

// Keys or values of one text, [kv_heads, length, head_dim].
Tensor cached(const Tensor& layer, std::int64_t row, std::int64_t length) {
  return layer.select(0, row).narrow(0, 0, length).transpose(0, 1);
}

// From page-locked memory the copy does not wait for what was launched before it.
Tensor on_device(const Tensor& noise, at::Device device) {
  if (!noise.defined() || !device.is_cuda()) return noise;
  return noise.pin_memory().to(device, /*non_blocking=*/true);
}

Tensor probabilities(const Tensor& logits, double temperature) {
  return at::softmax(logits.to(at::kFloat) / temperature, -1);
}

}  // namespace

BlockRunner::BlockRunner(const BlockRunnerParts& parts)
    : target_(parts.target),
      drafter_(parts.drafter),
      runtime_(parts.runtime),
      attention_(parts.runtime.read_attention.of(AttentionRole::self)),
      target_cache_(parts.target_cache),
      drafter_cache_(parts.drafter_cache),
      sampling_(parts.sampling),
      vocab_limit_(parts.vocab_limit) {
  const auto numbers = at::TensorOptions().device(runtime_.device).dtype(at::kLong);
  starts_ = at::zeros({target_cache_.rows()}, numbers);
  anchors_ = at::zeros({target_cache_.rows()}, numbers);
  const Tensor positions = at::arange(target_cache_.capacity(), numbers);
  const auto rotation = [&](const QwenConfig& config) {
    const auto [cos, sin] = rope_table(rope_angles(positions, config), runtime_.dtype);
    return Rotation{cos, sin};
  };
  target_rotation_ = rotation(target_.config);
  if (drafter_ != nullptr) drafter_rotation_ = rotation(drafter_->config.decoder);
}

QwenRows BlockRunner::rows_of(const Packed& packed, const Rotation& table) const {
  QwenRows rows;
  rows.cos = table.cos.index_select(0, packed.positions);
  rows.sin = table.sin.index_select(0, packed.positions);
  rows.slots = packed.slots;
  rows.lengths = &packed.lengths;
  return rows;
}

// The tensors of lengths are kept while shapes are the same, so that the attention finds its
// decisions again.
void BlockRunner::pack(std::int64_t texts, std::int64_t width) {
  const std::int64_t capacity = target_cache_.capacity();
  std::vector<std::int64_t> keys;
  for (std::int64_t row = 0; row < texts; ++row) keys.push_back(target_cache_.length(row) + width);
  const Tensor starts = starts_.narrow(0, 0, texts);
  const std::vector<std::int64_t> queries(static_cast<std::size_t>(texts), width);
  AttentionLengths& lengths = packed_.lengths;
  if (lengths.q != queries) {
    lengths = AttentionLengths::make(queries, keys, capacity, runtime_.device);
  } else {
    lengths.max_k = *std::ranges::max_element(keys);
    TORCH_CHECK(lengths.max_k <= capacity, "[speculative] ", lengths.max_k, " rows in a cache of ",
                capacity);
    lengths.k = std::move(keys);
    lengths.k_device.copy_(starts + width);
  }
  const auto numbers = starts_.options();
  const Tensor positions = starts.unsqueeze(1) + at::arange(width, numbers);
  const Tensor first_slots = at::arange(texts, numbers).mul_(capacity).unsqueeze(1);
  packed_.positions = positions.flatten();
  packed_.slots = (positions + first_slots).flatten();
}

Tensor BlockRunner::empty_features(std::int64_t rows) const {
  if (drafter_ == nullptr) return {};
  return at::empty({rows, drafter_->config.feature_width()}, target_.embed_tokens.options());
}

Tensor BlockRunner::forward(const QwenRows& rows, Tensor x, const Tensor& features,
                            const QwenObserver& observer) {
  const auto seen = [&](std::int64_t layer, const Tensor& behind) {
    if (features.defined()) drafter_->collect(layer, behind, features);
    if (observer) observer(layer, behind);
  };
  const Tensor hidden = target_.decoder.forward(rows, std::move(x), target_cache_, attention_,
                                                runtime_.kernels, seen);
  if (features.defined()) drafter_->collect_last(hidden, features);
  return hidden;
}

// All rows of a block are written, those of rejected drafts, too: the next block goes over them.
void BlockRunner::write_context(QwenRows rows, const Tensor& features,
                                std::span<TextTrace> traces) {
  const auto show = [&](std::string_view what, const Tensor& all) {
    const std::int64_t width = all.size(0) / static_cast<std::int64_t>(traces.size());
    for (std::size_t i = 0; i < traces.size(); ++i) traces[i].context(what, of_text(all, i, width));
  };
  DflashObserver observer;
  if (any(traces)) {
    show("target_hidden", features);
    observer = show;
  }
  drafter_->write_context(rows, features, *drafter_cache_, runtime_.kernels, observer);
}

Tensor BlockRunner::choose(const Tensor& logits, const Tensor& noise) const {
  return next_tokens(logits, sampling_, on_device(noise, runtime_.device), vocab_limit_);
}

// Rows [begin, begin + ids.size(0)) of a prompt. -> the last of them, behind the final norm
Tensor BlockRunner::read_prompt(std::int64_t row, std::int64_t begin, const Tensor& ids,
                                TextTrace& trace) {
  const std::int64_t count = ids.size(0);
  Packed packed;
  packed.positions = at::arange(begin, begin + count, ids.options());
  packed.slots = packed.positions;
  packed.lengths =
      AttentionLengths::make({count}, {begin + count}, target_cache_.capacity(), runtime_.device);
  QwenRows rows = rows_of(packed, target_rotation_);
  rows.first_cache_row = row;
  const Tensor features = empty_features(count);
  Tensor x = target_.embed(ids);
  trace.prefill("embed", x);
  QwenObserver observer;
  if (trace) {
    observer = [&](std::int64_t layer, const Tensor& behind) {
      trace.prefill(fmt::format("layer{:02}.hidden", layer), behind);
    };
  }
  const Tensor hidden = forward(rows, std::move(x), features, observer);
  trace.prefill("final_norm", hidden);
  if (features.defined()) {
    trace.prefill("context_feature", features);
    QwenRows context = rows_of(packed, drafter_rotation_);
    context.first_cache_row = row;
    write_context(context, features, std::span(&trace, 1));
  }
  return hidden.narrow(0, count - 1, 1);
}

std::int64_t BlockRunner::prefill(std::int64_t row, std::span<const std::int64_t> prompt,
                                  const Tensor& noise, TextTrace& trace) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  TORCH_CHECK(length > 0, "[speculative] an empty prompt");
  const Tensor ids =
      at::tensor(at::IntArrayRef(prompt.data(), prompt.size()), at::kLong).to(runtime_.device);
  const std::int64_t step = trace ? length : std::min(length, kPrefillRows);
  Tensor last;
  for (std::int64_t begin = 0; begin < length; begin += step) {
    last = read_prompt(row, begin, ids.narrow(0, begin, std::min(step, length - begin)), trace);
  }
  const Tensor logits = target_.logits(last, runtime_.kernels);
  const Tensor token = choose(logits, noise);
  set_length(row, length);
  starts_.select(0, row).fill_(length);
  anchors_.select(0, row).copy_(token[0]);
  show_prefill(row, logits, noise, trace);
  return read_token(token);
}

void BlockRunner::show_prefill(std::int64_t row, const Tensor& logits, const Tensor& noise,
                               TextTrace& trace) const {
  if (!trace) return;
  const std::int64_t length = target_cache_.length(row);
  for (std::int64_t layer = 0; layer < target_.config.num_hidden_layers; ++layer) {
    const std::string name = fmt::format("kv.layer{:02}.", layer);
    trace.prefill(name + "key", cached(target_cache_.keys(layer), row, length));
    trace.prefill(name + "value", cached(target_cache_.values(layer), row, length));
  }
  trace.prefill("logits_last", logits[0]);
  trace.record("dflash.first_token", anchors_.narrow(0, row, 1));
  if (!noise.defined()) return;
  trace.record("sampling.prefill_noise", noise);
  trace.record("sampling.prefill_probs", probabilities(logits, sampling_.temperature));
}

void BlockRunner::set_length(std::int64_t row, std::int64_t length) {
  target_cache_.truncate(row, length);
  if (drafter_cache_ != nullptr) drafter_cache_->truncate(row, length);
}

Tensor BlockRunner::draft(std::int64_t width, std::span<TextTrace> traces) {
  const auto texts = static_cast<std::int64_t>(traces.size());
  pack(texts, width);
  for (std::int64_t row = 0; row < texts; ++row)
    traces[static_cast<std::size_t>(row)].begin_draft(target_cache_.length(row), width);
  const Tensor ids = at::full({texts, width}, drafter_->config.mask_token_id, anchors_.options());
  ids.select(1, 0).copy_(anchors_.narrow(0, 0, texts));
  Tensor x = target_.embed(ids.flatten());
  show_block(traces, "noise_embedding", x);
  QwenObserver observer;
  if (any(traces)) {
    observer = [&](std::int64_t layer, const Tensor& behind) {
      show_block(traces, fmt::format("layer{:02}.hidden", layer), behind);
    };
  }
  const Tensor hidden = drafter_->forward(rows_of(packed_, drafter_rotation_), std::move(x),
                                          *drafter_cache_, attention_, runtime_.kernels, observer);
  // The first row is the anchor's own.
  const Tensor masked = hidden.view({texts, width, -1}).narrow(1, 1, width - 1).flatten(0, 1);
  const Tensor logits = target_.logits(masked, runtime_.kernels);
  show_draft(hidden, logits, traces);
  return logits.narrow(1, 0, vocab_limit_).argmax(1).view({texts, width - 1});
}

void BlockRunner::show_draft(const Tensor& hidden, const Tensor& logits,
                             std::span<TextTrace> traces) const {
  if (!any(traces)) return;
  show_block(traces, "norm_out", hidden);
  show_block(traces, "draft_logits", logits);
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const std::int64_t length = packed_.lengths.k[i];
    for (std::int64_t layer = 0; layer < drafter_cache_->shape().layers; ++layer) {
      const std::string name = fmt::format("draft_kv.layer{:02}.", layer);
      const auto row = static_cast<std::int64_t>(i);
      traces[i].block(name + "key", cached(drafter_cache_->keys(layer), row, length));
      traces[i].block(name + "value", cached(drafter_cache_->values(layer), row, length));
    }
  }
}

std::vector<BlockResult> BlockRunner::verify(const Tensor& drafts, const Tensor& noise,
                                             std::span<TextTrace> traces) {
  const auto texts = static_cast<std::int64_t>(traces.size());
  if (!drafts.defined()) pack(texts, 1);
  Tensor starts = starts_.narrow(0, 0, texts), anchors = anchors_.narrow(0, 0, texts);
  Tensor block = anchors.unsqueeze(1).clone();
  if (drafts.defined()) block = at::cat({block, drafts}, 1);
  const std::int64_t width = block.size(1);
  const Tensor features = empty_features(texts * width);
  const Tensor hidden =
      forward(rows_of(packed_, target_rotation_), target_.embed(block.flatten()), features, {});
  const Tensor logits = target_.logits(hidden, runtime_.kernels);
  const Tensor choices = choose(logits, noise).view({texts, width});
  const Tensor acceptance = acceptance_lengths(block.narrow(1, 1, width - 1), choices);
  show_verify(logits, features, noise, traces);
  if (features.defined()) write_context(rows_of(packed_, drafter_rotation_), features, traces);
  starts.add_(acceptance);
  anchors.copy_(choices.gather(1, (acceptance - 1).unsqueeze(1)).squeeze(1));
  return read(acceptance, choices, block, traces);
}

void BlockRunner::show_verify(const Tensor& logits, const Tensor& features, const Tensor& noise,
                              std::span<TextTrace> traces) const {
  if (!any(traces)) return;
  show_block(traces, "verify.position_ids", packed_.positions);
  show_block(traces, "verify.logits", logits);
  if (features.defined()) show_block(traces, "verify.feature", features);
  if (!noise.defined()) return;
  const std::int64_t width = packed_.lengths.max_q;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    traces[i].noise(of_text(noise, i, width));
    traces[i].first_probabilities(
        [&] { return probabilities(of_text(logits, i, width), sampling_.temperature); });
  }
}

// The one copy of an iteration from the device.
std::vector<BlockResult> BlockRunner::read(const Tensor& acceptance, const Tensor& choices,
                                           const Tensor& block, std::span<TextTrace> traces) {
  std::vector<Tensor> columns = {acceptance.unsqueeze(1), choices};
  if (any(traces)) columns.push_back(block);
  const Tensor host = at::cat(columns, 1).cpu();
  const std::int64_t width = choices.size(1);
  std::vector<BlockResult> results;
  for (std::int64_t row = 0; row < host.size(0); ++row) {
    const auto* numbers = host[row].const_data_ptr<std::int64_t>();
    const std::span<const std::int64_t> chosen(numbers + 1, static_cast<std::size_t>(width));
    BlockResult result{*numbers, {}};
    for (const std::int64_t id : chosen.first(static_cast<std::size_t>(result.acceptance)))
      result.new_ids.push_back(id == kNoToken ? read_token(at::tensor(id)) : id);
    const std::int64_t start = target_cache_.length(row);
    if (TextTrace& trace = traces[static_cast<std::size_t>(row)]; trace)
      trace.end_block(start, {numbers + 1 + width, chosen.size()}, chosen, result.acceptance);
    set_length(row, start + result.acceptance);
    results.push_back(std::move(result));
  }
  return results;
}

void BlockRunner::move(std::int64_t from, std::int64_t to) {
  if (from == to) return;
  target_cache_.copy_row(to, target_cache_, from, target_cache_.length(from));
  if (drafter_ != nullptr)
    drafter_cache_->copy_row(to, *drafter_cache_, from, drafter_cache_->length(from));
  starts_.select(0, to).copy_(starts_.select(0, from));
  anchors_.select(0, to).copy_(anchors_.select(0, from));
}

}  // namespace diptych
