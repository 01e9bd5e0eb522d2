// The decoder layers' weights: all of them on the device, or some on the host, from where they are
// brought ahead of the layer that needs them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/attention/kv_cache.h"
#include "lib/ops/linear_operand.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct Qwen2Config {  // llm_config.json, its names
  std::int64_t hidden_size = 3584;
  std::int64_t num_hidden_layers = 28;
  std::int64_t num_attention_heads = 28;
  std::int64_t num_key_value_heads = 4;
  std::int64_t intermediate_size = 18944;
  std::int64_t vocab_size = 152064;
  std::int64_t max_position_embeddings = 32768;
  double rope_theta = 1e6;
  double rms_norm_eps = 1e-6;

  std::int64_t head_dim() const { return hidden_size / num_attention_heads; }
  KvShape kv_shape() const { return {num_hidden_layers, num_key_value_heads, head_dim()}; }
};

// Whether the projections are quantised as they are read, and by what.
struct MotQuantization {
  Quantization kind = Quantization::none;
  KernelPolicy kernels = KernelPolicy::automatic;
};

// How the projections lie in memory.
struct MatrixFormat {
  at::ScalarType dtype = at::kBFloat16;  // of the run
  Quantization quantization = Quantization::none;
};

// The weights of one layer for one kind of rows; projections that read the same input are packed.
// Only they are ever quantised.
struct MotExpert {
  Tensor input_layernorm;           // [hidden]
  LinearOperand qkv_proj;           // [(heads + 2 * kv_heads) * head_dim, hidden]
  Tensor qkv_bias;                  // [(heads + 2 * kv_heads) * head_dim]
  Tensor q_norm, k_norm;            // [head_dim]
  LinearOperand o_proj;             // [hidden, hidden]
  Tensor post_attention_layernorm;  // [hidden]
  LinearOperand gate_up_proj;       // [2 * intermediate, hidden]
  LinearOperand down_proj;          // [hidden, intermediate]

  // `matrices`: where the four projections are put, uint8 [matrix_bytes()]; undefined: each by
  // itself on the device. Of a tensor that is quantised there is one plain copy at a time.
  static MotExpert load(const Weights& layer, const Qwen2Config& config, std::string_view suffix,
                        const MotQuantization& quantization = {}, const Tensor& matrices = {});
  // The projections become views of the buffer, each part aligned like an allocation of its own.
  void use_matrices(const Tensor& buffer, const Qwen2Config& config, const MatrixFormat& format);
  static std::int64_t matrix_bytes(const Qwen2Config& config, const MatrixFormat& format);
};

struct MotLayer {
  MotExpert und, gen;
};

struct MotParts {  // the experts that a call has rows for
  bool und = false, gen = false;
};

// How many experts of each kind stay on the device, spread evenly over the layers. The others lie
// on the host, page-locked, and pass through `slots` places on the device, each of one expert's
// size: at least 2, and one more than a layer needs at once for copies to run beside the work.
struct MotOffload {
  std::int64_t resident_und = 0, resident_gen = 0;
  std::int64_t slots = 4;
};

class ExpertStream;

class MotLayers {
 public:
  // `model`: scope "language_model.model". Throws as Weights::get, and as CopyLane::host_buffer.
  static MotLayers load(const Weights& model, const Qwen2Config& config,
                        const std::optional<MotOffload>& offload,
                        const MotQuantization& quantization = {});
  std::size_t size() const { return layers_.size(); }
  // Norms and biases are there always, projections only where they stay on the device.
  const MotLayer& operator[](std::size_t layer) const { return layers_[layer]; }
  // Whether a call with such rows waits for experts to come from the host. Those that do can not be
  // captured in a CUDA graph.
  bool streams(MotParts parts) const;

  // The layer with the experts of `parts` whole, for what the current stream is given up to
  // release(). One layer at a time, from one thread; in the order of the layers it is fastest.
  const MotLayer& acquire(std::size_t layer, MotParts parts) const;
  void release() const;

 private:
  std::vector<MotLayer> layers_;
  std::shared_ptr<ExpertStream> stream_;  // null where everything stays on the device
};

}  // namespace diptych
