#include "lib/pipelines/bagel/reading.h"

#include <algorithm>

namespace diptych {

void BagelReading::append_text(Branch& branch, std::string_view text) {
  branch.context.segments.push_back(TextSegment{checkpoint_.text_segment(text)});
  branch.calls.push_back(calls_++);
}

void BagelReading::add_system(std::string_view text) {
  append_text(cond_, text);
  append_text(img_uncond_, text);
}

void BagelReading::add_text(std::string_view text) {
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

void BagelReading::add_plan(std::string_view text) {
  append_text(cond_, text);
}

void BagelReading::add_negative(std::string_view text) {
  append_text(text_uncond_, text);
}

std::vector<BranchContexts> BagelReading::branches(std::span<const BagelReading> samples) {
  std::vector<BranchContexts> branches;
  const auto add = [&](std::string_view name, Branch BagelReading::*branch) {
    BranchContexts contexts{name, {}, (samples.front().*branch).calls};
    for (const BagelReading& sample : samples) contexts.samples.push_back((sample.*branch).context);
    branches.push_back(std::move(contexts));
  };
  add("cond", &BagelReading::cond_);
  add("text_uncond", &BagelReading::text_uncond_);
  add("img_uncond", &BagelReading::img_uncond_);
  // text_uncond copies what it shares with cond.
  std::vector<std::int64_t>& calls = branches[1].calls;
  for (std::int64_t& call : calls) {
    if (std::ranges::find(branches[0].calls, call) != branches[0].calls.end()) call = -1;
  }
  return branches;
}

}  // namespace diptych
