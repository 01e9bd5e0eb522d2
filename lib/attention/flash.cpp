// FlashAttention-2's variable-length kernel as libtorch carries it (mha_varlen_fwd in
// aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp). The samples' key buffers are
// one packed sequence to it: cu_seq_k says where each begins, seqused_k how many of its rows are
// keys. Its masks, the causal one included (mask.h: limit = query + 1 + keys - queries), use
// seqused_k.
#include "lib/attention/backends.h"

namespace diptych {
namespace {

// Rows from one sample's keys to the next one's, where that is a whole number.
std::optional<std::int64_t> rows_per_sample(const Tensor& keys) {
  const std::int64_t stride = sample_stride(keys), row = keys.stride(1);
  if (row <= 0 || stride % row != 0) return std::nullopt;
  return stride / row;
}

// k or v as [rows, kv_heads, head_dim] over all samples; a view, also of a slice of a larger cache.
Tensor packed(const Tensor& keys, std::int64_t rows_apart) {
  const std::int64_t rows = (keys.size(0) - 1) * rows_apart + keys.size(1);
  return keys.as_strided({rows, keys.size(2), keys.size(3)}, {keys.stride(1), keys.size(3), 1},
                         keys.storage_offset());
}

class FlashAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "flash"; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return half_precision_unsupported(kind, 256);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = extras_unsupported(call)) return reason;
    if (std::optional<std::string> reason = alignment_unsupported(call)) return reason;
    const std::optional<std::int64_t> rows = rows_per_sample(call.k);
    if (!rows || rows != rows_per_sample(call.v)) {
      return "needs samples of k and v that lie the same whole number of rows apart";
    }
    return std::nullopt;
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    const AttentionLengths& lengths = *call.lengths;
    const std::int64_t rows = rows_per_sample(call.k).value();
    Tensor starts = lengths.cu_capacity;
    if (rows != lengths.capacity) {  // a slice of a larger cache
      starts = at::arange(0, rows * (lengths.samples() + 1), rows, starts.options());
    }
    // The capacity in place of max_k: a captured launch keeps the number when lengths change.
    return std::get<0>(at::_flash_attention_forward(
        call.q, packed(call.k, rows), packed(call.v, rows), lengths.cu_q, starts, lengths.max_q,
        lengths.capacity, /*dropout_p=*/0.0, call.causal, /*return_debug_mask=*/false, call.scale,
        /*window_size_left=*/std::nullopt, /*window_size_right=*/std::nullopt, lengths.k_device,
        /*alibi_slopes=*/std::nullopt));
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_flash(at::Device /*device*/) {
  return std::make_unique<FlashAttention>();
}

}  // namespace diptych
