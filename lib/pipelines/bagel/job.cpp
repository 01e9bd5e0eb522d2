#include "lib/pipelines/bagel/job.h"

#include "lib/base/error.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/bagel/settings.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/session/stage_clock.h"

namespace diptych {
namespace {

// Before anything is loaded: texts may be written without a graph, but not without a word.
void require_text_kernel(const BagelCheckpoint& checkpoint, const Runtime& runtime, Log& log) {
  const auto reason = missing_text_kernel(checkpoint.model.config.llm, runtime);
  if (!reason) return;
  if (runtime.kernels == KernelPolicy::strict)
    throw InputError(Setting::of("kernels", "strict"),
                     "there is no kernel to write this model's texts: {}", *reason);
  log.warning_once("texts are written without a CUDA graph, slowly: " + *reason);
}

void read_pictures(BagelPrepared& p, const BagelConfig& model, PictureReading reading) {
  const ImageTransforms transforms = ImageTransforms::of(model);
  for (const InputItem& item : p.config->inputs) {
    if (!item.is_image()) continue;
    if (reading == PictureReading::sizes) {
      const ImageSize size = read_image_size(item.image);
      p.request.images.push_back(BagelImage::sized(size, transforms, model));
      continue;
    }
    const Tensor pixels = read_input(item.image);
    p.inputs.push_back({tensor_hash(pixels), pixels.size(1), pixels.size(0)});
    p.request.images.push_back(BagelImage::prepare(pixels, transforms, model));
  }
}

// Where no weights are read to name them, also that it was measured on these.
void check_calibration(const RunConfig& config, const BagelCheckpoint& checkpoint) {
  const StepCalibration calibration = read_calibration(config);
  if (checkpoint.model_weights.is_dummy())
    calibration.require_weights(
        calibration_path(config),
        StepCalibration::as_loaded(checkpoint.weights_hash({}), config.quantization));
}

}  // namespace

Tensor BagelPrepared::start_noise(std::int64_t row_width) {
  return noise.defined() ? noise : draw_noise(size, row_width, request.generator);
}

BagelPrepared prepare_bagel(const RunConfig& config, const BagelCheckpoint& checkpoint,
                            const Runtime& runtime, Log& log, PictureReading reading) {
  check_counts(config);
  const BagelConfig& model = checkpoint.model.config;
  BagelPrepared p;
  p.config = &config;
  BagelRequest& request = p.request;
  request.items = config.inputs;
  request.answers = config.answers();
  request.think = config.think;
  request.negative_prompt = config.negative_prompt;
  request.text = make_text_request(config);
  read_pictures(p, model, reading);
  request.check_positions(checkpoint);  // too long a text is said here
  if (request.writes()) require_text_kernel(checkpoint, runtime, log);
  if (!request.answers && config.cache_mode == StepCacheMode::teacache)
    check_calibration(config, checkpoint);
  if (request.answers) return p;
  const SamplingConfig& s = config.sampling;
  p.size =
      s.size_of_input ? request.images.back().latent : checkpoint.latent_size(s.width, s.height);
  if (!config.noise.empty()) p.noise = read_noise(config.noise, p.size.rows(), model.row_width());
  for (const std::string& text : idle_settings(config)) log.warning_once(text);
  return p;
}

PaintRequest paint_request_of(std::span<const BagelPrepared> prepared) {
  PaintRequest request = make_paint_request(*prepared.front().config);
  for (const BagelPrepared& p : prepared) request.sizes.push_back(p.size);
  return request;
}

}  // namespace diptych
