#include "lib/session/hashes.h"

#include <span>
#include <utility>

#include "lib/base/sha256.h"

namespace diptych {

BackgroundHash::BackgroundHash(std::function<std::string(const std::stop_token&)> hash)
    : thread_([this, hash = std::move(hash)](const std::stop_token& stop) {
        try {
          promise_.set_value(hash(stop));
        } catch (...) {
          promise_.set_exception(std::current_exception());
        }
      }) {}

std::string tensor_hash(const Tensor& values) {
  const Tensor bytes = values.to(at::kCPU).contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return sha256_hex(std::span(data, bytes.nbytes()));
}

std::string short_hash(const Tensor& values) {
  return tensor_hash(values.to(at::kFloat)).substr(0, 16);
}

}  // namespace diptych
