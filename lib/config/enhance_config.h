// A model that rewrites a prompt before it is painted: what is asked of it, and what it made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace diptych {

// What the rewriting model is told where nothing else is given.
inline constexpr const char* kPictureInstructions =
    "You rewrite short prompts for a program that paints one picture. Keep all that the prompt "
    "asks for: subjects, numbers, colours, places and actions, and words that are to be written in "
    "the picture, in quotation marks as they are. Add what it leaves open: how the subjects look, "
    "the setting, the light, the colours, the composition and the style. Contradict nothing, and "
    "add no other main subject. If the prompt asks for a change to a picture that is there, do not "
    "describe a picture: say what changes, exactly, and that everything else stays as it is. Write "
    "in the language of the prompt. Answer with the new prompt alone: one paragraph of at most 100 "
    "words, without a title, a list or a comment.";
inline constexpr const char* kClipInstructions =
    "You rewrite short prompts for a program that makes one short video. Keep all that the prompt "
    "asks for: subjects, numbers, colours, places, actions and their order. Add what it leaves "
    "open: how the subjects look, the setting, the light and the style, what moves, how and how "
    "fast, and what the camera does. It is a single shot of a few seconds without a cut. "
    "Contradict nothing, and add no other main subject. If the prompt asks for a change to a video "
    "that is there, do not describe a video: say what changes, exactly, and that everything else "
    "stays as it is. Write in the language of the prompt. Answer with the new prompt alone: one "
    "paragraph of at most 100 words, without a title, a list or a comment.";

struct EnhanceConfig {
  bool on = false;
  std::filesystem::path model, drafter;  // checkpoint folders, "" = none
  std::filesystem::path instructions;    // a text file instead of the two below, "" = none
  std::string picture_instructions = kPictureInstructions;
  std::string clip_instructions = kClipInstructions;
  std::int64_t max_tokens = 512;  // of a rewritten prompt
};

// How the prompt of a request came about that was rewritten.
struct EnhancedPrompt {
  std::string given;              // the prompt before
  std::string enhancer, drafter;  // as records name checkpoints; "" = no drafter
  std::string instructions;       // what the enhancer was told
  std::int64_t max_tokens = 0;
};

}  // namespace diptych
