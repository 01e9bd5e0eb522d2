#include "lib/pipelines/bagel/reading.h"

#include <algorithm>
#include <utility>

namespace diptych {
namespace {

// The system prompts of think mode, to the letter.
constexpr std::string_view kThinkBeforeAnswer =
    "You should first think about the reasoning process in the mind and then provide the user with "
    "the answer. \nThe reasoning process is enclosed within <think> </think> tags, i.e. <think> "
    "reasoning process here </think> answer here";
constexpr std::string_view kThinkBeforePicture =
    "You should first think about the planning process in the mind and then generate the image. "
    "\nThe planning process is enclosed within <think> </think> tags, i.e. <think> planning "
    "process "
    "here </think> image here";

}  // namespace

BagelReading BagelReading::of(const RunConfig& request, std::span<const BagelImage> images,
                              const MotModel& model) {
  const auto tokenised = [&](std::string_view text) {
    return TextSegment{model.text_segment(text)};
  };
  BagelReading reading;
  const bool answers = request.answers();
  if (request.think)
    reading.add_system(tokenised(answers ? kThinkBeforeAnswer : kThinkBeforePicture));
  std::size_t image = 0;
  for (const InputItem& item : request.inputs) {
    if (item.is_image()) {
      reading.add_image(images[image++], /*with_latent=*/!answers);
    } else {
      reading.add_text(tokenised(item.text));
    }
  }
  if (!request.negative_prompt.empty()) reading.negative_ = tokenised(request.negative_prompt);
  return reading;
}

BagelReading BagelReading::with_plan(TextSegment plan) const {
  BagelReading reading = *this;
  reading.append_text(reading.cond_, plan);
  return reading;
}

void BagelReading::append_text(Branch& branch, const TextSegment& text) {
  branch.context.segments.push_back(text);
  branch.calls.push_back(calls_++);
}

void BagelReading::add_system(const TextSegment& text) {
  append_text(cond_, text);
  append_text(img_uncond_, text);
}

void BagelReading::add_text(const TextSegment& text) {
  text_uncond_ = cond_;
  append_text(cond_, text);
  append_text(img_uncond_, text);
}

void BagelReading::add_image(const BagelImage& image, bool with_latent) {
  const auto append = [&](ImageSegment::Kind kind, std::int64_t rows) {
    cond_.context.segments.push_back(ImageSegment{kind, images_, rows});
    cond_.calls.push_back(calls_++);
  };
  if (with_latent) append(ImageSegment::Kind::vae, image.latent.rows());
  append(ImageSegment::Kind::vit, image.patches.rows());
  text_uncond_ = cond_;
  ++images_;
}

BagelReading::Branch BagelReading::finished_text_uncond() const {
  Branch branch = text_uncond_;
  if (!negative_) return branch;
  branch.context.segments.push_back(*negative_);
  branch.calls.push_back(calls_);
  return branch;
}

std::vector<BranchContexts> BagelReading::branches(std::span<const BagelReading> samples) {
  std::vector<BranchContexts> branches;
  const auto add = [&](std::string_view name, const auto& branch_of) {
    BranchContexts contexts{name, {}, branch_of(samples.front()).calls};
    for (const BagelReading& sample : samples)
      contexts.samples.push_back(branch_of(sample).context);
    branches.push_back(std::move(contexts));
  };
  add(kCond, [](const BagelReading& sample) { return sample.cond_; });
  add(kTextUncond, [](const BagelReading& sample) { return sample.finished_text_uncond(); });
  add(kImgUncond, [](const BagelReading& sample) { return sample.img_uncond_; });
  // text_uncond copies what it shares with cond.
  std::vector<std::int64_t>& calls = branches[1].calls;
  for (std::int64_t& call : calls) {
    if (std::ranges::find(branches[0].calls, call) != branches[0].calls.end()) call = -1;
  }
  return branches;
}

}  // namespace diptych
