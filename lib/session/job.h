// One request on its way through a session, made once and handed on.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/session/result.h"

namespace diptych {

// What Session::make_job() found out: tokens, schedule, guidance, and the sizes of input pictures.
// The family's own job derives from it. A job may be run more than once.
class Job {
 public:
  explicit Job(RunConfig config) : config_(std::move(config)) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const RunConfig& config() const { return config_; }
  // Decodes the input pictures, unless they are there. run() needs that; planning does not. Throws
  // InputError for a file that cannot be decoded.
  void read_inputs() {
    if (inputs_read_) return;
    decode_inputs();
    inputs_read_ = true;
  }
  // Of each clip that it makes; nothing where it makes none.
  virtual std::optional<ClipShape> clip_shape() const { return std::nullopt; }

 private:
  virtual void decode_inputs() = 0;  // for read_inputs()

  RunConfig config_;
  bool inputs_read_ = false;
};

using JobGroup = std::vector<Job*>;  // that run together; each one's session made them

}  // namespace diptych
