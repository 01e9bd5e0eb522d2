#include "lib/runtime/stored_dtype.h"

#include "lib/tensor/stored_tensors.h"

namespace diptych {

StoredWeights StoredWeights::of(const CheckpointFiles& files) {
  const std::uint64_t bytes = stored_bytes(files);
  return {bytes, 2 * stored_bytes(files, at::kBFloat16) > bytes};
}

bool cpu_multiplies_bfloat16() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0 || __builtin_cpu_supports("amx-bf16") != 0;
#else
  return false;
#endif
}

at::ScalarType resolve_dtype(DtypeChoice choice, at::Device device) {
  if (choice == DtypeChoice::automatic) return device.is_cuda() ? at::kBFloat16 : at::kFloat;
  return choice == DtypeChoice::float32 ? at::kFloat : at::kBFloat16;
}

at::ScalarType resolve_dtype(DtypeChoice choice, at::Device device,
                             const std::function<StoredWeights()>& stored) {
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 30;  // a smaller model is fast in float32
  const bool may_be_narrow = choice == DtypeChoice::automatic && device.is_cpu() && stored;
  if (!may_be_narrow || !cpu_multiplies_bfloat16()) return resolve_dtype(choice, device);
  const StoredWeights weights = stored();
  return weights.bfloat16 && weights.bytes >= kLarge ? at::kBFloat16 : at::kFloat;
}

}  // namespace diptych
