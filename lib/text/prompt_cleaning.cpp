#include "lib/text/prompt_cleaning.h"

#include <cstddef>

#include "lib/base/utf8.h"
#include "lib/text/fix_text.h"
#include "lib/text/html_entities.h"
#include "lib/text/pre_tokenizer.h"

namespace diptych {
namespace {

// White_Space, which is what \s means to Python's regex module.
bool is_space(char32_t c) {
  return character_class(c) == CharacterClass::whitespace;
}

// What Python's str.strip() and str.split() take for whitespace.
bool is_python_space(char32_t c) {
  return is_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view strip(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    const std::size_t next = i + character.length;
    if (!is_python_space(character.code_point)) {
      begin = std::min(begin, i);
      end = next;
    }
    i = next;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

// Every run of what `is_gap` says becomes one space.
std::string collapse(std::string_view text, bool (*is_gap)(char32_t)) {
  std::string collapsed;
  bool in_gap = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    const bool gap = is_gap(character.code_point);
    if (!gap) collapsed += text.substr(i, character.length);
    if (gap && !in_gap) collapsed += ' ';
    in_gap = gap;
    i += character.length;
  }
  return collapsed;
}

// pipelines/wan/pipeline_wan.py, prompt_clean(), without ftfy.
std::string clean_as_diffusers(std::string_view text) {
  const std::string plain = unescape_html(unescape_html(text));
  return std::string(strip(collapse(strip(plain), is_space)));
}

}  // namespace

std::string clean_prompt(std::string_view prompt, PromptCleaning cleaning) {
  check_utf8(prompt);
  switch (cleaning) {
    case PromptCleaning::none:
      break;
    case PromptCleaning::strip:
      return std::string(strip(prompt));
    case PromptCleaning::diffusers:
      return clean_as_diffusers(prompt);
    case PromptCleaning::ftfy:
      return clean_as_diffusers(fix_text(prompt));
    case PromptCleaning::whitespace:
      return collapse(strip(prompt), is_python_space);
  }
  return std::string(prompt);
}

}  // namespace diptych
