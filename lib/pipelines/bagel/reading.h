// From the texts and pictures of a request, in the user's order, to what each guidance branch
// reads. specs: bagel.md section 5; ByteDance-Seed/Bagel @056b5fd, inferencer.py
// (InterleaveInferencer.interleave_inference).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/pipelines/bagel/image.h"
#include "lib/pipelines/mot/contexts.h"

namespace diptych {

// The branches of guidance, as traces name them.
inline constexpr std::string_view kCond = "cond", kTextUncond = "text_uncond",
                                  kImgUncond = "img_uncond";

class BagelReading {
 public:
  // Tokenises what the request reads; its plan comes later. Throws InputError for a text that is
  // too long.
  static BagelReading of(const RunConfig& request, std::span<const BagelImage> images,
                         const MotModel& model);
  // The same with the plan that think mode has written.
  BagelReading with_plan(TextSegment plan) const;

  // cond, text_uncond, img_uncond.
  std::vector<BranchContexts> branches() const;

 private:
  struct Branch {
    MotContext context;
    std::vector<std::int64_t> calls;
  };
  void append_text(Branch& branch, const TextSegment& text);
  void add_system(const TextSegment& text);  // to cond and img_uncond
  // To cond and img_uncond; text_uncond becomes what cond was before it.
  void add_text(const TextSegment& text);
  // Its blocks to cond, the latent's only if `with_latent` (an answer does without); text_uncond
  // becomes cond.
  void add_image(const BagelImage& image, bool with_latent);
  Branch finished_text_uncond() const;  // with the negative prompt behind everything else

  Branch cond_, text_uncond_, img_uncond_;
  std::optional<TextSegment> negative_;
  std::int64_t images_ = 0, calls_ = 0;
};

}  // namespace diptych
