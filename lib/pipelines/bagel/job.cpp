#include "lib/pipelines/bagel/job.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/bagel/trace.h"
#include "lib/pipelines/calibration.h"
#include "lib/pipelines/mot/settings.h"
#include "lib/session/hashes.h"

namespace diptych {
namespace {

constexpr std::array kNoiseNames = {"init_noise", "gen.init_noise"};  // the second: of a trace

LatentSize painted_size(const BagelJob& job) {
  const SamplingConfig& s = job.config().sampling;
  return s.size_of_input ? job.images.back().latent : job.checkpoint.latent_size(s.width, s.height);
}

std::vector<GuidanceTerm> guidance_terms(const SamplingConfig& s) {
  return {{kTextUncond, s.cfg_text_scale}, {kImgUncond, s.cfg_img_scale}};
}

InputWork work_of(const BagelImage& image, bool answers, std::int64_t pixels) {
  InputWork work;
  work.patches = image.patches.rows();
  if (!answers) work.encoded = {image.latent.w * pixels, image.latent.h * pixels};
  return work;
}

std::string hash_of_dummy(const BagelCheckpoint& checkpoint) {
  return checkpoint.is_dummy ? checkpoint.weights_hash({}) : std::string();
}

}  // namespace

BagelJob::BagelJob(const RunConfig& request, const BagelCheckpoint& of, const Runtime& on, Log& log,
                   const BagelRecording& recording)
    : MotJob(request), checkpoint(of), runtime(on) {
  check_counts(config());
  is_recorded = recording.is_recorded;
  official_batch = recording.official_batch;
  const BagelConfig& model = checkpoint.model.config;
  transforms_ = recording.transforms.value_or(ImageTransforms::of(model));
  text = make_text_request(config(), config().own.get<DraftSettings>());
  text.first_token = checkpoint.bos;
  for (const InputItem& item : config().inputs) {
    check_interrupted();
    if (!item.is_image()) continue;
    images.push_back(BagelImage::sized(read_input_size(item.image), transforms_, model));
    input_work.push_back(work_of(images.back(), answers(), model.pixels_per_row()));
  }
  reading = BagelReading::of(config(), images, checkpoint.mot());
  branches = reading.branches();
  looks = !images.empty();
  reading_draws = looks || (config().think && text.sampling.temperature > 0);
  check_positions(*this, branches, /*planned=*/false, checkpoint.mot());
  if (writes() && !config().own.get<DraftSettings>().drafts())
    require_text_kernel(model.llm, runtime, log);
  if (answers()) return;
  calibration = read_calibration(config(), hash_of_dummy(checkpoint));
  const SamplingConfig& s = config().sampling;
  // N timesteps make N - 1 updates.
  paint = make_paint_request(config(), guidance_terms(s), s.steps,
                             calibration ? &*calibration : nullptr);
  branches = paint.needed(std::move(branches), is_traced());
  paint.renorm_whole_batch = official_batch;
  paint.sizes = {painted_size(*this)};
}

void BagelJob::decode_inputs() {
  const BagelConfig& model = checkpoint.model.config;
  if (!config().noise.empty() && !answers())
    noise = read_noise(config().noise, kNoiseNames, {size().rows(), model.row_width()});
  std::vector<BagelImage> read;
  std::vector<InputRecord> records;
  for (const InputItem& item : config().inputs) {
    if (!item.is_image()) continue;
    check_interrupted();
    const Tensor pixels = read_input(item.image);
    BagelImage image = BagelImage::prepare(pixels, transforms_, model);
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
}

std::unique_ptr<MotJob> BagelCheckpoint::make_job(const RunConfig& request, const Runtime& runtime,
                                                  Log& log) const {
  return std::make_unique<BagelJob>(request, *this, runtime, log, BagelRecording());
}

LatentSize BagelCheckpoint::latent_size(std::int64_t width, std::int64_t height) const {
  const std::int64_t step = model.config.pixels_per_row();
  const std::int64_t most = model.config.latent_side * step;
  const auto check = [&](const char* name, std::int64_t value) {
    if (value >= step && value <= most && value % step == 0) return;
    const std::int64_t low = std::clamp(value / step * step, step, most);
    const std::int64_t high = std::clamp(low + step, step, most);
    throw InputError(SettingProblem{
        Setting::of(name),
        fmt::format("{}", value),
        {fmt::format(", expected a multiple of {} up to {} (nearest: {}{})", step, most, low,
                     low == high ? std::string() : fmt::format(" or {}", high))}});
  };
  check("width", width);
  check("height", height);
  return {height / step, width / step};
}

std::unique_ptr<MotTurn> BagelJob::turn() const {
  return std::make_unique<BagelTurn>(*this);
}

std::unique_ptr<MotTrace> BagelJob::trace(TraceSink& sink) const {
  return std::make_unique<BagelTrace>(sink);
}

}  // namespace diptych
