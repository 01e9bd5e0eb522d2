// The failures a run can end in. Each carries one line for the user; apps/diptych/main.cpp is the
// only place that catches them and turns them into exit codes.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace diptych {

// Something the user can mend: a flag, key, file or value. Says which, what was found and what was
// expected. Exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <typename... Args>
  requires(sizeof...(Args) > 0) explicit InputError(fmt::format_string<Args...> format,
                                                    Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A recorded case, or a part of one, that this version cannot replay.
class Unsupported : public InputError {
 public:
  using InputError::InputError;
};

// The machine let us down: out of memory, disk full, device lost. Exit code 3.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <typename... Args>
  requires(sizeof...(Args) > 0) explicit RunError(fmt::format_string<Args...> format,
                                                  Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A file that cannot be written: disk full, quota, I/O error. The next one would fail, too.
class WriteError : public RunError {
 public:
  using RunError::RunError;
};

// A check, gate or verification that failed. Exit code 1.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The run was asked to stop by a signal. Exit code 128 + signal.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal) : std::runtime_error("interrupted"), signal_number(signal) {}
  int signal_number;
};

}  // namespace diptych
