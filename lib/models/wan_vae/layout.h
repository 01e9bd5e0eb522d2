// The tensors of a Wan video autoencoder by name and shape, in the original naming and in that of
// diffusers.
#pragma once

#include <string>
#include <vector>

#include "lib/models/wan_vae/config.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

// Where the parts of a file stand: prefixes of tensor names, without a dot at the end.
class WanVaePaths {
 public:
  explicit WanVaePaths(const WanVaeConfig& config);

  std::string conv_in(const std::string& side) const;  // side: "encoder" or "decoder"
  std::string norm_out(const std::string& side) const;
  std::string conv_out(const std::string& side) const;
  std::string middle_block(const std::string& side, std::size_t index) const;  // 0 or 1
  std::string middle_attention(const std::string& side) const;
  std::string down_block(std::size_t stage, std::int64_t block) const;
  std::string downsample(std::size_t stage) const;
  std::string up_block(std::size_t stage, std::int64_t block) const;
  std::string upsample(std::size_t stage) const;
  std::string quant_conv() const { return original_ ? "conv1" : "quant_conv"; }
  std::string post_quant_conv() const { return original_ ? "conv2" : "post_quant_conv"; }

 private:
  bool original_, residual_;
  std::int64_t blocks_;  // of an encoder stage
};

// Below a residual block's prefix.
struct WanVaeBlockNames {
  const char *norm1, *conv1, *norm2, *conv2, *shortcut;
  static WanVaeBlockNames of(WanVaeNaming naming);
};

// Every tensor of a file; with the naming of config.naming.
std::vector<TensorShape> wan_vae_layout(const WanVaeConfig& config);

}  // namespace diptych
