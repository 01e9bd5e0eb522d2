// One run of a job of Lance.
#include <ATen/Context.h>
#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/lance/job.h"
#include "lib/pipelines/lance/trace.h"
#include "lib/pipelines/vae_media.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

// The official code seeds the generator of everything but the start noise with this, once.
constexpr std::uint64_t kGlobalSeed = 2025;

at::Generator device_generator(at::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

void LanceTurn::reseed(std::uint64_t seed) {
  MotTurn::reseed(seed);
  seed_ = seed;
}

// Rows of source and target, as the official code draws them -> float32 [rows, row width].
Tensor LanceTurn::draw_noise(Log& log) const {
  if (own_.noise.defined()) return own_.noise;
  const std::vector<std::int64_t> shape = {own_.drawn_rows(), own_.checkpoint.config.row_width};
  Tensor drawn;
  if (own_.draws_on_cuda()) {
    const at::Device device = own_.runtime.device;
    drawn = at::randn(shape, device_generator(device, seed_),
                      at::TensorOptions(at::kBFloat16).device(device))
                .to(at::kFloat);
  } else {
    at::Generator own = cpu_generator(seed_);
    drawn = randn(shape, own);
  }
  const Tensor& recorded = own_.recorded_noise;
  // A reference on another generator starts from other noise than the seed's.
  if (!recorded.defined() || recorded.equal(drawn.to(at::kCPU))) return drawn;
  log.info("starts from the recorded noise, which is not the seed's");
  return recorded;
}

// float32 [48, t, h, w]; `shape` is that of the whole target or source.
Tensor LanceTurn::draw_posterior(at::IntArrayRef shape) const {
  if (own_.recorded_posterior.defined()) return own_.recorded_posterior;
  if (own_.draws_on_cuda()) {
    const at::Device device = own_.runtime.device;
    return at::randn(shape, device_generator(device, kGlobalSeed),
                     at::TensorOptions(at::kFloat).device(device))[0];
  }
  at::Generator fixed = cpu_generator(kGlobalSeed);
  return randn(shape, fixed)[0];
}

const Tensor& LanceTurn::encode_source(MotTrace* trace) {
  if (source_latent_.defined()) return source_latent_;
  const LanceCheckpoint& checkpoint = own_.checkpoint;
  const at::Device device = own_.runtime.device;
  const WanVaeMoments moments = checkpoint.vae.encode(own_.source->vae_pixels.to(device));
  const LatentSize size = own_.size();
  // Of i2v the official code encodes a whole clip, of which the first frame is the picture.
  const Tensor eps = draw_posterior({1, checkpoint.config.row_width, size.t, size.h, size.w})
                         .narrow(1, 0, moments.mu.size(1))
                         .to(device);
  const Tensor latent = moments.latent(eps);
  source_latent_ = latent.flatten(0, 2);
  if (trace != nullptr) static_cast<LanceTrace*>(trace)->source(moments, latent);
  return source_latent_;
}

const Tensor& LanceTurn::look(MotTrace* trace) {
  if (patches_.defined()) return patches_;
  const LanceCheckpoint& checkpoint = own_.checkpoint;
  const QwenVisionConfig& config = checkpoint.config.vit;
  const Tensor& pixels = own_.source->vit_pixels;
  const VisionGrid grid = vision_grid(pixels.size(1), pixels.size(2), pixels.size(3), config);
  const Tensor patches = vision_patches(pixels, config);
  QwenVisionObserver observer;
  if (trace != nullptr) observer = static_cast<LanceTrace*>(trace)->vision(patches, grid);
  const Runtime& runtime = own_.runtime;
  patches_ = checkpoint.vision->forward(patches.to(runtime.device, runtime.dtype), grid,
                                        runtime.read_attention.of(AttentionRole::self),
                                        runtime.kernels, observer);
  return patches_;
}

ImageRows LanceTurn::read_image(const ImageSegment& segment, const MotSample&, const std::string&,
                                MotTrace* trace) {
  if (segment.kind == ImageSegment::Kind::vit) return {.gen = {}, .und = look(trace)};
  const MotLatents& latents = own_.checkpoint.latents;
  const LatentSize size = own_.size();  // a source is as large as what is made of it
  const float clean = 0;                // the timestep of what has no noise
  const Tensor time = latents.time_embedder.forward(std::span(&clean, 1));
  return {.gen = latents.embed(encode_source(trace), time[0],
                               latents.positions(size.h, size.w, size.t)),
          .und = {}};
}

std::string LanceTurn::text_of(const std::vector<std::int64_t>& fed) const {
  return stripped(own_.checkpoint.tokenizer->decode({fed.begin() + 1, fed.end()}));
}

void LanceTurn::keep_plan(const GeneratedText&) {
  TORCH_CHECK(false, "[lance] writes no plans");
}

// The target has the last of the drawn rows.
Tensor LanceTurn::start_latent(Log& log, MotTrace* trace) {
  const Tensor drawn = draw_noise(log);
  const std::int64_t rows = own_.size().rows();
  Tensor start = drawn.narrow(0, drawn.size(0) - rows, rows).to(own_.runtime.device);
  if (own_.task != LanceTask::i2v) return start;
  const Tensor& clean = encode_source(trace);
  return at::cat({clean.to(start.device()), start.narrow(0, clean.size(0), rows - clean.size(0))});
}

Media LanceTurn::decode(const Tensor& rows, const std::string&, Log& log, MotTrace* trace) const {
  const LatentSize size = own_.size();
  const LatentFrames source = {own_.checkpoint.vae, rows.view({size.t, size.h, size.w, -1}), log,
                               own_.runtime.ranks.get()};
  if (trace == nullptr) return decode_media(source, own_.clip_shape());
  trace->sink().record("latent.final", source.latent);
  auto& own_trace = static_cast<LanceTrace&>(*trace);
  Media media = decode_media(
      source, own_.clip_shape(),
      [&](const Tensor& frames, const Tensor& shown) { own_trace.decoded(frames, shown); });
  own_trace.finish_decoding();
  return media;
}

}  // namespace diptych
