#include "lib/base/atomic_file.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <doctest/doctest.h>
#include <sys/resource.h>
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

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::size_t count_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

void write_whole(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

unsigned mode_of(const fs::path& path) {
  struct stat found {};
  REQUIRE(stat(path.c_str(), &found) == 0);
  return found.st_mode & 07777;
}

std::string refusal(const fs::path& path) {
  try {
    AtomicFile{path};
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("atomic file: whole or not at all") {
  const Folder folder;
  write_whole(folder.path() / "a", "old");
  {
    AtomicFile file(folder.path() / "a");
    file.write("half of the new");
    CHECK(text_of(folder.path() / "a") == "old");
  }
  CHECK(text_of(folder.path() / "a") == "old");
  CHECK(count_in(folder.path()) == 1);
  write_whole(folder.path() / "a", "new");
  CHECK(text_of(folder.path() / "a") == "new");
  CHECK(count_in(folder.path()) == 1);
}

TEST_CASE("atomic file: the permission bits of a replaced file stay, a new one has the umask's") {
  const Folder folder;
  const mode_t before = umask(027);
  write_whole(folder.path() / "new", "x");
  CHECK(mode_of(folder.path() / "new") == 0640);
  for (const mode_t mode : {0600, 0664, 0777, 0444}) {
    CAPTURE(mode);
    REQUIRE(chmod((folder.path() / "new").c_str(), mode) == 0);
    write_whole(folder.path() / "new", "y");
    CHECK(mode_of(folder.path() / "new") == mode);
  }
  umask(before);
}

TEST_CASE("atomic file: a private file is private while it is written, too") {
  const Folder folder;
  write_whole(folder.path() / "a", "x");
  REQUIRE(chmod((folder.path() / "a").c_str(), 0600) == 0);
  const AtomicFile file(folder.path() / "a");
  for (const auto& entry : fs::directory_iterator(folder.path())) CHECK(mode_of(entry) == 0600);
}

TEST_CASE("partials of processes that have ended are removed, and no others") {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const auto put = [&](const std::string& name) { write_whole(folder.path() / name, "x"); };
  const std::string ended = ".partial-" + std::to_string(child);
  fs::create_directory(folder.path() / ("a.frames" + ended));
  put("a.frames" + ended + "/frame_00000.png");
  put("b.frames" + ended);
  put("a.frames.partial-" + std::to_string(getppid()));
  put("a.frames.partial-1x");
  remove_abandoned_partials(folder.path() / "a.frames");
  CHECK(count_in(folder.path()) == 3);
  CHECK(!fs::exists(folder.path() / ("a.frames" + ended)));
  CHECK(partial_path("x/a.frames") == "x/a.frames.partial-" + std::to_string(getpid()));
}

TEST_CASE("atomic file: a name as long as the system takes is written") {
  const Folder folder;
  for (const std::string& name : {std::string(255, 'n'), std::string(253, 'n') + "\u00e9"}) {
    write_whole(folder.path() / name, "whole");
    CHECK(text_of(folder.path() / name) == "whole");
    fs::remove(folder.path() / name);
    CHECK(count_in(folder.path()) == 0);
  }
  CHECK(partial_stem("a.png") == "a.png");
  const std::string one = partial_stem(std::string(255, 'n')),
                    other = partial_stem(std::string(254, 'n') + "m");
  CHECK(one != other);
  CHECK(one.size() == 255 - std::string(".partial-4194304").size());
  // Of two bytes of a letter none is left alone.
  CHECK(partial_stem(std::string(221, 'n') + std::string(17, '\xC3') + "\xA9").size() <=
        one.size());
  CHECK(partial_stem(std::string(221, 'n') + "\u00e9" + std::string(32, 'n')).substr(221, 1) ==
        "~");
}

TEST_CASE("atomic file: what another user protected is not replaced") {
  const Folder folder;
  const fs::path file = folder.path() / "a";
  write_whole(file, "theirs");
  REQUIRE(chmod(file.c_str(), 0444) == 0);
  write_whole(file, "mine, whatever its bits");
  if (chown(file.c_str(), 65534, 65534) != 0) return;  // only root can give it away
  CHECK(refusal(file) ==
        file.string() + ": is another user's file and may not be written; expected another name");
  fs::create_symlink("a", folder.path() / "link");
  CHECK(refusal(folder.path() / "link").find("another user's file") != std::string::npos);
  CHECK(text_of(file) == "mine, whatever its bits");
  CHECK(count_in(folder.path()) == 2);
  REQUIRE(chmod(file.c_str(), 0644) == 0);
  write_whole(file, "root may");
  CHECK(text_of(file) == "root may");
}

TEST_CASE("atomic file: links are followed and stay") {
  const Folder folder;
  fs::create_directories(folder.path() / "there" / "deep");
  write_whole(folder.path() / "there" / "target", "old");
  fs::create_symlink("there/target", folder.path() / "link");
  fs::create_symlink("../link", folder.path() / "there" / "chain");
  fs::create_symlink("there/fresh", folder.path() / "dangling");
  fs::create_symlink("nowhere/fresh", folder.path() / "lost");
  fs::create_symlink("loop", folder.path() / "loop");
  write_whole(folder.path() / "there" / "chain", "new");
  CHECK(text_of(folder.path() / "there/target") == "new");
  CHECK(fs::is_symlink(folder.path() / "link"));
  CHECK(fs::is_symlink(folder.path() / "there" / "chain"));
  write_whole(folder.path() / "dangling", "made");
  CHECK(text_of(folder.path() / "there/fresh") == "made");
  CHECK(fs::is_symlink(folder.path() / "dangling"));
  const std::string path = folder.path().string();
  CHECK(refusal(folder.path() / "lost") ==
        path + "/lost: cannot be written: No such file or directory");
  CHECK(refusal(folder.path() / "loop") ==
        path + "/loop: too many symbolic links, one to the next");
}

TEST_CASE("atomic file: what is no regular file is refused, also behind a link") {
  const Folder folder;
  REQUIRE(mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("/dev/null", folder.path() / "null");
  const std::string path = folder.path().string();
  CHECK(refusal(folder.path() / "pipe") == path + "/pipe: is a pipe, expected a file name");
  CHECK(refusal(folder.path() / "null") == path + "/null: is a device, expected a file name");
  CHECK(refusal("/dev/full") == "/dev/full: is a device, expected a file name");
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const std::string descriptor = "/proc/self/fd/" + std::to_string(ends[1]);  // as /dev/stdout
  CHECK(refusal(descriptor) == descriptor + ": is a pipe, expected a file name");
  close(ends[0]);
  close(ends[1]);
  CHECK(refusal(folder.path()) == path + ": is a folder, expected a file name");
  CHECK(count_in(folder.path()) == 2);
}

TEST_CASE("atomic file: a limit on the size of files is a failing write") {
  install_interrupt_handlers();
  const Folder folder;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limit{512, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string message;
  try {
    write_whole(folder.path() / "a", std::string(100'000, 'x'));
  } catch (const RunError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(message == (folder.path() / "a").string() + ": write failed: File too large");
  CHECK(count_in(folder.path()) == 0);
}

}  // namespace
}  // namespace diptych
