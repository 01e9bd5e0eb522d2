// What Wan's own release calls the tensors of a transformer. All shapes are the same in both
// namings. Table: specs: wan-weights.md 1; github.com/Wan-Video/Wan2.1, wan/modules/model.py.
#pragma once

#include <string>
#include <string_view>

namespace diptych {

// Of a tensor, or of a module, in the naming of diffusers: "blocks.0.attn1.to_q.weight" ->
// "blocks.0.self_attn.q.weight". Names that are the same in both, and unknown ones, as they are.
std::string wan_original_name(std::string_view diffusers);

}  // namespace diptych
