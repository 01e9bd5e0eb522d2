// The prompt of a request on its way through the model that rewrites it (--enhance-prompt): what is
// asked of that model, and what becomes of its answer. Runs no model.
#pragma once

#include <string>
#include <string_view>

#include "lib/config/fields.h"

namespace diptych {

// Whether the prompt is to be rewritten before the request is painted.
bool enhances(const Options& options);

// Throws InputError where no enhancer is named.
void require_enhancer(const Options& options);
// The same, and where the request has not one text that says something.
void require_enhanceable(const Options& options);

// What the enhancer is told for this request: the text of the file where there is one, else the one
// for what the request makes. Throws InputError about the file.
std::string enhance_instructions(const Options& options);

// An answer as a prompt: one line, without blanks around it and without quotation marks around all
// of it. May be empty.
std::string prompt_of_answer(std::string_view answer);

// The request with another prompt in the place of its own, and a note of how that came about.
// Precondition: require_enhanceable().
void set_enhanced_prompt(Options& options, std::string prompt, std::string instructions);

}  // namespace diptych
