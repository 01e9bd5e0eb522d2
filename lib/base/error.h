// The failures a run can end in. Each carries one line for the user; apps/diptych/program.cpp is
// the only place that catches them and turns them into exit codes.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "lib/base/setting.h"

namespace diptych {

// Something the user can mend: a flag, key, file or value. Says which, what was found and what was
// expected. About a setting it holds that as data, and what() calls it by its label: "--width:
// ...". Exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <typename... Args>
  requires(sizeof...(Args) > 0) explicit InputError(fmt::format_string<Args...> format,
                                                    Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
  explicit InputError(SettingProblem problem)
      : std::runtime_error(problem_text(problem, {problem.setting.label})),
        problem_(std::make_shared<const SettingProblem>(std::move(problem))) {}
  template <typename... Args>
  InputError(Setting setting, fmt::format_string<Args...> format, Args&&... args)
      : InputError(SettingProblem{
            std::move(setting), {}, {fmt::format(format, std::forward<Args>(args)...)}}) {}
  InputError(Setting setting, SettingText text)
      : InputError(SettingProblem{std::move(setting), {}, std::move(text)}) {}

  // Null where it is about no setting.
  const SettingProblem* problem() const { return problem_.get(); }

 private:
  std::shared_ptr<const SettingProblem> problem_;
};

// What an error is about: a setting, or a place that is known, such as "list.jsonl:3: output".
class Subject {
 public:
  Subject(Setting setting) : about_(std::move(setting)) {}          // NOLINT(*-explicit-*)
  Subject(std::string place) : about_(std::move(place)) {}          // NOLINT(*-explicit-*)
  Subject(std::string_view place) : Subject(std::string(place)) {}  // NOLINT(*-explicit-*)
  Subject(const char* place) : Subject(std::string(place)) {}       // NOLINT(*-explicit-*)

  template <typename... Args>
  InputError error(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    if (const auto* setting = std::get_if<Setting>(&about_))
      return InputError(*setting, "{}", text);
    return InputError("{}: {}", std::get<std::string>(about_), text);
  }

 private:
  std::variant<std::string, Setting> about_;
};

// Runs `work`. What it says of a file is wrong with the subject that names the file.
template <typename Work>
auto about(const Subject& subject, const Work& work) {
  try {
    return work();
  } catch (const InputError& error) {
    throw subject.error("{}", error.what());
  }
}

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
