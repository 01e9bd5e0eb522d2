// What the names of recorded tensors say: when in a run a tensor is computed, whether it holds
// whole numbers, and which tolerance groups of a golden case it belongs to. The names are those of
// the golden READMEs ("prefill.00.cond.text.layer01.hidden", "step003.v_guided"); others are taken
// as coming last, in the order of their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace diptych {

// A strict weak order: true where `a` is computed before `b` in a run. Prefill calls in their
// order, decode, kv, gen, steps (each: t, time_embed, vae2llm, the branches' layers, v_*, v_guided,
// latent), result, vae, image; equal places by name, digits as numbers.
bool computed_before(std::string_view a, std::string_view b);

// Lengths, ids, indexes and positions: compared exactly.
bool is_integer_name(std::string_view name);
// Pictures of 8-bit levels ("image.uint8", "image.1.uint8", "0.image_uint8").
bool is_image_name(std::string_view name);
// Keys of tolerance.suggested in a case.json, the most specific first; empty for unknown names.
std::vector<std::string> tolerance_groups(std::string_view name);

}  // namespace diptych
