#include "lib/tensor/stored_tensors.h"

#include <optional>

#include "lib/tensor/finite.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

std::uint64_t sum_of_bytes(const CheckpointFiles& checkpoint, std::optional<at::ScalarType> dtype) {
  std::uint64_t bytes = 0;
  for (const TensorFile& file : checkpoint.files) {
    for (const auto& [name, entry] : file.entries()) {
      if (!dtype || entry.dtype == *dtype) bytes += entry.end - entry.begin;
    }
  }
  return bytes;
}

}  // namespace

std::uint64_t stored_bytes(const CheckpointFiles& checkpoint) {
  return sum_of_bytes(checkpoint, std::nullopt);
}

std::uint64_t stored_bytes(const CheckpointFiles& checkpoint, at::ScalarType dtype) {
  return sum_of_bytes(checkpoint, dtype);
}

bool is_view(const CheckpointFiles& checkpoint, const std::string& name, at::ScalarType dtype) {
  const auto owner = checkpoint.owner.find(name);
  if (owner == checkpoint.owner.end()) return false;
  const TensorFile& file = checkpoint.files[owner->second];
  const auto address = reinterpret_cast<std::uintptr_t>(file.bytes(name).data());
  return file.entries().find(name)->second.dtype == dtype && address % c10::elementSize(dtype) == 0;
}

std::uint64_t view_bytes(const CheckpointFiles& checkpoint, at::ScalarType dtype) {
  std::uint64_t bytes = 0;
  for (const auto& [name, place] : checkpoint.owner) {
    if (is_view(checkpoint, name, dtype)) bytes += checkpoint.files[place].bytes(name).size();
  }
  return bytes;
}

void require_finite(const CheckpointFiles& checkpoint) {
  for (const auto& [name, place] : checkpoint.owner) {
    const TensorFile& file = checkpoint.files[place];
    const Tensor values = file.view(name);
    if (!at::isFloatingType(values.scalar_type()) || all_finite(values)) continue;
    throw BadWeights("{}: tensor {} holds NaN or infinity", file.path().string(), shown_name(name));
  }
}

}  // namespace diptych
