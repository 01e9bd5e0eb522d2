#include "tests/cli/process.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/diptych/program.h"

namespace diptych::test {
namespace {

namespace fs = std::filesystem;

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t end) {
    if (ends[end] >= 0) close(std::exchange(ends[end], -1));
  }
};

// Whether the process may be a fork: its libraries, which read these variables when they are
// loaded, have found what it is to find, and it is no question that the command answers itself.
bool may_be_forked(const Command& command) {
  constexpr std::array<std::string_view, 8> kReadAtLoad = {
      "LD_", "LIBTORCH_", "OMP_", "GOMP_", "MKL_", "KMP_", "CUDA_", "PYTORCH_"};
  constexpr std::array<std::string_view, 5> kAnswered = {"-h", "--help", "help", "--version",
                                                         "completion"};
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads == nullptr || std::string_view(threads) != "1") return false;
  if (command.binary != DIPTYCH_BINARY || command.before_exec || command.arguments.empty())
    return false;
  const bool asks = std::ranges::any_of(command.arguments, [&](const std::string& word) {
    return std::ranges::find(kAnswered, word) != kAnswered.end();
  });
  return !asks && std::ranges::none_of(command.environment, [&](const auto& variable) {
    const auto& [name, value] = variable;
    if (name == "OMP_NUM_THREADS" && value == "1") return false;
    return std::ranges::any_of(kReadAtLoad,
                               [&](std::string_view start) { return name.starts_with(start); });
  });
}

[[noreturn]] void run_here(std::vector<char*> words, const std::vector<std::string>& variables) {
  close_range(STDERR_FILENO + 1, ~0U, 0);  // what exec would close, and the ends of others' pipes
  clearenv();
  for (const std::string& variable : variables) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
  run_program(static_cast<int>(words.size()) - 1, words.data());
}

[[noreturn]] void become_binary(const Command& command, Pipe& in, Pipe& out, Pipe& err) {
  const bool forked = may_be_forked(command);
  dup2(in.ends[0], STDIN_FILENO);
  dup2(out.ends[1], STDOUT_FILENO);
  dup2(err.ends[1], STDERR_FILENO);
  std::vector<std::string> words = {command.binary};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> variables;
  const char* path = std::getenv("PATH");
  variables.push_back(fmt::format("PATH={}", path == nullptr ? "/usr/bin" : path));
  if (const char* devices = std::getenv("CUDA_VISIBLE_DEVICES")) {
    variables.push_back(fmt::format("CUDA_VISIBLE_DEVICES={}", devices));
  }
  if (!command.environment.contains("OMP_NUM_THREADS"))
    variables.emplace_back("OMP_NUM_THREADS=1");  // tiny models; several tests share the cores
  for (const auto& [name, value] : command.environment) {
    variables.push_back(name + "=" + value);
  }
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  // A suite in the background, or under nohup, has some of them ignored.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
  if (!command.folder.empty() && chdir(command.folder.c_str()) != 0) _exit(127);
  if (forked) run_here(pointers(words), variables);
  if (command.before_exec) command.before_exec();
  execve(words.front().c_str(), pointers(words).data(), pointers(variables).data());
  _exit(127);
}

// Reads both streams to their ends; sends the signal, or acts, when the cue comes.
void collect(const Command& command, pid_t child, int out, int err, Outcome& outcome) {
  std::array<pollfd, 2> streams = {pollfd{out, POLLIN, 0}, pollfd{err, POLLIN, 0}};
  bool cue_pending = !command.interrupt_after.empty();
  for (std::size_t open = streams.size(); open > 0;) {
    poll(streams.data(), streams.size(), -1);
    for (pollfd& stream : streams) {
      if (stream.fd < 0 || stream.revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t bytes = read(stream.fd, buffer.data(), buffer.size());
      if (bytes <= 0) {
        stream.fd = -1;
        --open;
        continue;
      }
      (stream.fd == out ? outcome.out : outcome.err)
          .append(buffer.data(), static_cast<std::size_t>(bytes));
    }
    if (cue_pending && outcome.err.find(command.interrupt_after) != std::string::npos) {
      cue_pending = false;
      if (command.at_cue) {
        command.at_cue();
      } else {
        kill(child, command.signal);
      }
    }
  }
}

}  // namespace

Outcome run(const Command& command) {
  Pipe in, out, err;
  std::cout.flush();  // a fork would write it, too
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become_binary(command, in, out, err);
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  // Small enough for the pipe's buffer, so that writing never waits.
  std::signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t written =
      write(in.ends[1], command.input.data(), command.input.size());
  in.close_end(1);
  Outcome outcome;
  collect(command, child, out.ends[0], err.ends[0], outcome);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return outcome;
}

Outcome run(std::vector<std::string> arguments) {
  Command command;
  command.arguments = std::move(arguments);
  return run(command);
}

Outcome run_in(const fs::path& folder, const std::string& arguments,
               std::map<std::string, std::string> environment) {
  Command command;
  command.environment = std::move(environment);
  std::istringstream words(arguments);
  for (std::string word; words >> word;) command.arguments.push_back(word);
  command.folder = folder;
  return run(command);
}

Folder::Folder() {
  static int count = 0;
  path_ = fs::temp_directory_path() / fmt::format("diptych-cli-{}-{}", getpid(), ++count);
  fs::create_directories(path_);
}

Folder::~Folder() {
  fs::remove_all(path_);
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

void Folder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ / name, std::ios::binary) << text;
}

}  // namespace diptych::test
