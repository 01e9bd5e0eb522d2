// From the texts and pictures of a request, in the user's order, to what each guidance branch
// reads. specs: bagel.md section 5; ByteDance-Seed/Bagel @056b5fd, inferencer.py
// (InterleaveInferencer.interleave_inference).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/pipelines/mot/contexts.h"

namespace diptych {

// The system prompts of think mode, to the letter.
inline constexpr std::string_view kThinkBeforeAnswer =
    "You should first think about the reasoning process in the mind and then provide the user with "
    "the answer. \nThe reasoning process is enclosed within <think> </think> tags, i.e. <think> "
    "reasoning process here </think> answer here";
inline constexpr std::string_view kThinkBeforePicture =
    "You should first think about the planning process in the mind and then generate the image. "
    "\nThe planning process is enclosed within <think> </think> tags, i.e. <think> planning "
    "process "
    "here </think> image here";

class BagelReading {
 public:
  explicit BagelReading(const BagelCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  void add_system(std::string_view text);  // to cond and img_uncond
  // To cond and img_uncond; text_uncond becomes what cond was before it. Throws InputError for a
  // text that is too long.
  void add_text(std::string_view text);
  // Its blocks to cond, the latent's only if `with_latent` (an answer does without); text_uncond
  // becomes cond.
  void add_image(const BagelImage& image, bool with_latent);
  void add_plan(std::string_view text);      // to cond only
  void add_negative(std::string_view text);  // to text_uncond, after everything else

  // cond, text_uncond, img_uncond of several samples together.
  static std::vector<BranchContexts> branches(std::span<const BagelReading> samples);

 private:
  struct Branch {
    BagelContext context;
    std::vector<std::int64_t> calls;
  };
  void append_text(Branch& branch, std::string_view text);

  const BagelCheckpoint& checkpoint_;
  Branch cond_, text_uncond_, img_uncond_;
  std::int64_t images_ = 0, calls_ = 0;
};

}  // namespace diptych
