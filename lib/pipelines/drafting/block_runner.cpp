#include "lib/pipelines/drafting/block_runner.h"

#include <algorithm>
#include <tuple>

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
    : parts_(parts),
      target_(parts.target),
      drafter_(parts.drafter),
      runtime_(parts.runtime),
      attention_(parts.runtime.read_attention.of(AttentionRole::self)),
      block_attention_({parts.runtime.device, parts.runtime.dtype, parts.target.config.head_dim},
                       parts.runtime.kernels),
      target_cache_(parts.target_cache),
      drafter_cache_(parts.drafter_cache),
      sampling_(parts.sampling),
      vocab_limit_(parts.vocab_limit) {
  const auto numbers = at::TensorOptions().device(runtime_.device).dtype(at::kLong);
  starts_ = at::zeros({target_cache_.rows()}, numbers);
  anchors_ = at::zeros({target_cache_.rows()}, numbers);
  const Tensor positions = at::arange(target_cache_.capacity(), numbers);
  const auto rotation = [&](const QwenConfig& config) {
    const auto [cos, sin] = qwen_rope_table(positions, config, runtime_.dtype);
    return Rotation{cos, sin};
  };
  target_rotation_ = rotation(target_.config);
  if (drafter_ != nullptr) drafter_rotation_ = rotation(drafter_->config.decoder);
}

bool BlockRunner::serves(const BlockRunnerParts& parts) const {
  const auto settings = [](const BlockRunnerParts& p) {
    return std::tuple(&p.target, p.drafter, &p.runtime, &p.target_cache, p.drafter_cache,
                      p.sampling.temperature, p.sampling.top_k, p.sampling.top_p, p.vocab_limit,
                      p.graphs, p.forced_acceptance);
  };
  return settings(parts_) == settings(parts);
}

const AttentionBackend& BlockRunner::attention_of(const Block& block) const {
  return block.on_device ? static_cast<const AttentionBackend&>(block_attention_) : attention_;
}

QwenRows BlockRunner::target_rows(const Packed& packed) const {
  const Tensor positions = shift_ == 0 ? packed.positions : packed.positions + shift_;
  return rows_at(positions, packed, target_rotation_);
}

// A drafter counts rows, whatever the target has at one position.
QwenRows BlockRunner::drafter_rows(const Packed& packed) const {
  return rows_at(packed.positions, packed, drafter_rotation_);
}

QwenRows BlockRunner::rows_at(const Tensor& positions, const Packed& packed,
                              const Rotation& table) {
  QwenRows rows;
  // index_select() on a GPU takes few rows one after the other.
  rows.cos = at::index(table.cos, {positions});
  rows.sin = at::index(table.sin, {positions});
  rows.slots = packed.slots;
  rows.lengths = &packed.lengths;
  return rows;
}

// A block is kept, so that graphs find its tensors and the attention its decisions again.
BlockRunner::Block& BlockRunner::block_of(std::int64_t texts, std::int64_t width) {
  Block& block = blocks_[{texts, width}];
  if (block.texts > 0) return block;
  const BlockDrafter* drafter = parts_.drafter;
  block.on_device =
      target_.captures &&
      !why_not_on_device(target_.config, drafter == nullptr ? nullptr : &drafter->config.decoder,
                         runtime_, width);
  const auto numbers = starts_.options();
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(texts), width);
  const std::int64_t capacity = target_cache_.capacity();
  block.packed.lengths = AttentionLengths::make(rows, rows, capacity, runtime_.device);
  block.packed.positions = at::zeros({texts * width}, numbers);
  block.packed.slots = at::zeros({texts * width}, numbers);
  block.offsets = at::arange(width, numbers).unsqueeze(0);
  block.first_slots = at::arange(texts, numbers).mul_(capacity).unsqueeze(1);
  block.drafts = at::zeros({texts, width - 1}, numbers);
  block.results = at::zeros({kMostAhead, texts, 1 + 2 * width}, numbers);
  block.place = at::zeros({1}, numbers);
  block.width = width;
  block.texts = texts;  // last: a block that is there is whole
  settled_ = false;
  return block;
}

// What the host knows of them, before as many iterations that accept no draft.
void BlockRunner::follow_lengths(Block& block, std::int64_t iterations) const {
  const std::int64_t capacity = target_cache_.capacity();
  AttentionLengths& lengths = block.packed.lengths;
  for (std::int64_t row = 0; row < block.texts; ++row)
    lengths.k[static_cast<std::size_t>(row)] = target_cache_.length(row) + block.width;
  lengths.max_k = *std::ranges::max_element(lengths.k);
  TORCH_CHECK(lengths.max_k + iterations - 1 <= capacity, "[speculative] ",
              lengths.max_k + iterations - 1, " rows in a cache of ", capacity);
}

