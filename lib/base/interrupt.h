// Ctrl-C and SIGTERM: the handler only remembers the signal; long loops ask between steps.
#pragma once

namespace diptych {

void install_interrupt_handlers();  // SIGINT, SIGTERM; a second signal ends the process at once
void check_interrupted();           // throws Interrupted when a signal has come

}  // namespace diptych
