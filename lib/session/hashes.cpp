#include "lib/session/hashes.h"

#include <span>

#include "lib/base/sha256.h"

namespace diptych {

std::string tensor_hash(const Tensor& values) {
  const Tensor bytes = values.to(at::kCPU).contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return sha256_hex(std::span(data, bytes.nbytes()));
}

std::string short_hash(const Tensor& values) {
  return tensor_hash(values.to(at::kFloat)).substr(0, 16);
}

}  // namespace diptych