// Where rows lie, and how many keys there are with them.
void BlockRunner::place_rows(const Block& block) const {
  const Tensor starts = starts_.narrow(0, 0, block.texts);
  const Tensor positions = starts.unsqueeze(1) + block.offsets;
  block.packed.positions.copy_(positions.flatten());
  block.packed.slots.copy_((positions + block.first_slots).flatten());
  block.packed.lengths.k_device.copy_(starts + block.width);
}

bool BlockRunner::captures(std::int64_t width, std::span<const TextTrace> traces) {
  return parts_.graphs && !any(traces) &&
         block_of(static_cast<std::int64_t>(traces.size()), width).on_device;
}

BlockRunner::Forward BlockRunner::verification() const {
  return drafter_ == nullptr ? Forward::verify : Forward::verify_for_drafts;
}

RepeatedWork BlockRunner::work_of(Block& block, Forward forward, std::int64_t times) {
  constexpr std::int64_t kForwards = 4, kWidths = 1 << 20;
  RepeatedWork work;
  work.key = (block.texts * kWidths + block.width) * kForwards + static_cast<std::int64_t>(forward);
  work.times = times;
  work.once = [this, &block, forward] {
    std::vector<TextTrace> none(static_cast<std::size_t>(block.texts));
    if (forward == Forward::draft) {
      launch_draft(block, none);
    } else {
      launch_verify(block, none);
    }
  };
  return work;
}

// A forward that is captured is computed once before: that must leave no trace in what texts go on
// from. What it writes to the caches lies behind their texts.
void BlockRunner::prepare(std::int64_t width, std::span<const TextTrace> traces) {
  if (!captures(width, traces)) return;
  Block& block = block_of(static_cast<std::int64_t>(traces.size()), width);
  std::vector<RepeatedWork> works;
  if (width > 1) works.push_back(work_of(block, Forward::draft, 1));
  works.push_back(work_of(block, verification(), 1));
  std::erase_if(works, [&](const RepeatedWork& work) { return captured_.contains(work.key); });
  if (works.empty()) return;
  follow_lengths(block, 1);
  if (sampling_.temperature > 0 && !block.noise.defined()) {
    block.noise = noise_room(block);
  }
  if (width > 1) place_rows(block);
  const Tensor starts = starts_.clone(), anchors = anchors_.clone();
  settled_ = false;
  settle();
  if (!graphs_) graphs_ = make_launch_graphs(runtime_.device);
  graphs_->prepare(works);
  starts_.copy_(starts);
  anchors_.copy_(anchors);
  block.place.zero_();
  block.next = 0;
  settled_ = false;
  for (const RepeatedWork& work : works) captured_.insert(work.key);
}

// Graphs run on a stream of their own.
void BlockRunner::settle() {
  if (!std::exchange(settled_, true)) synchronize(runtime_.device);
}

void BlockRunner::run(Block& block, std::int64_t times, std::span<TextTrace> traces) {
  if (captures(block.width, traces)) {
    std::vector<RepeatedWork> works;
    if (std::exchange(draft_pending_, false)) works.push_back(work_of(block, Forward::draft, 1));
    works.push_back(work_of(block, verification(), times));
    const auto is_new = [&](const RepeatedWork& work) { return !captured_.contains(work.key); };
    if (std::ranges::any_of(works, is_new)) prepare(block.width, traces);
    settle();
    graphs_->run(works, [] {});
    return;
  }
  launch_verify(block, traces);
}

Tensor BlockRunner::empty_features(std::int64_t rows) const {
  if (drafter_ == nullptr) return {};
  return at::empty({rows, drafter_->config.feature_width()}, drafter_->fc.options());
}

