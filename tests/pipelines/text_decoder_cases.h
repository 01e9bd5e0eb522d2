// What a text decoder must hold to on every device, however far it runs ahead of the host.
#pragma once

#include <string>

namespace diptych::test {

// The released layout's small checkpoint: the same tokens as a decoder that lays out each step
// anew, wherever the text ends, and the generator left behind as many races as tokens were fed.
// float32, where roundings of another order choose no other token.
void check_tokens(const std::string& device);
// Watched (the logits of each token are asked for) or not, the same tokens and draws; a text that
// was stopped halfway changes nothing in the next one. With a graph or without.
void check_watching_and_stopping(const std::string& device, const std::string& dtype);
// Without the graph the host launches each operation. CUDA only.
void check_launches(const std::string& device);

}  // namespace diptych::test
