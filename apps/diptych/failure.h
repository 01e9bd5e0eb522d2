// What a failure means to the user: its line on stderr and the exit code.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "lib/base/error.h"

namespace diptych {

enum ExitCode {
  kDone = 0,
  kCheckFailed = 1,
  kBadInput = 2,
  kRunFailed = 3,
  kSomeFailed = 4,  // items of a batch
  kSignalBase = 128,
};

struct Failure {
  int code = kRunFailed;
  std::string text;                      // one line; "" = nothing is to be said
  bool of_item = false;                  // of a batch: the next item may well succeed
  std::optional<InputError> input = {};  // where it is one: it may be about a setting
  bool of_machine = false;               // memory or the device, not what was computed
};

Failure describe_failure(const std::exception_ptr& thrown);

}  // namespace diptych
