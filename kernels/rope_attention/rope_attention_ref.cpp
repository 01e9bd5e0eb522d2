#include <stdexcept>
#include <vector>

#include "kernels/decode_attention/decode_attention.h"
#include "kernels/rope_attention/rope_attention.h"

namespace diptych::kernels {

void rope_attention_ref(const RopeAttentionArgs& args) {
  QkNormRopeArgs rope = args.rope;
  const std::int64_t keys = *args.key_count;
  if (keys < rope.rows || keys > rope.capacity)
    throw std::out_of_range("[rope_attention] there are fewer keys than rows, or too many");
  for (std::int64_t row = 0; row < rope.rows; ++row) {
    if (rope.slots[row] != keys - rope.rows + row)
      throw std::out_of_range("[rope_attention] a row is not at its place among the last keys");
  }
  const auto elements = static_cast<std::size_t>(rope.rows * rope.heads * rope.head_dim);
  std::vector<float> q(elements);  // room for any dtype
  rope.q = q.data();
  qk_norm_rope_ref(rope);

  DecodeAttentionArgs attention;
  attention.q = q.data();
  attention.keys = rope.keys;
  attention.values = rope.values;
  attention.key_count = args.key_count;
  attention.out = args.out;
  attention.rows = rope.rows;
  attention.samples = 1;
  attention.heads = rope.heads;
  attention.kv_heads = rope.kv_heads;
  attention.head_dim = rope.head_dim;
  attention.capacity = rope.capacity;
  attention.q_stride = rope.heads * rope.head_dim;
  attention.key_stride = rope.kv_heads * rope.head_dim;
  attention.sample_stride = rope.capacity * attention.key_stride;
  attention.scale = args.scale;
  attention.causal = args.causal;
  attention.dtype = rope.dtype;
  decode_attention_ref(attention);
}

}  // namespace diptych::kernels
