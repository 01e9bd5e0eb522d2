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

std::vector<BranchContexts> BagelReading::branches() const {
  std::vector<BranchContexts> branches;
  const auto add = [&](std::string_view name, const Branch& branch) {
    branches.push_back({name, {branch.context}, branch.calls});
  };
  add(kCond, cond_);
  add(kTextUncond, finished_text_uncond());
  add(kImgUncond, img_uncond_);
  // text_uncond copies what it shares with cond.
  for (std::int64_t& call : branches[1].calls) {
    if (std::ranges::find(branches[0].calls, call) != branches[0].calls.end()) call = -1;
  }
  return branches;
}

}  // namespace diptych
