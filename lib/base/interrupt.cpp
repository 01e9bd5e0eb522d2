#include "lib/base/interrupt.h"

#include <cerrno>
#include <csignal>

#include <unistd.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

// A signal handler can reach nothing else.
volatile std::sig_atomic_t pending_signal = 0, on_terminal = 0, silent = 0;

// Like remember(), it calls nothing but what a signal handler may.
void say_that_it_waits(int) {
  constexpr char kText[] = "\ndiptych: stopping after this step; once more to stop now\n";
  const std::size_t skipped = on_terminal != 0 ? 0 : 1;  // the end of a progress bar's line
  const int kept = errno;
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, kText + skipped, sizeof kText - 1 - skipped);
  errno = kept;
}

void remember(int signal_number) {
  if (pending_signal != 0) {
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
  }
  pending_signal = signal_number;
  if (silent != 0) return;
  std::signal(SIGALRM, say_that_it_waits);  // not before, when an alarm is somebody else's
  alarm(1);
}

void remember_unless_ignored(int signal_number) {
  if (std::signal(signal_number, remember) == SIG_IGN) std::signal(signal_number, SIG_IGN);
}

}  // namespace

void install_interrupt_handlers() {
  on_terminal = ::isatty(STDERR_FILENO);
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) remember_unless_ignored(each);
  for (const int each : {SIGPIPE, SIGXFSZ}) std::signal(each, SIG_IGN);
}

void wait_silently() noexcept {
  silent = 1;
  if (pending_signal != 0) alarm(0);
}

void interrupt() noexcept {
  if (pending_signal == 0) pending_signal = SIGTERM;
}

void check_interrupted() {
  if (pending_signal == 0) return;
  alarm(0);
  throw Interrupted(pending_signal);
}

}  // namespace diptych
