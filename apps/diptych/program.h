// All of the program behind main().
#pragma once

namespace diptych {

// Runs a command line and ends the process; `argv` as main() got it.
[[noreturn]] void run_program(int argc, char** argv);

}  // namespace diptych
