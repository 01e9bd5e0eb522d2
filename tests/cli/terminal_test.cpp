// A run on a terminal: the bar fits it, and leaves nothing behind. Also what a run makes of
// guesses.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/cli/process.h"
#include "tests/cli/record.h"
#include "tests/cli/words.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Command;
using test::kTinyConfig;
using test::Outcome;
using test::Words;

// What a terminal of so many columns shows of a text; knows what the program uses.
class Screen {
 public:
  explicit Screen(std::size_t columns) : columns_(columns) {}

  void show(const std::string& text) {
    constexpr std::string_view kErase = "\x1b[2K";
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        column_ = 0;
      } else if (text[i] == '\n') {
        rows_.emplace_back();
        begins_ = rows_.size() - 1;
      } else if (text.compare(i, kErase.size(), kErase) == 0) {
        rows_.back().clear();
        i += kErase.size() - 1;
      } else {
        put(text[i]);
      }
    }
  }
  const std::vector<std::string>& rows() const { return rows_; }
  std::size_t widest_bar() const { return widest_bar_; }
  bool bar_wrapped() const { return bar_wrapped_; }

 private:
  void put(char letter) {
    if (column_ == columns_) {
      bar_wrapped_ = bar_wrapped_ || rows_[begins_].find('|') != std::string::npos;
      rows_.emplace_back();
      column_ = 0;
    }
    std::string& row = rows_.back();
    if (row.size() <= column_) row.resize(column_ + 1, ' ');
    row[column_++] = letter;
    if (row.find('|') != std::string::npos) widest_bar_ = std::max(widest_bar_, row.size());
  }

  std::size_t columns_, column_ = 0, begins_ = 0, widest_bar_ = 0;
  bool bar_wrapped_ = false;
  std::vector<std::string> rows_ = {""};
};

// Runs with stdout and stderr on a terminal; what it was sent.
std::string on_terminal(Command command, unsigned short columns, int& code) {
  int master = -1, slave = -1;
  const winsize size{24, columns, 0, 0};
  REQUIRE(openpty(&master, &slave, nullptr, nullptr, &size) == 0);
  command.before_exec = [slave] {
    dup2(slave, STDOUT_FILENO);
    dup2(slave, STDERR_FILENO);
  };
  std::string sent;
  std::thread reader([&] {
    std::array<char, 4096> buffer;
    for (ssize_t bytes = 0; (bytes = read(master, buffer.data(), buffer.size())) > 0;)
      sent.append(buffer.data(), static_cast<std::size_t>(bytes));
  });
  code = run(command).code;
  close(slave);
  reader.join();
  close(master);
  return sent;
}

TEST_CASE("the bar fits the terminal and is gone where results are printed") {
  for (const std::size_t columns : {40, 80, 200}) {
    CAPTURE(columns);
    const test::Folder folder;
    Command command;
    command.arguments = {"generate", "-c", kTinyConfig,         "-p", "x", "--device", "cpu", "-b",
                         "2",        "-o", folder.file("a.png")};
    int code = -1;
    Screen screen(columns);
    const std::string sent = on_terminal(command, static_cast<unsigned short>(columns), code);
    screen.show(sent);
    CAPTURE(sent);
    CHECK(code == 0);
    CHECK_FALSE(screen.bar_wrapped());
    CHECK(screen.widest_bar() > 20);
    CHECK(screen.widest_bar() < columns);
    std::string shown;
    for (const std::string& row : screen.rows()) {
      CHECK(row.find('|') == std::string::npos);
      shown += row.size() == columns ? row : row + "\n";
    }
    CHECK(shown.starts_with(folder.file("a-000.png") + "\n" + folder.file("a-001.png") + "\n"));
    CHECK(sent.find("denoise |") != std::string::npos);
  }
}

TEST_CASE("a dumb terminal, which would show the codes that clear a line, has no bar") {
  const test::Folder folder;
  Command command;
  command.arguments = {"generate", "-c", kTinyConfig,         "-p", "x", "--device",
                       "cpu",      "-o", folder.file("a.png")};
  command.environment["TERM"] = "dumb";
  int code = -1;
  const std::string sent = on_terminal(command, 80, code);
  CHECK(code == 0);
  CHECK(sent.find("\x1b") == std::string::npos);
  CHECK(sent.find(folder.file("a.png")) != std::string::npos);
}

TEST_CASE("a run says what is needed at the usual level, and the rest with -v") {
  const test::Folder folder;
  Command command;
  command.arguments = {"generate",          "-p", "a red circle", "--size", "32x32",
                       "--steps",           "2",  "--device",     "auto",   "-o",
                       folder.file("a.png")};
  command.environment["CUDA_VISIBLE_DEVICES"] = "";
  const Outcome plain = run(command);
  CHECK(plain.code == 0);
  CHECK(plain.err.starts_with("[INFO ] 1 picture: "));
  CHECK(plain.err.find("latent") == std::string::npos);
  CHECK(plain.err.find(" 0.00s") == std::string::npos);
  command.arguments.emplace_back("-v");
  const Outcome verbose = run(command);
  for (const char* text : {"no -c or -m given: ", "using the CPU: ", "[DEBUG] latent "})
    CHECK(verbose.err.find(text) != std::string::npos);
}

