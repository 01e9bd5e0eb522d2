// The name of a model's weights, by their content, beside other work.
#pragma once

#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <thread>

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

}  // namespace diptych
