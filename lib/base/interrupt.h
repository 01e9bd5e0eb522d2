// Ctrl-C and its like: the handler only remembers the signal; long loops ask between steps.
#pragma once

namespace diptych {

// SIGINT, SIGTERM and SIGHUP, but not those that the parent set to ignored (nohup, the background
// jobs of a shell): these stay ignored. One that check_interrupted() does not meet within a second
// says on stderr that a step is being ended. A second signal ends the process at once. SIGPIPE and
// SIGXFSZ become errors of the write that meets them.
void install_interrupt_handlers();
void wait_silently() noexcept;  // from now on another process says that a step is being ended
void check_interrupted();       // throws Interrupted when a signal has come
// As if SIGTERM had come: for what ends the process without a signal. Says nothing by itself.
void interrupt() noexcept;

}  // namespace diptych
