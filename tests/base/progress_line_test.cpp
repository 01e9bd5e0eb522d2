// The progress line fits its terminal, whatever that is, and leaves it.
#include "lib/base/progress_line.h"

#include <chrono>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lib/base/log.h"

namespace diptych {
namespace {

constexpr ProgressState kHalf{"denoise", 12, 24, 6, 0, 0};

TEST_CASE("a wide terminal has the bar and the pace") {
  const std::string line =
      " denoise |========================>                         | 12/24 - "
      "2.00it/s, eta 6s";
  CHECK(progress_line(kHalf, 120) == line);
  CHECK(progress_line(kHalf, 200) == line);
}

TEST_CASE("a line is shorter than every terminal") {
  ProgressState state{"denoise", 9999, 10000, 1e6, 99999, 100000};
  for (std::size_t columns = 1; columns < 220; ++columns) {
    CAPTURE(columns);
    CHECK(progress_line(state, columns).size() < columns);
    CHECK(progress_line(kHalf, columns).size() < columns);
  }
  CHECK(progress_line(kHalf, 0).empty());
}

TEST_CASE("narrow terminals lose the pace, then the bar") {
  CHECK(progress_line(kHalf, 80) ==
        " denoise |==================>                   | 12/24 - 2.00it/s, eta 6s");
  CHECK(progress_line(kHalf, 40) == " denoise |==========>           | 12/24");
  CHECK(progress_line(kHalf, 20) == " denoise 12/24");
  CHECK(progress_line(kHalf, 6) == " deno");
}

TEST_CASE("both ends, and nothing to do") {
  CHECK(progress_line({"load", 0, 4, 1, 0, 0}, 40) == "    load |                        | 0/4");
  CHECK(progress_line({"load", 4, 4, 1, 0, 0}, 40) == "    load |========================| 4/4");
  CHECK(progress_line({"load", 0, 0, 1, 0, 0}, 40) == "    load |                        | 0/0");
  CHECK(progress_line({"load", 1, 4, 8, 3, 5}, 80) ==
        "3/5     load |========>                           | 1/4 - 8.00s/it, eta 24s");
}

// A terminal that stands for stderr until the end of the scope.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    REQUIRE(openpty(&master_, &slave_, nullptr, nullptr, nullptr) == 0);
    resize(columns);
    fcntl(master_, F_SETFL, O_NONBLOCK);
    std::fflush(stderr);
    kept_ = dup(STDERR_FILENO);
    dup2(slave_, STDERR_FILENO);
  }
  ~Terminal() {
    std::fflush(stderr);
    dup2(kept_, STDERR_FILENO);
    for (const int each : {kept_, slave_, master_}) close(each);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(unsigned short columns) const {
    const winsize size{24, columns, 0, 0};
    REQUIRE(ioctl(master_, TIOCSWINSZ, &size) == 0);
  }
  std::string read_all() const {
    std::string text(4096, '\0');
    const ssize_t bytes = read(master_, text.data(), text.size());
    text.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return text;
  }

 private:
  int master_ = -1, slave_ = -1, kept_ = -1;
};

TEST_CASE("the bar follows a terminal that is resized, and is cleared for stdout") {
  const std::string clear = "\r\x1b[2K";
  const Terminal terminal(80);
  Log log;
  Progress progress(log, ProgressStyle::automatic);
  CHECK(terminal_columns(STDERR_FILENO) == 80);
  progress.begin("load", 2);
  const std::string wide = terminal.read_all();
  terminal.resize(40);
  std::this_thread::sleep_for(std::chrono::milliseconds(120));  // ten are drawn a second
  progress.update(1);
  const std::string narrow = terminal.read_all();
  progress.clear();
  const std::string cleared = terminal.read_all();
  progress.clear();
  const std::string nothing = terminal.read_all();
  log.info("a line");
  const std::string line = terminal.read_all();
  progress.update(2);
  const std::string again = terminal.read_all();
  progress.end();
  const std::string ended = terminal.read_all();
  CHECK(wide == clear + "    load |" + std::string(40, ' ') + "| 0/2");
  CHECK(narrow == clear + "    load |===========>            | 1/2");
  CHECK(cleared == clear);
  CHECK(nothing.empty());
  CHECK(line == "[INFO ] a line\r\n");
  CHECK(again == clear + "    load |========================| 2/2");
  CHECK(ended == clear);
}

TEST_CASE("what is no terminal has the usual width") {
  const int file = open("/dev/null", O_RDONLY);
  CHECK(terminal_columns(file) == 80);
  close(file);
}

}  // namespace
}  // namespace diptych
