// The tensors of a MoT backbone and of what stands around it in the checkpoints of BAGEL and Lance,
// by name and shape.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/models/qwen/config.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

class MotLayout {
 public:
  void add(std::string name, std::vector<std::int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in) {  // weight and bias
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void norm(const std::string& name, std::int64_t width) {  // likewise
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  // Both experts of every layer and lm_head; timestep embedding and projections of latent rows of
  // that width; not the table of positions.
  void backbone(const QwenConfig& config, std::int64_t row_width);
  std::vector<TensorShape> take() { return std::move(tensors_); }

 private:
  void language_model(const QwenConfig& config);
  void latents(std::int64_t hidden, std::int64_t row_width);
  void expert(const std::string& layer, const QwenConfig& config, const std::string& suffix);

  std::vector<TensorShape> tensors_;
};

}  // namespace diptych
