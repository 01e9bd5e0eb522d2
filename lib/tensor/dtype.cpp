#include "lib/tensor/dtype.h"

#include <algorithm>
#include <array>
#include <utility>

namespace diptych {
namespace {

// github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype; the types of whole
// bytes that torch has as well.
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 15> kDtypes = {{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U64", at::kUInt64},
    {"U32", at::kUInt32},
    {"U16", at::kUInt16},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

}  // namespace

std::optional<at::ScalarType> dtype_from_name(std::string_view name) {
  const auto* const found = std::ranges::find(kDtypes, name, [](const auto& d) { return d.first; });
  if (found == kDtypes.end()) return std::nullopt;
  return found->second;
}

std::string_view dtype_name(at::ScalarType dtype) {
  const auto* const found =
      std::ranges::find(kDtypes, dtype, [](const auto& d) { return d.second; });
  TORCH_CHECK(found != kDtypes.end(), "[safetensors] the format has no name for dtype ", dtype);
  return found->first;
}

}  // namespace diptych
