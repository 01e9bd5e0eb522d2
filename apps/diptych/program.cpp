// All of the program behind main.cpp. The only place that catches: every failure becomes one line
// on stderr and an exit code.
#include "apps/diptych/program.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>

#include "apps/diptych/command_line.h"
#include "apps/diptych/failure.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/map_guard.h"
#include "lib/base/messages.h"
#include "lib/base/stdout.h"

namespace diptych {
namespace {

int fail(int code, const std::string& text) {
  const std::string line = fmt::format("diptych: {}\n", printable(text));
  std::fputs(line.c_str(), stderr);
  return code;
}

int run_command(CLI::App& app, int argc, char** argv) {
  SharedFlags shared;
  Run run;
  build_command_line(app, shared, run);
  try {
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::Success& help) {  // --help, --version
    if (app.get_subcommands().empty() && app.remaining_size() > 0) throw CLI::ExtrasError({});
    std::ostringstream text;
    const int code = app.exit(help, text);
    fmt::print("{}", text.str());
    return code;
  }
  Log log(chosen_level(app, shared));
  log.mark("libraries are loaded, flags are read");
  if (!run) throw InputError("no verb given, such as generate (see diptych --help)");
  warn_of_misspelt_variables(app, log);
  const c10::InferenceMode inference;
  const int code = run(log);
  log.mark("the session has ended");
  return code;
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

int run_and_report(CLI::App& app, int argc, char** argv) {
  try {
    return run_and_flush(app, argc, argv);
  } catch (const CLI::ExtrasError&) {
    return fail(kBadInput, describe_unknown_argument(app));
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, describe_parse_error(app, error));
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    if (failure.text.empty()) return failure.code;
    return fail(failure.code, failure.input ? error_text(app, *failure.input) : failure.text);
  }
}

// A library that gives up says why and calls exit(1), as libgomp does without threads; the program
// itself never comes here.
void end_as_failure() {
  std::fflush(nullptr);
  std::_Exit(kRunFailed);
}

}  // namespace

void run_program(int argc, char** argv) {
  install_interrupt_handlers();
  install_map_guard();
  std::atexit(end_as_failure);
  int code = 0;
  {
    CLI::App app;
    code = run_and_report(app, argc, argv);
  }
  // The libraries' destructors take 0.1 s, and free what the system takes back anyway.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace diptych
