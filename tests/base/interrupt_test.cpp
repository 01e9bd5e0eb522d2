// A signal that has to wait says so.
#include "lib/base/interrupt.h"

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

using namespace std::chrono_literals;

void wait_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) usleep(10'000);
}

// What a process says that is interrupted in the middle of a step of this length, and its status.
std::pair<std::string, int> said_in(std::chrono::milliseconds step, bool twice,
                                    bool silently = false) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    std::signal(SIGINT, SIG_DFL);
    install_interrupt_handlers();
    std::raise(SIGINT);
    if (silently) wait_silently();
    wait_for(step);
    if (twice) std::raise(SIGINT);
    try {
      check_interrupted();
    } catch (const Interrupted& interrupted) {
      wait_for(1200ms);  // an end that takes longer is none of a step
      _exit(interrupted.signal_number);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 256> part{};
  for (ssize_t bytes = 0; (bytes = read(ends[0], part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(bytes));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {text, status};
}

TEST_CASE("a signal in a long step says that it waits, and the next one ends the process") {
  const std::string line = "diptych: stopping after this step; once more to stop now\n";
  const auto [shortly, ended] = said_in(100ms, false);
  CHECK(shortly.empty());
  CHECK(WEXITSTATUS(ended) == SIGINT);
  const auto [late, stopped] = said_in(1300ms, false);
  CHECK(late == line);
  CHECK(WEXITSTATUS(stopped) == SIGINT);
  CHECK(said_in(1300ms, false, true).first.empty());  // nor where another process says so
  const auto [killed, signal] = said_in(1300ms, true);
  CHECK(killed == line);
  REQUIRE(WIFSIGNALED(signal));
  CHECK(WTERMSIG(signal) == SIGINT);
}

}  // namespace
}  // namespace diptych
