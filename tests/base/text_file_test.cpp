#include "lib/base/text_file.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Folder;

std::string refusal(const fs::path& path) {
  return test::message_of([&] { read_text_file(path); });
}

}  // namespace

TEST_CASE("text files: all of it, or its begin") {
  const Folder folder;
  const fs::path file = folder.path() / "a.txt";
  std::string text;
  for (int i = 0; i < 40000; ++i) text += std::to_string(i);
  std::ofstream(file) << text;
  CHECK(read_text_file(file) == text);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{70000}, text.size()})
    CHECK(read_text_start(file, bytes) == text.substr(0, bytes));
  std::ofstream(file, std::ios::trunc);
  CHECK(read_text_file(file).empty());
}

TEST_CASE("text files: why one cannot be read") {
  const Folder folder;
  CHECK(refusal(folder.path() / "a.txt") == (folder.path() / "a.txt").string() + ": is missing");
  CHECK(refusal(folder.path()) == folder.path().string() + ": is a folder, expected a file");
  fs::create_symlink("loop", folder.path() / "loop");
  CHECK(refusal(folder.path() / "loop") ==
        (folder.path() / "loop").string() + ": cannot be read: Too many levels of symbolic links");
}

TEST_CASE("text files: a pipe is read until its writer is gone, whenever that one comes") {
  const Folder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const std::string text(200'000, 'x');  // more than a pipe holds
  std::thread writer([&] { std::ofstream(pipe) << text; });
  CHECK(read_text_file(pipe) == text);
  writer.join();
}

TEST_CASE("text files: a signal ends the wait for a pipe's writer") {
  const Folder folder;
  const fs::path pipe = folder.path() / "pipe", waits = folder.path() / "waits";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    install_interrupt_handlers();
    std::ofstream(waits).close();
    try {
      read_text_file(pipe);
    } catch (const Interrupted& interrupted) {
      _exit(interrupted.signal_number);
    } catch (...) {
    }
    _exit(0);
  }
  for (int tries = 0; tries < 2000 && !fs::exists(waits); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill(child, SIGTERM);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == SIGTERM);
}

}  // namespace diptych
