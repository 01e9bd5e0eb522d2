// diptych <verb> [options]. The only place that catches: every failure becomes one line on stderr
// and an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include "apps/diptych/command_line.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/stdout.h"

namespace diptych {
namespace {

enum ExitCode { kDone = 0, kCheckFailed = 1, kBadInput = 2, kRunFailed = 3, kSignalBase = 128 };

int fail(int code, const std::string& text) {
  const std::string line = fmt::format("diptych: {}\n", printable(text));
  std::fputs(line.c_str(), stderr);
  return code;
}

// The texts of libraries go on with where in them it happened.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

int fail_of_memory(std::string text) {
  if (text.starts_with("[enforce fail")) text.erase(0, text.find(". ") + 2);  // libtorch's place
  return fail(kRunFailed,
              first_line(text) +
                  " (try --offload layers, --vae-tiling on, --cfg-mode sequential, a smaller "
                  "size, or --dtype bfloat16)");
}

// libtorch reports some exhausted memory as a plain error.
bool speaks_of_memory(const std::string& text) {
  for (const char* words : {"out of memory", "not enough memory", "can't allocate memory",
                            "CUBLAS_STATUS_ALLOC_FAILED"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

// Without it, the first file that is opened would become stdout or stderr.
void keep_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // stdout must fail when written to; the lost words on stderr harm nobody.
    const int flags = descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) != descriptor) std::_Exit(kRunFailed);
  }
}

int run_command(CLI::App& app, int argc, char** argv) {
  SharedFlags shared;
  Run run;
  build_command_line(app, shared, run);
  try {
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::Success& help) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(help, text);
    fmt::print("{}", text.str());
    return code;
  }
  Log log(shared.level());
  if (!run) throw InputError("no verb given, such as generate (see diptych --help)");
  const c10::InferenceMode inference;
  return run(log);
}

int run_and_flush(CLI::App& app, int argc, char** argv) {
  try {
    const int code = run_command(app, argc, argv);
    flush_stdout();
    return code;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) throw;
    stdout_failed(error.code().value());  // it came from fmt::print
  }
}

int report_stop(const Interrupted& stop) {
  const int code = kSignalBase + stop.signal_number;
  // Whoever closed the pipe has seen enough, and wants no message.
  return stop.signal_number == SIGPIPE ? code : fail(code, stop.what());
}

int run_and_report(CLI::App& app, int argc, char** argv) {
  try {
    return run_and_flush(app, argc, argv);
  } catch (const CLI::ExtrasError&) {
    return fail(kBadInput, describe_unknown_argument(app));
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, describe_parse_error(app, error));
  } catch (const InputError& error) {
    return fail(kBadInput, error.what());
  } catch (const std::filesystem::filesystem_error& error) {  // a path, not what is done with it
    return fail(kBadInput, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const CheckFailed& error) {
    return fail(kCheckFailed, error.what());
  } catch (const Interrupted& stop) {
    return report_stop(stop);
  } catch (const c10::OutOfMemoryError& error) {
    return fail_of_memory(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return speaks_of_memory(text) ? fail_of_memory(text) : fail(kRunFailed, first_line(text));
  } catch (const std::bad_alloc&) {
    return fail_of_memory("out of memory");
  } catch (const RunError& error) {
    return fail(kRunFailed, error.what());
  } catch (const std::exception& error) {
    return fail(kRunFailed, first_line(error.what()));
  }
}

}  // namespace
}  // namespace diptych

int main(int argc, char** argv) {
  diptych::keep_standard_streams();
  diptych::install_interrupt_handlers();
  CLI::App app;
  return diptych::run_and_report(app, argc, argv);
}
