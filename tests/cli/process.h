// Runs the diptych binary as a user's shell would. Its start, which is mostly that of libtorch,
// takes half a second of a core; where nothing of it matters, a fork of the tests, which have
// loaded the same libraries, runs the program's own code instead.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace diptych::test {

struct Command {
  std::string binary = DIPTYCH_BINARY;
  std::vector<std::string> arguments;  // behind "diptych"
  std::map<std::string, std::string>
      environment;                    // beside PATH and the GPUs to see, all that is inherited
  std::filesystem::path folder;       // to stand in, "" = where the tests do
  std::string input;                  // on stdin
  std::function<void()> before_exec;  // in the child: limits, closed streams; then never a fork
  std::string interrupt_after;        // send `signal` once this stands on stderr
  int signal = SIGINT;
  std::function<void()> at_cue;  // done then, instead of the signal
};

struct Outcome {
  int code = -1;  // exit code, or 1000 + signal where one ended it
  std::string out, err;
};

Outcome run(const Command& command);
Outcome run(std::vector<std::string> arguments);
// Inside `folder`; `arguments` are split at blanks.
Outcome run_in(const std::filesystem::path& folder, const std::string& arguments,
               std::map<std::string, std::string> environment = {});

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const;  // of what is in it, sorted
  void write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace diptych::test
