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

void remember_unless_ignored(int signal_number) {
  if (std::signal(signal_number, remember) == SIG_IGN) std::signal(signal_number, SIG_IGN);
}

}  // namespace

void install_interrupt_handlers() {
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) remember_unless_ignored(each);
  for (const int each : {SIGPIPE, SIGXFSZ}) std::signal(each, SIG_IGN);
}

void interrupt() noexcept {
  if (pending_signal == 0) pending_signal = SIGTERM;
}

void check_interrupted() {
  if (pending_signal != 0) throw Interrupted(pending_signal);
}

}  // namespace diptych
