#include "lib/session/background_hash.h"

#include <utility>

namespace diptych {

BackgroundHash::BackgroundHash(std::function<std::string(const std::stop_token&)> hash)
    : thread_([this, hash = std::move(hash)](const std::stop_token& stop) {
        try {
          promise_.set_value(hash(stop));
        } catch (...) {
          promise_.set_exception(std::current_exception());
        }
      }) {}

}  // namespace diptych
