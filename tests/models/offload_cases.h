// A small random backbone, whole on a device and with experts on the host: the same bits.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "lib/models/qwen_mot/backbone.h"

namespace diptych::offload_cases {

struct Case {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  KernelPolicy kernels = KernelPolicy::automatic;
  Quantization quantization = Quantization::none;
};

QwenConfig small_config();  // 5 layers
MotBackbone load(const Case& on, const QwenConfig& config,
                 const std::optional<MotOffload>& offload = {});

// A prompt, image blocks, a prompt again, a token: generation and understanding rows that each
// gives (undefined where it gives none), and what the caches hold behind it.
std::vector<Tensor> run(const MotBackbone& model, const Case& on, const MotObserver& observer = {},
                        MotWanted wanted = MotWanted::all);

void check_same(const std::vector<Tensor>& found, const std::vector<Tensor>& expected);

// Every way to offload: run() twice gives what the resident backbone gives.
void check_equal_to_resident(const Case& on);
// Rows that are not wanted are not given; the others, and the caches, are the same.
void check_wanted_rows(const Case& on);

}  // namespace diptych::offload_cases
