#include "lib/pipelines/lance/job.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/media/video/clip_read.h"
#include "lib/pipelines/calibration.h"
#include "lib/pipelines/lance/preprocess.h"
#include "lib/pipelines/lance/trace.h"
#include "lib/pipelines/mot/settings.h"
#include "lib/session/hashes.h"

namespace diptych {
namespace {

constexpr std::string_view kCond = "cond", kTextUncond = "text_uncond";
constexpr std::array kNoiseNames = {"noise.initial", "init_noise"};
constexpr FrameRate kFrameRate = {12, 1};  // of the official script
// Of a target. A layout of all rows comes before memory is planned, and takes 140 bytes for each.
constexpr std::int64_t kMostRows = std::int64_t{1} << 22;

LanceTask task_named(const RunConfig& request) {
  return parse_choice<LanceTask>(request.task).value();
}

BlockPositions flat(const Tensor& positions) {
  const Tensor rows = positions.contiguous();
  const auto* first = rows.const_data_ptr<std::int64_t>();
  return {first, first + rows.numel()};
}

Segment segment_of(const LanceLayout& layout, const LanceReadSplit& read) {
  const auto& [split, positions] = read;
  if (split.mode == LanceSplitMode::causal) {
    const auto begin = layout.ids.begin() + split.begin;
    return TextSegment{{begin, begin + split.tokens()}, positions[0][0].item<std::int64_t>()};
  }
  const auto kind = split.has_latents() ? ImageSegment::Kind::vae : ImageSegment::Kind::vit;
  return ImageSegment{kind, 0, split.tokens() - 2, flat(positions)};
}

MotContext context_of(const LanceLayout& layout, const LanceReading& reading, bool answers) {
  MotContext context;
  for (const LanceReadSplit& read : reading.context)
    context.segments.push_back(segment_of(layout, read));
  if (answers) {
    context.next_position = reading.next[0][0].item<std::int64_t>();
  } else {
    context.block = flat(reading.next);
  }
  return context;
}

// Calls count within the branch; what begins as cond does is copied from there.
BranchContexts branch_of(std::string_view name, MotContext context, const BranchContexts* cond) {
  BranchContexts branch{name, {std::move(context)}, {}};
  const std::vector<Segment>& own = branch.samples.front().segments;
  bool common = cond != nullptr;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& other = common ? cond->samples.front().segments : own;
    common = common && i < other.size() && other[i] == own[i];
    branch.calls.push_back(common ? -1 : static_cast<std::int64_t>(i));
  }
  return branch;
}

}  // namespace

LanceJob::LanceJob(const RunConfig& request, const LanceCheckpoint& of, const Runtime& on, Log& log,
                   const LanceRecording& recording)
    : MotJob(request),
      checkpoint(of),
      runtime(on),
      task(task_named(request)),
      settings(config().own.get<LanceSettings>()),
      uncond_ids(recording.uncond_ids) {
  check_counts(config());
  if (is_of_clips(task) != is_of_clips(checkpoint.task)) {
    throw InputError(Setting::of("task", config().task),
                     "needs other weights than {} of the same run; expected all tasks of a run to "
                     "be of pictures, or all of videos",
                     name_of(checkpoint.task));
  }
  is_recorded = recording.is_recorded;
  if (settings.noise_source == LanceNoiseSource::cuda && !runtime.device.is_cuda())
    throw InputError(Setting::of("noise_source", "cuda"),
                     "needs a CUDA device, the run is on the CPU");
  source = plan_source();
  looks = source.has_value() && task != LanceTask::i2v;
  lay_out(recording);
  check_positions(*this, branches, /*planned=*/false, checkpoint.mot());
  if (answers()) {
    text = make_text_request(config(), settings);
    // The one that is fed first is no token of the answer.
    text.max_tokens += 1;
    text.first_token = cut_->ids.back();
    if (!settings.drafts()) require_text_kernel(checkpoint.config.llm, runtime, log);
    return;
  }
  plan_painting();
  const bool counted = task == LanceTask::t2v || task == LanceTask::i2v;
  if (counted && !is_recorded && decoded_frames != config().sampling.frames)
    log.warning_once(fmt::format("--video-frames {}: {} are made, one more than a multiple of {}",
                                 config().sampling.frames, decoded_frames,
                                 WanVaeConfig::kTemporal));
  if (task == LanceTask::video_edit && !is_recorded) warn_of_other_speed(log);
}