Tensor BlockRunner::forward(const QwenRows& rows, Tensor x, const Tensor& features,
                            const AttentionBackend& attention, const QwenObserver& observer) {
  const auto seen = [&](std::int64_t layer, const Tensor& behind) {
    if (features.defined()) drafter_->collect(layer, behind, features);
    if (observer) observer(layer, behind);
  };
  const Tensor hidden =
      target_.forward(rows, std::move(x), target_cache_, attention, runtime_.kernels, seen);
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
  BlockDrafterObserver observer;
  if (any(traces)) {
    show("target_hidden", features);
    observer = show;
  }
  drafter_->write_context(rows, features, *drafter_cache_, runtime_.kernels, observer);
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
  QwenRows rows = target_rows(packed);
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
  const Tensor hidden = forward(rows, std::move(x), features, attention_, observer);
  trace.prefill("final_norm", hidden);
  if (features.defined()) {
    trace.prefill("context_feature", features);
    QwenRows context = drafter_rows(packed);
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
  const Tensor token =
      next_tokens(logits, sampling_, on_device(noise, runtime_.device), vocab_limit_);
  set_length(row, length);
  starts_.select(0, row).fill_(length);
  anchors_.select(0, row).copy_(token[0]);
  show_prefill(row, logits, noise, trace);
  settled_ = false;
  return read_token(token);
}

void BlockRunner::go_on(const TextContext& context) {
  TORCH_CHECK(!target_.captures || context.position == context.length,
              "[speculative] positions that are shifted in a forward that is captured");
  TORCH_CHECK(context.position >= 0 && context.position <= context.length,
              "[speculative] position ", context.position, " behind ", context.length, " rows");
  shift_ = context.position - context.length;
  set_length(0, context.length);
  starts_.select(0, 0).fill_(context.length);
  anchors_.select(0, 0).fill_(context.first_token);
  settled_ = false;
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
  trace.whole("first_token", anchors_.narrow(0, row, 1));
  if (!noise.defined()) return;
  trace.record("sampling.prefill_noise", noise);
  trace.record("sampling.prefill_probs", probabilities(logits, sampling_.temperature));
}

void BlockRunner::set_length(std::int64_t row, std::int64_t length) {
  target_cache_.truncate(row, length);
  if (drafter_cache_ != nullptr) drafter_cache_->truncate(row, length);
}

void BlockRunner::draft(std::int64_t width, std::span<TextTrace> traces) {
  Block& block = block_of(static_cast<std::int64_t>(traces.size()), width);
  follow_lengths(block, 1);
  for (std::int64_t row = 0; row < block.texts; ++row)
    traces[static_cast<std::size_t>(row)].begin_draft(target_cache_.length(row), width);
  // Captured, it is launched with the verification: the host waits once for both.
  if (captures(width, traces)) {
    draft_pending_ = true;
  } else {
    launch_draft(block, traces);
  }
}

void BlockRunner::launch_draft(const Block& block, std::span<TextTrace> traces) {
  place_rows(block);
  const std::int64_t texts = block.texts, width = block.width;
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
  const Tensor hidden = drafter_->forward(drafter_rows(block.packed), std::move(x), *drafter_cache_,
                                          attention_of(block), runtime_.kernels, observer);
  // The first row is the anchor's own.
  const Tensor masked = hidden.view({texts, width, -1}).narrow(1, 1, width - 1).flatten(0, 1);
  const Tensor logits = target_.logits(masked, runtime_.kernels);
  show_draft(block, hidden, logits, traces);
  block.drafts.copy_(logits.narrow(1, 0, vocab_limit_).argmax(1).view({texts, width - 1}));
}

void BlockRunner::show_draft(const Block& block, const Tensor& hidden, const Tensor& logits,
                             std::span<TextTrace> traces) const {
  if (!any(traces)) return;
  show_block(traces, "norm_out", hidden);
  show_block(traces, "draft_logits", logits);
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const std::int64_t length = block.packed.lengths.k[i];
    for (std::int64_t layer = 0; layer < drafter_cache_->shape().layers; ++layer) {
      const std::string name = fmt::format("draft_kv.layer{:02}.", layer);
      const auto row = static_cast<std::int64_t>(i);
      traces[i].block(name + "key", cached(drafter_cache_->keys(layer), row, length));
      traces[i].block(name + "value", cached(drafter_cache_->values(layer), row, length));
    }
  }
}

// The one copy of an iteration from the device.
std::vector<BlockResult> BlockRunner::verify(std::int64_t width, const Tensor& noise,
                                             std::span<TextTrace> traces) {
  Block& block = block_of(static_cast<std::int64_t>(traces.size()), width);
  follow_lengths(block, 1);
  take_noise(block, noise);
  run(block, 1, traces);
  const Tensor host = block.results[block.next].cpu();
  block.next = (block.next + 1) % kMostAhead;
  std::vector<BlockResult> results;
  for (std::int64_t row = 0; row < block.texts; ++row)
    results.push_back(read(block, host[row], row, traces[static_cast<std::size_t>(row)]));
  if (!block.on_device) block.noise.reset();
  return results;
}

void BlockRunner::run_ahead(std::int64_t count,
                            const std::function<bool(const BlockResult&)>& take) {
  TORCH_CHECK(count >= 1 && count <= kMostAhead, "[speculative] ", count, " iterations at once");
  TextTrace none;
  Block& block = block_of(1, 1);
  follow_lengths(block, count);
  run(block, count, std::span(&none, 1));
  const Tensor host = block.results.cpu();
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor numbers = host[(block.next + i) % kMostAhead][0];
    if (!take(read(block, numbers, 0, none))) break;
  }
  block.next = (block.next + count) % kMostAhead;
}

