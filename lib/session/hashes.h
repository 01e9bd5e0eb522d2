// Names for content: of tensors, and of the weights of a model.
#pragma once

#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <thread>

#include "lib/tensor/types.h"

namespace diptych {

// Names the weights beside the painting: it reads every byte of them. Stops when it goes.
class BackgroundHash {
 public:
  explicit BackgroundHash(std::function<std::string(const std::stop_token&)> hash);
  std::string get() { return future_.get(); }  // waits; throws what the function threw

 private:
  std::promise<std::string> promise_;
  std::shared_future<std::string> future_ = promise_.get_future().share();
  std::jthread thread_;  // last: it is joined before the promise goes
};

std::string tensor_hash(const Tensor& values);  // sha-256 of the bytes
std::string short_hash(const Tensor& values);   // 16 hex digits of that of the float32 values

}  // namespace diptych
