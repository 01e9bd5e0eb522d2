#include "lib/base/map_guard.h"

#include <array>
#include <csignal>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

struct Ended {
  int code = -1;  // exit code, or 1000 + signal where one ended it
  std::string err;
};

template <typename Work>
Ended in_child(const Work& work) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGBUS, SIG_DFL);  // doctest has a handler of its own
    dup2(ends[1], STDERR_FILENO);
    install_map_guard();
    work();
    _exit(0);
  }
  close(ends[1]);
  Ended ended;
  std::array<char, 512> buffer{};
  for (ssize_t bytes; (bytes = read(ends[0], buffer.data(), buffer.size())) > 0;)
    ended.err.append(buffer.data(), static_cast<std::size_t>(bytes));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return ended;
}

std::span<const std::byte> map_of(const fs::path& file, std::size_t bytes) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  void* const map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  return {static_cast<const std::byte*>(map), map == MAP_FAILED ? 0 : bytes};
}

// Reads the last byte of a map of three pages, of which the file then lost two.
void read_behind_the_end(const fs::path& file, std::span<const std::byte> bytes) {
  fs::resize_file(file, kPage);
  const volatile std::byte* const last = &bytes.back();
  static_cast<void>(*last);
}

TEST_CASE("a mapped file that becomes shorter ends the process with 3 and a line that names it") {
  const test::Folder folder;
  const fs::path file = folder.write("w\n.bin", std::string(3 * kPage, 'x'));
  const fs::path other = folder.write("other.bin", std::string(3 * kPage, 'x'));
  const Ended ended = in_child([&] {
    const auto others = map_of(other, 3 * kPage), bytes = map_of(file, 3 * kPage);
    const MapGuard other_guard(other, others);
    { const MapGuard gone("gone.bin", bytes); }
    const MapGuard guard(file, bytes);
    read_behind_the_end(file, bytes);
  });
  CHECK(ended.code == 3);
  CHECK(ended.err == "diptych: " + folder.path().string() +
                         "/w\\x0A.bin: became shorter while it was read; is it being downloaded or "
                         "copied over?\n");
}

TEST_CASE("a file that is whole and still cannot be read is said to be so") {
  const test::Folder folder;
  const fs::path file = folder.write("w.bin", std::string(3 * kPage, 'x'));
  const Ended ended = in_child([&] {
    const auto bytes = map_of(file, 3 * kPage);
    const MapGuard guard(folder.write("named.bin", std::string(3 * kPage, 'x')), bytes);
    read_behind_the_end(file, bytes);
  });
  CHECK(ended.code == 3);
  CHECK(
      ended.err.find("named.bin: a part of it could not be read: its disk or file server failed") !=
      std::string::npos);
}

TEST_CASE("any other SIGBUS ends the process as ever") {
  const test::Folder folder;
  const fs::path file = folder.write("w.bin", std::string(3 * kPage, 'x'));
  const auto check = [&](const auto& work) {
    const Ended ended = in_child(work);
    CHECK(ended.code == 1000 + SIGBUS);
    CHECK(ended.err.empty());
  };
  check([&] { read_behind_the_end(file, map_of(file, 3 * kPage)); });
  folder.write("w.bin", std::string(3 * kPage, 'x'));
  check([&] {
    const auto bytes = map_of(file, 3 * kPage);
    { const MapGuard guard(file, bytes); }
    read_behind_the_end(file, bytes);
  });
  check([&] {
    const auto bytes = map_of(file, kPage);
    const MapGuard guard(file, bytes);
    std::raise(SIGBUS);
  });
}

}  // namespace
}  // namespace diptych