TEST_CASE("a drawn seed is said and recorded, and --replay takes it from there") {
  const test::Folder folder;
  Command command;
  command.arguments = {"generate", "-c",       kTinyConfig, "-p", "x",
                       "--size",   "32x32",    "--steps",   "3",  "--seed",
                       "random",   "--device", "cpu",       "-o", folder.file("new/")};
  const Outcome first = run(command);
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  const std::string file = folder.file("new/0000.png");
  CHECK(first.out == file + "\n");
  const auto seed = test::record_of(file)["seed"].get<std::uint64_t>();
  CHECK(first.err.find("seed " + std::to_string(seed) + "\n") != std::string::npos);
  CHECK(test::record_of(file)["requested"]["seed"] == seed);
  CHECK(test::run(Words{"inspect", file, "--replay", "-m", test::kTinyCheckpoint, "-q"}).code == 0);
  CHECK(run(command).code == 0);
  CHECK(test::record_of(file)["seed"] != seed);
}

TEST_CASE("the items of a batch draw seeds of their own, which --resume keeps") {
  const test::Folder folder;
  folder.write("l.jsonl",
               "{\"prompt\": \"a\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"seed\": 5}\n"
               "{\"prompt\": \"a\", \"seed\": \"random\"}\n");
  Command command;
  command.arguments = {"batch",    folder.file("l.jsonl"),
                       "-c",       kTinyConfig,
                       "--size",   "32x32",
                       "--steps",  "3",
                       "--seed",   "-1",
                       "--device", "cpu",
                       "-o",       folder.file("o")};
  const Outcome first = run(command);
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  const auto seed = [&](const char* name) {
    return test::record_of(folder.file(name))["seed"].get<std::uint64_t>();
  };
  const std::vector<std::uint64_t> seeds = {seed("o/0000.png"), seed("o/0001.png"),
                                            seed("o/0002.png"), seed("o/0003.png")};
  CHECK(seeds[0] != seeds[1]);
  CHECK(seeds[0] != seeds[3]);
  CHECK(seeds[2] == 5);
  CHECK(first.err.find("0001: seed " + std::to_string(seeds[1]) + ", ") != std::string::npos);
  fs::remove(folder.file("o/0001.png"));
  command.arguments.emplace_back("--resume");
  const Outcome resumed = run(command);
  CHECK(resumed.code == 0);
  CHECK(resumed.err.find("1 done, 0 failed, 3 skipped") != std::string::npos);
  CHECK(seed("o/0000.png") == seeds[0]);
  CHECK(seed("o/0001.png") != seeds[1]);
}

TEST_CASE("a model of the Hugging Face cache runs by its name, and --replay finds it again") {
  const test::Folder folder;
  const fs::path model = folder.path() / "models--org--tiny";
  fs::create_directories(model / "snapshots");
  fs::create_directory(model / "refs");
  folder.write("models--org--tiny/refs/main", "abc");
  fs::create_directory_symlink(test::kTinyCheckpoint, model / "snapshots" / "abc");
  Command command;
  command.environment["HF_HUB_CACHE"] = folder.path().string();
  command.arguments = {"generate", "-m",    "org/tiny",          "-p", "x",
                       "--size",   "32x32", "--steps",           "3",  "--device",
                       "cpu",      "-o",    folder.file("a.png")};
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(test::record_of(folder.file("a.png"))["requested"]["model"] == "org/tiny");
  command.arguments = {"inspect", folder.file("a.png"), "--replay", "-q"};
  CHECK(run(command).code == 0);
  command.arguments = {"inspect", "org/tiny"};
  CHECK(run(command).out.starts_with("bagel layout: complete\n"));
  command.environment.clear();
  command.arguments = {"inspect", folder.file("a.png"), "--replay", "-q"};
  CHECK(run(command).err.find("hf download org/tiny") != std::string::npos);
}

TEST_CASE("a prompt's file is the prompt, and @@ a prompt that begins with @") {
  const test::Folder folder;
  folder.write("p.txt", "a fox\n");
  folder.write("mark.txt",
               "\xEF\xBB\xBF"
               "a hare\r\n");
  for (const auto& [flag, text] : {std::pair{"@" + folder.file("p.txt"), "a fox"},
                                   std::pair{"@" + folder.file("mark.txt"), "a hare"},
                                   std::pair{std::string("@@home"), "@home"}}) {
    const Outcome outcome =
        test::run(Words{"generate", "-c", kTinyConfig, "-p", flag, "--size", "32x32", "--steps",
                        "2", "--device", "cpu", "-q", "-o", folder.file("a.png")});
    CHECK(outcome.code == 0);
    CHECK(test::record_of(folder.file("a.png"))["inputs"][0]["text"] == text);
  }
}

}  // namespace
}  // namespace diptych