// sample_frames() takes no more than 6 seconds' worth of frames.
void LanceJob::warn_of_other_speed(Log& log) const {
  constexpr double kNoticed = 1.25;
  const double seconds = static_cast<double>(decoded_frames) / clip_shape()->fps.value();
  if (source->seconds < seconds * kNoticed && seconds < source->seconds * kNoticed) return;
  log.warning_once(
      fmt::format("{}: {:.1f} s of video become {:.1f} s: {} frames are taken of all of it",
                  source->file.string(), source->seconds, seconds, decoded_frames));
}

std::optional<LanceSource> LanceJob::plan_source() const {
  const auto found =
      std::ranges::find_if(config().inputs, [](const InputItem& item) { return !item.is_text(); });
  if (found == config().inputs.end()) return std::nullopt;
  LanceSource read;
  read.file = found->file();
  read.is_clip = found->is_video();
  if (read.is_clip) {
    about(Setting::of("video"), [&] {
      const ClipFacts facts = ClipReader(read.file).facts();
      read.size = facts.size;
      if (!facts.average_rate) throw InputError("{}: says no frame rate", read.file.string());
      const std::int64_t frames = count_clip_packets(read.file);
      read.seconds = static_cast<double>(frames) / facts.average_rate->value();
      about(Subject(read.file.string()),
            [&] { read.frames = sample_frames(frames, facts.average_rate->value()); });
    });
  } else {
    read.size = read_input_size(read.file);
    read.frames = {0};
  }
  read.sizes = LanceSourceSizes::of(read.size, settings.resolution);
  return read;
}

// What the model reads, in the official order or the case's.
LancePrompt LanceJob::prompt(const LanceRecording& recording) const {
  if (answers()) {
    LanceQuestion question;
    question.instruction = settings.instruction.empty() ? std::string(default_instruction(task))
                                                        : settings.instruction;
    question.question = config().prompt();
    question.answer = recording.answer.value_or("");
    return render_question(question);
  }
  std::vector<LanceElement> elements;
  for (const InputItem& item : config().inputs) {
    const LanceMedium medium = item.is_video()   ? LanceMedium::video
                               : item.is_image() ? LanceMedium::image
                                                 : LanceMedium::text;
    elements.push_back({medium, item.text});
  }
  // The official examples give the text first, by which the system text names the medium.
  if (!recording.keeps_order)
    std::ranges::stable_partition(
        elements, [](const LanceElement& each) { return each.medium == LanceMedium::text; });
  return render_prompt(task, elements);
}

LanceGrid LanceJob::target_grid() const {
  const SamplingConfig& s = config().sampling;
  switch (task) {
    case LanceTask::t2i:
      return latent_grid(1, {s.height, s.width});
    case LanceTask::t2v:
      return latent_grid(s.frames, {s.height, s.width});
    case LanceTask::i2v:
      return latent_grid(s.frames, source->sizes.vae);
    default:
      return latent_grid(std::ssize(source->frames), source->sizes.vae);
  }
}

std::vector<LanceGrid> LanceJob::grids(const LancePrompt& prompt) const {
  std::vector<LanceGrid> grids;
  for (const LanceBlockKind kind : prompt.blocks) {
    if (kind == LanceBlockKind::target) {
      grids.push_back(target_grid());
      continue;
    }
    const std::int64_t frames = std::ssize(source->frames);
    grids.push_back(kind == LanceBlockKind::vit ? vit_grid(frames, source->sizes.vit)
                                                : latent_grid(frames, source->sizes.vae));
  }
  return grids;
}

void LanceJob::check_sizes() const {
  const SamplingConfig& s = config().sampling;
  if (source && !answers() && !s.size_of_input)
    throw InputError(
        Setting::of("width"),
        SettingText{"the result of ", Setting::of("task", config().task),
                    " has the size of what is read, which ", Setting::of("resolution"), " sets"});
  if (answers()) return;
  const LanceGrid grid = target_grid();
  if (grid.rows() > kMostRows)
    throw InputError(Setting::of("size", fmt::format("{}x{}", s.width, s.height)),
                     "makes {} x {} x {} rows of latents, expected at most {} of them", grid.t,
                     grid.h, grid.w, kMostRows);
}

