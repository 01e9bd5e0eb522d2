#include <cmath>

#include "lib/base/error.h"
#include "lib/models/cosmos/cosmos.h"

namespace diptych {
namespace {

// Keys (normed for each head) and values of rows [samples * rows, text_embed_dim].
Tensor keys_and_values(const Tensor& rows, const CosmosBlock& block, const CosmosConfig& c,
                       const Kernels& kernels) {
  Tensor kv = linear(rows, block.attn2_kv, {}, kernels);
  const Tensor keys = kv.narrow(1, 0, c.width());
  const Tensor heads = keys.reshape({-1, c.attention_head_dim});
  keys.copy_(rms_norm(heads, block.attn2_norm_k, CosmosConfig::kEps, kernels).view(keys.sizes()));
  return kv;
}

}  // namespace

CosmosContext CosmosTransformer::make_context(const std::vector<Tensor>& texts,
                                              const Kernels& kernels,
                                              std::int64_t padded_to) const {
  CosmosContext context;
  context.texts = padded_texts(texts, padded_to, config.text_embed_dim, "cosmos");
  const std::int64_t capacity = key_capacity(context.texts);
  const Tensor rows = lay_out_texts(texts, capacity, options());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const CosmosBlock& block = blocks.acquire(i, BlockPart::context);
    context.text.push_back(keys_and_values(rows, block, config, kernels)
                               .view({context.samples(), capacity, 2 * config.width()}));
    blocks.release();
  }
  return context;
}

CosmosContext CosmosContext::slice(std::int64_t first, std::int64_t count) const {
  TORCH_CHECK(first >= 0 && count >= 1 && first + count <= samples(), "[cosmos] samples ", first,
              " to ", first + count, " of ", samples());
  CosmosContext part;
  part.texts.assign(texts.begin() + first, texts.begin() + first + count);
  for (const Tensor& rows : text) part.text.push_back(rows.narrow(0, first, count));
  return part;
}

namespace {

constexpr double kTheta = 10000;

// Angles of one axis, float32 [positions, channels / 2], computed as upstream does.
Tensor axis_angles(const Tensor& positions, std::int64_t channels, double scale) {
  const auto d = static_cast<double>(channels);
  const double theta = kTheta * std::pow(scale, d / (d - 2));
  const Tensor exponents = at::arange(0, channels, 2, at::kFloat).div_(d);
  return at::outer(positions, at::pow(theta, exponents).reciprocal_());
}

// Of the rows of a sample in order (frame, y, x): float32 [rows, head_dim / 2].
Tensor rope_angles(const CosmosClip& clip, const CosmosConfig& c) {
  const std::int64_t frames = clip.size.frames, h = clip.size.height / CosmosConfig::kPatch,
                     w = clip.size.width / CosmosConfig::kPatch;
  const std::int64_t side = c.attention_head_dim / 6 * 2;
  Tensor time = at::arange(frames, at::kFloat);
  if (clip.fps) time = time.div_(*clip.fps).mul_(CosmosConfig::kBaseFps);
  const Tensor of_t = axis_angles(time, c.attention_head_dim - 2 * side, c.rope_scale[0]);
  const Tensor of_h = axis_angles(at::arange(h, at::kFloat), side, c.rope_scale[1]);
  const Tensor of_w = axis_angles(at::arange(w, at::kFloat), side, c.rope_scale[2]);
  const auto spread = [&](const Tensor& axis) { return axis.expand({frames, h, w, -1}); };
  return at::cat({spread(of_t.unsqueeze(1).unsqueeze(1)), spread(of_h.unsqueeze(1)), spread(of_w)},
                 -1)
      .flatten(0, 2);
}

// The constant channels behind the latents'.
Tensor masks_of(const CosmosClip& clip, const CosmosConfig& c) {
  const CosmosLatentSize& size = clip.size;
  const Tensor masks =
      at::zeros({c.channels() - c.out_channels, size.frames, size.height, size.width});
  if (c.takes_frames()) masks[0].narrow(0, 0, clip.known_frames).fill_(1);
  if (!clip.padding_mask.defined()) return masks;
  TORCH_CHECK(c.concat_padding_mask && clip.padding_mask.dim() == 2, "[cosmos] a padding mask ",
              clip.padding_mask.sizes(), ", taken: ", c.concat_padding_mask);
  const Tensor mask = clip.padding_mask.cpu().to(at::kFloat).unsqueeze(0).unsqueeze(0);
  masks[masks.size(0) - 1].copy_(at::upsample_nearest2d(mask, {size.height, size.width})[0][0]);
  return masks;
}

void check_positions(const char* axis, std::int64_t positions, const CosmosConfig& c) {
  if (positions <= c.most_positions()) return;
  throw InputError("cosmos: {} positions along the {}, expected at most {}", positions, axis,
                   c.most_positions());
}

void check_clip(const CosmosClip& clip, const CosmosConfig& c) {
  const CosmosLatentSize& size = clip.size;
  TORCH_CHECK(size.frames > 0 && size.height > 0 && size.width > 0 && size.height % 2 == 0 &&
                  size.width % 2 == 0,
              "[cosmos] latents of ", size.frames, " x ", size.height, " x ", size.width);
  TORCH_CHECK(clip.known_frames >= 0 && clip.known_frames <= (c.takes_frames() ? size.frames : 0),
              "[cosmos] ", clip.known_frames, " frames are given of ", size.frames);
  TORCH_CHECK(!clip.fps || *clip.fps > 0, "[cosmos] fps is ", clip.fps.value_or(0));
  check_positions("frames", size.frames, c);
  check_positions("height", size.height / CosmosConfig::kPatch, c);
  check_positions("width", size.width / CosmosConfig::kPatch, c);
}

}  // namespace

CosmosPlan CosmosTransformer::plan(const CosmosContext& context, const CosmosClip& clip,
                                   SharedKeys shared, const RowShare& share) const {
  check_clip(clip, config);
  const at::Device device = options().device();
  CosmosPlan plan;
  plan.size = clip.size;
  plan.samples = context.samples();
  plan.share = share;
  plan.masks = masks_of(clip, config).to(options());
  const Tensor angles = rope_angles(clip, config);
  plan.cos = share.cut(angles.cos(), 0).repeat({plan.samples, 1}).to(device);
  plan.sin = share.cut(angles.sin(), 0).repeat({plan.samples, 1}).to(device);
  plan.slots = at::arange(plan.rows(), at::TensorOptions(at::kLong).device(device));
  plan.self = share.lengths(plan.samples, clip.size.rows(), device);
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(plan.samples), plan.own_rows());
  plan.text = TextAttention::make(context.texts, context.capacity(), rows, shared, device);
  return plan;
}

}  // namespace diptych
