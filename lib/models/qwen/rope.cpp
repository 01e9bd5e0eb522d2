#include "lib/models/qwen/rope.h"

#include "lib/ops/ops.h"

namespace diptych {
namespace {

// Which of the three positions each angle takes: int64 [head_dim / 2]. The chunks behind the third
// repeat the first three, for the second half of a head.
Tensor position_of_angle(const QwenConfig& config) {
  std::vector<std::int64_t> rows;
  for (std::size_t part = 0; part < config.mrope_section.size(); ++part) {
    const auto angles = static_cast<std::size_t>(config.mrope_section[part]);
    rows.insert(rows.end(), angles, static_cast<std::int64_t>(part));
  }
  TORCH_CHECK(static_cast<std::int64_t>(rows.size()) == config.head_dim / 2,
              "[rope_angles] mrope_section is of ", rows.size(), " angles, head_dim is ",
              config.head_dim);
  return at::tensor(rows, at::kLong);
}

}  // namespace

Tensor rope_angles(const Tensor& position_ids, const QwenConfig& config) {
  TORCH_CHECK(position_ids.defined() && position_ids.scalar_type() == at::kLong,
              "[rope_angles] position ids are not int64");
  Tensor frequencies = rope_frequencies(config.head_dim, config.rope_theta);
  if (config.bf16_rope_frequencies) frequencies = frequencies.to(at::kBFloat16).to(at::kFloat);
  frequencies = frequencies.to(position_ids.device());
  if (position_ids.dim() == 1) return position_ids.to(at::kFloat).unsqueeze(1) * frequencies;
  TORCH_CHECK(
      position_ids.dim() == 2 && position_ids.size(0) == 3 && config.mrope_section.size() == 3,
      "[rope_angles] position ids are ", position_ids.sizes(), ", mrope_section has ",
      config.mrope_section.size(), " parts; expected [rows], or [3, rows] and 3 parts");
  const Tensor rows = position_of_angle(config).to(position_ids.device());
  return position_ids.to(at::kFloat).index_select(0, rows).t().contiguous() * frequencies;
}

std::pair<Tensor, Tensor> qwen_rope_table(const Tensor& position_ids, const QwenConfig& config,
                                          at::ScalarType dtype) {
  return rope_table(rope_angles(position_ids, config), dtype);
}

}  // namespace diptych
