#include "lib/pipelines/bagel/job.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/pipelines/bagel/trace.h"
#include "lib/pipelines/mot/settings.h"
#include "lib/session/hashes.h"
#include "lib/tensor/noise.h"

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
  return checkpoint.is_dummy() ? checkpoint.weights_hash({}) : std::string();
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
  paint.renorm_whole_batch = official_batch;
  paint.sizes = {painted_size(*this)};
}

void BagelJob::read_inputs() {
  if (inputs_read_) return;
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
  inputs_read_ = true;
}

std::unique_ptr<MotJob> BagelCheckpoint::make_job(const RunConfig& request, const Runtime& runtime,
                                                  Log& log) const {
  return std::make_unique<BagelJob>(request, *this, runtime, log, BagelRecording());
}

std::unique_ptr<MotTurn> BagelJob::turn() const {
  return std::make_unique<BagelTurn>(*this);
}

std::unique_ptr<MotTrace> BagelJob::trace(TraceSink& sink) const {
  return std::make_unique<BagelTrace>(sink);
}

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
  const Tensor time = latents.embed_timesteps(std::span(&clean, 1));
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
  const Tensor image = own_.checkpoint.vae.decode(input, {}, own_.checkpoint.strips);
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
