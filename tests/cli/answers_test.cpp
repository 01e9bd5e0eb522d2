// Help, the version and completions: at once, and what the program itself says.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <torch/version.h>

#include "tests/cli/process.h"

namespace diptych {
namespace {

using test::Outcome;
using test::run;

const std::vector<std::vector<std::string>> kAnswered = {
    {"--help"}, {"--version"}, {"version"}, {"generate", "--help"}, {"completion", "zsh"}};

// The program cannot be started then.
test::Command without_libtorch(const std::vector<std::string>& arguments) {
  test::Command command;
  command.arguments = arguments;
  command.environment["LIBTORCH_ROOT"] = "/nowhere";
  return command;
}

TEST_CASE("what is always the same is answered without libtorch, in the program's own words") {
  for (const auto& arguments : kAnswered) {
    CAPTURE(arguments.back());
    const Outcome answer = run(without_libtorch(arguments));
    CHECK(answer.code == 0);
    CHECK(answer.err.empty());
    test::Command command;
    command.arguments = arguments;
    command.environment["DIPTYCH_VERBOSE"] = "false";  // with it the program is asked
    const Outcome own = run(command);
    CHECK(own.code == 0);
    CHECK(answer.out.size() > 10);
    CHECK(answer.out == own.out);
  }
}

TEST_CASE("an answer takes less than 0.15 s") {
  for (const auto& arguments : kAnswered) {
    CAPTURE(arguments.back());
    double seconds = 1e9;  // the best of some: other programs run beside
    for (int i = 0; i < 5; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      run(arguments);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      seconds = std::min(seconds, taken.count());
    }
    CHECK(seconds < 0.15);
  }
}

TEST_CASE("a variable that changes an answer is seen, and so is what follows it") {
  test::Command command;
  command.arguments = {"version"};
  command.environment["DIPTYCH_LOG_LEVEL"] = "loud";
  const Outcome outcome = run(command);
  CHECK(outcome.code == 2);
  CHECK(outcome.err ==
        "diptych: DIPTYCH_LOG_LEVEL: unknown value 'loud' (known: quiet, error, warning, "
        "info, debug)\n");
  CHECK(run(std::vector<std::string>{"version", "beside"}).code == 2);
  test::Command json;
  json.arguments = {"version"};
  json.environment["DIPTYCH_JSON"] = "1";
  CHECK(run(json).out == run(std::vector<std::string>{"version", "--json"}).out);
}

TEST_CASE("a libtorch of another version is said in one line") {
  const test::Folder folder;
  std::filesystem::create_directories(folder.path() / "lib");
  for (const char* name : {"lib/libtorch_cpu.so", "lib/libtorch_cuda.so"}) folder.write(name, "");
  folder.write("version.py", "__version__ = '1.2.3+cpu'\n");
  test::Command command;
  command.arguments = {"devices"};
  command.environment["LIBTORCH_ROOT"] = folder.path().string();
  const Outcome outcome = run(command);
  CHECK(outcome.code == 3);
  CHECK(outcome.err == "diptych: LIBTORCH_ROOT: " + folder.path().string() +
                           ": is libtorch 1.2.3+cpu, expected " TORCH_VERSION "\n");
}

TEST_CASE("a libtorch that is not there is said in one line") {
  const Outcome outcome = run(without_libtorch({"devices"}));
  CHECK(outcome.code == 3);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.starts_with("diptych: LIBTORCH_ROOT: /nowhere: holds no lib/libtorch_"));
  CHECK(std::ranges::count(outcome.err, '\n') == 1);
}

// Whether a start takes the stand-in for libtorch's part for GPUs.
bool leaves_out_gpu(const std::map<std::string, std::string>& environment) {
  const test::Folder folder;
  test::Command command;
  command.arguments = {"inspect", "none"};
  command.environment = environment;
  command.environment["LD_DEBUG"] = "files";  // the dynamic linker writes to files with process ids
  command.environment["LD_DEBUG_OUTPUT"] = folder.file("debug");
  const Outcome outcome = run(command);
  CHECK(outcome.code == 2);
  CHECK(outcome.err == "diptych: none: not found\n");
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    std::ostringstream text;
    text << std::ifstream(file.path()).rdbuf();
    if (text.str().find("/no_gpu/libtorch_cuda.so") != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("without a driver for a GPU a start leaves libtorch's part for GPUs out") {
  const auto stand_in = std::filesystem::path(DIPTYCH_BINARY).parent_path() / "libexec/no_gpu";
  const bool has_driver =
      std::filesystem::exists("/dev/nvidiactl") || dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
  CHECK(leaves_out_gpu({}) == (std::filesystem::exists(stand_in) && !has_driver));
  CHECK(!leaves_out_gpu({{"LD_BIND_NOW", "1"}}));
}

}  // namespace
}  // namespace diptych
