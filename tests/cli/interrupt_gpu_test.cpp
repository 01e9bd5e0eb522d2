// The user stops a run whose steps are replays of a captured graph: nothing on the host looks at
// them but the loop between two of them.
#include <csignal>

#include <doctest/doctest.h>

#include "tests/cli/process.h"

namespace diptych {
namespace {

TEST_CASE("a signal stops between two captured steps and leaves nothing") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const test::Folder folder;
    test::Command command;
    command.arguments = {
        "generate", "-p",   "a red circle", "-o",     folder.file("a.png"), "--steps", "10000",
        "--device", "cuda", "--kernels",    "strict", "--progress",         "kv"};
    command.interrupt_after = "stage=denoise\ndone=20\n";
    command.signal = signal;
    const test::Outcome outcome = run(command);
    CAPTURE(outcome.err.substr(0, 2000));
    CHECK(outcome.code == 128 + signal);
    CHECK(outcome.err.ends_with("diptych: interrupted\n"));
    CHECK(outcome.err.find("done=9000\n") == std::string::npos);
    CHECK(outcome.out.empty());
    CHECK(folder.names().empty());
  }
}

}  // namespace
}  // namespace diptych