void LanceJob::lay_out(const LanceRecording& recording) {
  check_sizes();
  if (recording.has_template) {
    const LancePrompt rendered = prompt(recording);
    layout = LanceLayout::of(rendered, grids(rendered), *checkpoint.tokenizer);
  } else {
    layout = LanceLayout::plain(config().prompt(), target_grid(), *checkpoint.tokenizer);
  }
  checkpoint.mot().check_vocabulary(layout.ids);
  if (answers()) cut_ = layout.cut_for_answer(*checkpoint.tokenizer);
  const LanceLayout& read = read_layout();
  branches.push_back(
      branch_of(kCond, context_of(read, conditional_reading(read), answers()), nullptr));
  if (source) input_work.push_back(work_of_source());
  if (answers()) return;
  branches.push_back(branch_of(
      kTextUncond, context_of(layout, text_unconditional_reading(layout, uncond_ids), false),
      &branches.front()));
}

InputWork LanceJob::work_of_source() const {
  const std::int64_t frames = std::ssize(source->frames);
  InputWork work;
  if (!answers()) work.encoded = {source->sizes.vae.width, source->sizes.vae.height, frames};
  if (task == LanceTask::i2v) return work;
  // Attention has room for whole windows, also at the edges.
  const LanceGrid grid = vit_grid(frames, source->sizes.vit);
  const QwenVisionConfig& vit = checkpoint.config.vit;
  const auto filled = [side = vit.window_groups()](std::int64_t groups) {
    return (groups + side - 1) / side * side;
  };
  work.patches = vit.merged_patches() * grid.t * filled(grid.h) * filled(grid.w);
  return work;
}

void LanceJob::plan_painting() {
  const LanceGrid grid = target_grid();
  calibration =
      read_calibration(config(), checkpoint.is_dummy ? checkpoint.weights_hash({}) : std::string());
  // N steps make N updates.
  paint = make_paint_request(config(), {{kTextUncond, config().sampling.cfg_text_scale}},
                             config().sampling.steps + 1, calibration ? &*calibration : nullptr);
  branches = paint.needed(std::move(branches), is_traced());
  paint.sizes = {{grid.h, grid.w, grid.t}};
  decoded_frames = WanVaeConfig::frames(grid.t);
  if (task == LanceTask::i2v) paint.clean_rows = {grid.h * grid.w};
}

void LanceJob::decode_inputs() {
  const std::int64_t width = checkpoint.config.row_width;
  if (!config().noise.empty() && !answers())
    noise = read_noise(config().noise, kNoiseNames, {drawn_rows(), width});
  if (source) {
    check_interrupted();
    std::vector<Tensor> frames;
    if (source->is_clip) {
      const Tensor clip = about(Setting::of("video"),
                                [&] { return read_clip_frames(source->file, source->frames); });
      for (const Tensor& frame : clip.unbind()) frames.push_back(frame);
      inputs = {{file_sha256(source->file).value_or(""), source->size.width, source->size.height}};
    } else {
      frames = {read_input(source->file)};
      inputs = {{tensor_hash(frames.front()), source->size.width, source->size.height}};
    }
    if (frames.front().size(0) != source->size.height ||
        frames.front().size(1) != source->size.width) {
      throw InputError("{}: has another size than when the request was checked",
                       source->file.string());
    }
    if (!answers()) source->vae_pixels = lance_vae_pixels(frames, settings.resolution);
    if (looks) source->vit_pixels = lance_vit_pixels(frames, settings.resolution);
  }
}

std::unique_ptr<MotJob> LanceCheckpoint::make_job(const RunConfig& request, const Runtime& runtime,
                                                  Log& log) const {
  return std::make_unique<LanceJob>(request, *this, runtime, log, LanceRecording());
}

std::unique_ptr<MotTurn> LanceJob::turn() const {
  return std::make_unique<LanceTurn>(*this);
}

std::unique_ptr<MotTrace> LanceJob::trace(TraceSink& sink) const {
  return std::make_unique<LanceTrace>(sink, *this);
}

std::optional<ClipShape> LanceJob::clip_shape() const {
  if (config().makes != MediaKind::clip) return std::nullopt;
  const std::int64_t pixels = checkpoint.config.pixels_per_row;
  return ClipShape{decoded_frames, size().h * pixels, size().w * pixels,
                   config().sampling.fps.value_or(kFrameRate)};
}

bool LanceJob::draws_on_cuda() const {
  return settings.noise_source == LanceNoiseSource::cuda ||
         (settings.noise_source == LanceNoiseSource::automatic && runtime.device.is_cuda());
}

}  // namespace diptych
