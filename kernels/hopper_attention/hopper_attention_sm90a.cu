#include "kernels/device_attention.cuh"
#include "kernels/hopper_attention/hopper_attention.h"

namespace diptych::kernels {
namespace {

static_assert(kAttentionDims == kHopperHeadDim);

template <typename T, bool kCausal, int kBlocks, bool kBiased = false>
using Kind = AttentionKind<T, HopperAttentionArgs, kCausal, kBlocks, kBiased>;
static_assert(Kind<__nv_bfloat16, false, 1>::kTileRows == kHopperQueryTile);

template <int kBlocks>
std::int64_t places(const HopperAttentionArgs& args) {
  return args.heads * (kBlocks == 1 ? args.query_tiles : args.query_tile_pairs);
}

template <typename K>
const char* launch(const HopperAttentionArgs& args, CUstream_st* stream) {
  constexpr TileElement kElement =
      std::is_same_v<typename K::Element, __half> ? TileElement::f16 : TileElement::bf16;
  const Boxes<3> q = {args.q,
                      {kAttentionDims, args.heads, args.rows},
                      {args.q_head_stride, args.q_stride},
                      {K::kPanelDims, 1, K::kTileRows}};
  const auto boxes_of = [&args](const void* at, std::int64_t stride, std::int64_t sample_stride) {
    return Boxes<4>{at,
                    {kAttentionDims, args.kv_heads, args.capacity, args.samples},
                    {kAttentionDims, stride, sample_stride},
                    {K::kPanelDims, 1, K::kLoadedKeys, 1}};
  };
  AttentionMaps maps;
  for (const char* error :
       {make_box_map(&maps.q, kElement, q),
        make_box_map(&maps.keys, kElement,
                     boxes_of(args.keys, args.key_stride, args.key_sample_stride)),
        make_box_map(&maps.values, kElement,
                     boxes_of(args.values, args.value_stride, args.value_sample_stride))}) {
    if (error != nullptr) return error;
  }
  return launch_attention<K>(args, places<K::kBlocks>(args), maps, stream);
}

// How often every cluster of the device takes a place.
template <int kBlocks>
std::int64_t rounds(const HopperAttentionArgs& args) {
  return parts_of(places<kBlocks>(args), clusters_at_once<kBlocks>());
}

// Two blocks that share what they load are 4 % faster than alone, but may leave more of the device
// idle in the last round.
bool pays_in_pairs(const HopperAttentionArgs& args) {
  return 96 * rounds<kClusterBlocks>(args) <= 100 * rounds<1>(args);
}

}  // namespace

const char* hopper_attention_unsupported(const HopperAttentionArgs& args) {
  if (const char* reason = attention_sizes_unsupported(args)) return reason;
  if (args.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  if (args.last_key_bias != nullptr && args.causal) return "takes no bias with a causal mask";
  for (const std::int64_t step :
       {args.q_stride, args.q_head_stride, args.key_stride, args.value_stride,
        args.key_sample_stride, args.value_sample_stride}) {
    if (!vectors_fit(args.dtype, step)) return "rows do not begin at multiples of 16 bytes";
  }
  if (!aligned(args.q) || !aligned(args.keys) || !aligned(args.values) || !aligned(args.out))
    return "rows do not begin at multiples of 16 bytes";
  return nullptr;
}

bool hopper_attention_runs_here() {
  return has_hopper_code(attention_kernel<Kind<__nv_bfloat16, false, 1>>);
}

const char* hopper_attention(const HopperAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = hopper_attention_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  if (args.last_key_bias != nullptr) {  // of few keys: blocks that share them would save little
    return args.dtype == DType::bf16 ? launch<Kind<__nv_bfloat16, false, 1, true>>(args, stream)
                                     : launch<Kind<__half, false, 1, true>>(args, stream);
  }
  const auto launch_for = [&](auto causal, auto blocks) {
    constexpr bool kCausal = decltype(causal)::value;
    constexpr int kBlocks = decltype(blocks)::value;
    return args.dtype == DType::bf16 ? launch<Kind<__nv_bfloat16, kCausal, kBlocks>>(args, stream)
                                     : launch<Kind<__half, kCausal, kBlocks>>(args, stream);
  };
  const auto launch_in = [&](auto blocks) {
    return args.causal ? launch_for(std::true_type{}, blocks)
                       : launch_for(std::false_type{}, blocks);
  };
  return pays_in_pairs(args) ? launch_in(std::integral_constant<int, kClusterBlocks>{})
                             : launch_in(std::integral_constant<int, 1>{});
}

}  // namespace diptych::kernels