// Into the memory that a captured forward reads.
void BlockRunner::take_noise(Block& block, const Tensor& noise) {
  if (!noise.defined()) return;
  if (block.on_device) {
    if (!block.noise.defined()) block.noise = noise_room(block);
    block.noise.copy_(on_device(noise, runtime_.device));
  } else {
    block.noise = on_device(noise, runtime_.device);
  }
  settled_ = false;
}

// Blocks of one width have theirs in one place: only one of them runs at a time.
Tensor BlockRunner::noise_room(const Block& block) {
  Tensor& all = noise_[block.width];
  if (!all.defined()) {
    all = at::ones({target_cache_.rows() * block.width, target_.config.vocab_size},
                   starts_.options().dtype(at::kFloat));
  }
  return all.narrow(0, 0, block.texts * block.width);
}

// What is forced is put over what was found, so that a forward has as much to do.
Tensor BlockRunner::acceptance_of(const Block& block, const Tensor& choices) const {
  Tensor acceptance = acceptance_lengths(block.drafts, choices);
  if (parts_.forced_acceptance > 0 && block.width > 1) acceptance.fill_(parts_.forced_acceptance);
  return acceptance;
}

void BlockRunner::launch_verify(const Block& block, std::span<TextTrace> traces) {
  const std::int64_t texts = block.texts, width = block.width;
  if (width == 1) place_rows(block);  // else the drafts are of the same rows
  const Tensor starts = starts_.narrow(0, 0, texts), anchors = anchors_.narrow(0, 0, texts);
  const Tensor ids = at::cat({anchors.unsqueeze(1), block.drafts}, 1);
  const Tensor features = empty_features(texts * width);
  const Tensor hidden = forward(target_rows(block.packed), target_.embed(ids.flatten()), features,
                                attention_of(block), {});
  const Tensor logits = target_.logits(hidden, runtime_.kernels);
  const Tensor choices =
      next_tokens(logits, sampling_, block.noise, vocab_limit_).view({texts, width});
  const Tensor acceptance = acceptance_of(block, choices);
  show_verify(block, logits, features, traces);
  if (features.defined()) write_context(drafter_rows(block.packed), features, traces);
  block.results.index_copy_(0, block.place,
                            at::cat({acceptance.unsqueeze(1), choices, ids}, 1).unsqueeze(0));
  block.place.add_(1).remainder_(kMostAhead);
  starts.add_(acceptance);
  anchors.copy_(choices.gather(1, (acceptance - 1).unsqueeze(1)).squeeze(1));
}

void BlockRunner::show_verify(const Block& block, const Tensor& logits, const Tensor& features,
                              std::span<TextTrace> traces) const {
  if (!any(traces)) return;
  show_block(traces, "verify.position_ids", block.packed.positions.clone());
  show_block(traces, "verify.logits", logits);
  if (features.defined()) show_block(traces, "verify.feature", features);
  if (!block.noise.defined()) return;
  const std::int64_t width = block.width;
  const Tensor noise = block.noise.cpu();
  for (std::size_t i = 0; i < traces.size(); ++i) {
    traces[i].noise(of_text(noise, i, width));
    traces[i].first_probabilities(
        [&] { return probabilities(of_text(logits, i, width), sampling_.temperature); });
  }
}

// `numbers`: a row of an iteration's results, on the CPU. The text goes on behind what is accepted.
BlockResult BlockRunner::read(const Block& block, const Tensor& numbers, std::int64_t row,
                              TextTrace& trace) {
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  const auto width = static_cast<std::size_t>(block.width);
  const std::span<const std::int64_t> chosen(first + 1, width);
  BlockResult result{*first, {}};
  for (const std::int64_t id : chosen.first(static_cast<std::size_t>(result.acceptance)))
    result.new_ids.push_back(id == kNoToken ? read_token(at::tensor(id)) : id);
  const std::int64_t start = target_cache_.length(row);
  if (trace) trace.end_block(start, {first + 1 + width, width}, chosen, result.acceptance);
  set_length(row, start + result.acceptance);
  return result;
}

void BlockRunner::move(std::int64_t from, std::int64_t to) {
  if (from == to) return;
  target_cache_.copy_row(to, target_cache_, from, target_cache_.length(from));
  if (drafter_ != nullptr)
    drafter_cache_->copy_row(to, *drafter_cache_, from, drafter_cache_->length(from));
  starts_.select(0, to).copy_(starts_.select(0, from));
  anchors_.select(0, to).copy_(anchors_.select(0, from));
  settled_ = false;
}

}  // namespace diptych
