#include "lib/base/interrupt.h"

#include <csignal>

#include "lib/base/error.h"

namespace diptych {
namespace {

volatile std::sig_atomic_t pending_signal = 0;  // a signal handler can reach nothing else

void remember(int signal_number) {
  if (pending_signal != 0) {
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
  }
  pending_signal = signal_number;
}

}  // namespace

void install_interrupt_handlers() {
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error with a message, not a death
}

void check_interrupted() {
  if (pending_signal != 0) throw Interrupted(pending_signal);
}

}  // namespace diptych
