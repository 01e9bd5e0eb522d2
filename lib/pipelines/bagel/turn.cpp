// One run of a job of BAGEL.
#include <utility>

#include <fmt/format.h>

#include "lib/media/image_transform.h"
#include "lib/models/bagel/latent_rows.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/bagel/trace.h"
#include "lib/tensor/noise.h"

namespace diptych {

void BagelTurn::seed(std::uint64_t seed) {
  MotTurn::seed(seed);
  for (BagelImage& image : images_) image.latent_rows.reset();
}

ImageRows BagelTurn::read_image(const ImageSegment& segment, const MotSample& block,
                                const std::string& name, MotTrace* trace) {
  BagelImage& image = images_[static_cast<std::size_t>(segment.image)];
  const BagelCheckpoint& checkpoint = own_.checkpoint;
  const ImageTrace named = {trace == nullptr ? nullptr : &trace->sink(), name};
  if (segment.kind == ImageSegment::Kind::vae) return read_latent(image, block, named);
  const Tensor patches = encode_patches(image, checkpoint, own_.runtime, named);
  if (named.sink != nullptr) {
    trace_image_block(*named.sink, name, block, checkpoint.markers, segment.rows);
    named.sink->record(name + ".vit_token_seqlens", at::full({1}, segment.rows, at::kLong));
  }
  return {.gen = {}, .und = patches};
}

ImageRows BagelTurn::read_latent(BagelImage& image, const MotSample& block,
                                 const ImageTrace& trace) {
  const MotLatents& latents = own_.checkpoint.model.latents;
  const auto& [sink, name] = trace;
  const Tensor latent = encode_latent(image, own_.checkpoint, generator, own_.runtime, trace);
  const float clean = 0;  // the timestep of a picture without noise
  const Tensor time = latents.time_embedder.forward(std::span(&clean, 1));
  const LatentSize& size = image.latent;
  const Tensor rows = latents.embed(latent, time[0], latents.positions(size.h, size.w));
  if (sink != nullptr) {
    trace_image_block(*sink, name, block, own_.checkpoint.markers, size.rows());
    sink->record(name + ".packed_timesteps", at::zeros({1}, at::kLong));
    sink->record(name + ".packed_vae_position_ids", latents.position_ids(size.h, size.w));
    sink->record(name + ".time_embed", time);
    sink->record(name + ".vae2llm", latents.project(latent));
  }
  return {.gen = rows, .und = {}};
}

// Up to the first <|im_end|>, then between the first and the second <|im_start|>.
std::string BagelTurn::text_of(const std::vector<std::int64_t>& fed) const {
  constexpr std::string_view kBegin = "<|im_start|>", kEnd = "<|im_end|>";
  std::string text = own_.checkpoint.tokenizer->decode(fed);
  text = text.substr(0, text.find(kEnd));
  const std::size_t begin = text.find(kBegin);
  if (begin == std::string::npos) return text;
  text.erase(0, begin + kBegin.size());
  return text.substr(0, text.find(kBegin));
}

void BagelTurn::keep_plan(const GeneratedText& written) {
  plan = text_of(written.ids);
  plan_finish_reason = written.finish_reason;
  plan_ids = written.ids;
  branches = own_.reading.with_plan({own_.checkpoint.mot().text_segment(*plan)}).branches();
  branches = own_.paint.needed(std::move(branches), own_.is_traced());
}

Tensor BagelTurn::start_latent(Log& log, MotTrace*) {
  if (own_.noise.defined()) return own_.noise;
  const Tensor drawn = draw_noise(own_.size(), own_.checkpoint.model.config.row_width(), generator);
  const Tensor& recorded = own_.recorded_noise;
  // A reference on another generator starts from other noise than the seed's.
  if (!recorded.defined() || recorded.equal(drawn)) return drawn;
  log.info("starts from the recorded noise, which is not the seed's");
  return recorded.clone();
}

// One picture has plain names in the trace, a batch numbers them.
Media BagelTurn::decode(const Tensor& latent, const std::string& number, Log&,
                        MotTrace* trace) const {
  const BagelConfig& config = own_.checkpoint.model.config;
  const LatentSize size = own_.size();
  const Tensor input =
      unpack_latent(latent, size.h, size.w, config.latent_patch_size, config.latent_channels);
  const Tensor image = own_.checkpoint.vae.decode(input, {}, own_.checkpoint.vae_strips());
  require_finite(image, "the decoded picture");
  const Tensor rgb = to_uint8(image);
  if (trace != nullptr) {
    TraceSink& sink = trace->sink();
    if (!number.empty()) sink.record(fmt::format("result{}.latent", number), latent);
    sink.record("vae.decode_input" + number, input);
    sink.record("vae.decoded" + number, image);
    sink.record(fmt::format("image{}.uint8", number), rgb);
  }
  return Picture{rgb.to(at::kCPU)};
}

Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator) {
  return randn({size.rows(), row_width}, generator);
}

}  // namespace diptych
