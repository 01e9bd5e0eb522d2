#include "lib/pipelines/bagel/job.h"

#include <utility>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/bagel/settings.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/session/hashes.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

// Before anything is loaded: texts may be written without a graph, but not without a word.
void require_text_kernel(const BagelCheckpoint& checkpoint, const Runtime& runtime, Log& log) {
  const auto reason = missing_text_kernel(checkpoint.model.config.llm, runtime);
  if (!reason) return;
  if (runtime.kernels == KernelPolicy::strict)
    throw InputError(Setting::of("kernels", "strict"),
                     "there is no kernel to write this model's texts: {}", *reason);
  log.warning_once("text is written without a CUDA graph, which is slow: " + *reason);
}

// Where no weights are read to name them, also that it was measured on these.
std::optional<StepCalibration> find_calibration(const RunConfig& config,
                                                const BagelCheckpoint& checkpoint) {
  if (config.cache_mode != StepCacheMode::teacache) return std::nullopt;
  StepCalibration calibration = read_calibration(config);
  if (checkpoint.model_weights.is_dummy()) {
    calibration.require_weights(
        calibration_path(config),
        StepCalibration::as_loaded(checkpoint.weights_hash({}), config.quantization));
  }
  return calibration;
}

LatentSize painted_size(const BagelJob& job, const BagelCheckpoint& checkpoint) {
  const SamplingConfig& s = job.config().sampling;
  return s.size_of_input ? job.images.back().latent : checkpoint.latent_size(s.width, s.height);
}

}  // namespace

std::unique_ptr<BagelJob> BagelJob::make(const RunConfig& request,
                                         const BagelCheckpoint& checkpoint, const Runtime& runtime,
                                         Log& log, const BagelRecording& recording) {
  check_counts(request);
  auto job = std::make_unique<BagelJob>(request);
  const RunConfig& config = job->config();
  const BagelConfig& model = checkpoint.model.config;
  const MotModel mot = checkpoint.mot();
  job->recording = recording;
  job->model_ = &model;
  job->transforms_ = recording.transforms.value_or(ImageTransforms::of(model));
  job->text = make_text_request(config);
  for (const InputItem& item : config.inputs) {
    check_interrupted();
    if (item.is_image())
      job->images.push_back(
          BagelImage::sized(read_input_size(item.image), job->transforms_, model));
  }
  job->reading = BagelReading::of(config, job->images, mot);
  check_positions(*job, job->reading, /*planned=*/false, mot);
  if (job->writes()) require_text_kernel(checkpoint, runtime, log);
  if (job->answers()) return job;
  job->calibration = find_calibration(config, checkpoint);
  job->paint = make_paint_request(config, job->calibration ? &*job->calibration : nullptr);
  job->paint.renorm_whole_batch = recording.official_batch;
  job->paint.sizes = {painted_size(*job, checkpoint)};
  return job;
}

void BagelJob::read_inputs() {
  if (inputs_read_) return;
  if (!config().noise.empty() && !answers())
    noise = read_noise(config().noise, size().rows(), model_->row_width());
  std::vector<BagelImage> read;
  std::vector<InputRecord> records;
  for (const InputItem& item : config().inputs) {
    if (!item.is_image()) continue;
    check_interrupted();
    const Tensor pixels = read_input(item.image);
    BagelImage image = BagelImage::prepare(pixels, transforms_, *model_);
    const BagelImage& planned = images[read.size()];
    if (image.latent != planned.latent || image.patches != planned.patches) {
      throw InputError("{}: has another size than when the request was checked",
                       item.image.string());
    }
    records.push_back({tensor_hash(pixels), pixels.size(1), pixels.size(0)});
    read.push_back(std::move(image));
  }
  images = std::move(read);
  inputs = std::move(records);
  inputs_read_ = true;
}

bool BagelJob::reading_draws() const {
  return !images.empty() || (config().think && text.sampling.temperature > 0);
}

void check_positions(const BagelJob& job, const BagelReading& reading, bool planned,
                     const MotModel& model) {
  if (job.answers() || (job.config().think && !planned)) {
    check_text_positions(reading.conditional(), job.text, job.answers() ? "answer" : "think",
                         model);
  }
  if (job.answers()) return;
  const std::int64_t most = model.backbone.config.max_position_embeddings;
  for (const BranchContexts& branch : BagelReading::branches(std::span(&reading, 1))) {
    const std::int64_t position = branch.samples[0].position();  // of the picture
    if (position < most) continue;
    throw InputError(Setting::of(planned ? "max_think_tokens" : "prompt"),
                     "{} positions are read in all, expected at most {}", position, most - 1);
  }
}

PaintRequest packed_request(BagelJobs jobs) {
  PaintRequest request = jobs.front()->paint;
  request.sizes.clear();
  for (const BagelJob* job : jobs) request.sizes.push_back(job->size());
  return request;
}

void BagelTurn::seed(std::uint64_t seed) {
  generator = cpu_generator(seed);
  for (BagelImage& image : images) image.latent_rows.reset();
  reading = job->reading;
  plan.reset();
  plan_finish_reason.clear();
}

void BagelTurn::keep_plan(const GeneratedText& written, const MotModel& model) {
  plan = written.text;
  plan_finish_reason = written.finish_reason;
  reading = job->reading.with_plan({model.text_segment(written.text)});
}

Tensor BagelTurn::start_noise(std::int64_t row_width, Log& log) {
  if (job->noise.defined()) return job->noise;
  const Tensor drawn = draw_noise(job->size(), row_width, generator);
  const Tensor& recorded = job->recording.noise;
  // A reference on another generator starts from other noise than the seed's.
  if (!recorded.defined() || recorded.equal(drawn)) return drawn;
  log.info("starts from the recorded noise, which is not the seed's");
  return recorded.clone();
}

Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator) {
  return randn({size.rows(), row_width}, generator);
}

}  // namespace diptych
