#include "kernels/device_attention.cuh"
#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"

namespace diptych::kernels {
namespace {

using Kind = AttentionKind<__nv_fp8_e4m3, HopperFp8AttentionArgs, false, kClusterBlocks>;
static_assert(kClusterBlocks * Kind::kTileRows == kHopperFp8QueryTilePair);
static_assert(hopper_fp8_value_blocks(Kind::kTileKeys) * kValueBlockKeys == Kind::kTileKeys);
static_assert(hopper_fp8_value_blocks(Kind::kTileKeys + 1) * kValueBlockKeys ==
              2 * Kind::kTileKeys);

}  // namespace

const char* hopper_fp8_attention_unsupported(const HopperFp8AttentionArgs& args) {
  if (const char* reason = attention_sizes_unsupported(args)) return reason;
  if (args.value_blocks < hopper_fp8_value_blocks(args.capacity))
    return "values have too few blocks for the keys";
  for (const void* at : {args.q, args.keys, args.values, static_cast<const void*>(args.out)}) {
    if (!aligned(at)) return "a tensor does not begin at a multiple of 16 bytes";
  }
  return nullptr;
}

const char* hopper_fp8_attention(const HopperFp8AttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = hopper_fp8_attention_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  const std::int64_t key_row = args.kv_heads * kAttentionDims;
  AttentionMaps maps{};
  for (const char* error :
       {make_box_map(&maps.q, TileElement::e4m3,
                     Boxes<3>{args.q,
                              {kAttentionDims, args.heads, args.rows},
                              {kAttentionDims, args.heads * kAttentionDims},
                              {Kind::kPanelDims, 1, Kind::kTileRows}}),
        make_box_map(&maps.keys, TileElement::e4m3,
                     Boxes<4>{args.keys,
                              {kAttentionDims, args.kv_heads, args.capacity, args.samples},
                              {kAttentionDims, key_row, args.capacity * key_row},
                              {Kind::kPanelDims, 1, Kind::kLoadedKeys, 1}})}) {
    if (error != nullptr) return error;
  }
  return launch_attention<Kind>(args, args.heads * args.query_tile_pairs, maps, stream);
}

}  // namespace diptych::kernels
