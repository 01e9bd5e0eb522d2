// The machine lets us down, or the user stops the run: the exit code says which, and no partial
// file stays behind.
#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/text_file.h"
#include "lib/media/png.h"
#include "lib/tensor/safetensors.h"
#include "tests/cli/process.h"
#include "tests/support/tiny_model.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::run;

test::Command small_picture(const test::Folder& folder) {
  test::Command command;
  command.arguments = {
      "generate", "-c", test::kTinyConfig, "-p",    "x",        "-o", folder.file("a.png"),
      "--steps",  "2",  "--size",          "64x64", "--device", "cpu"};
  return command;
}

// The tiny checkpoint's files in a folder; returns the model's weights.
std::string copy_model(const test::Folder& folder) {
  for (const auto& entry : fs::directory_iterator(test::kTinyCheckpoint)) {
    const fs::path copy = folder.path() / entry.path().filename();
    fs::copy_file(entry.path(), copy);
    fs::permissions(copy, fs::perms::owner_write, fs::perm_options::add);
  }
  return folder.file("ema.safetensors");
}

// The tiny checkpoint without weights, with these keys in its llm_config.json.
void resize_model(const test::Folder& folder, const std::string& keys) {
  fs::remove(copy_model(folder));
  const std::string file = folder.file("llm_config.json");
  nlohmann::json json = nlohmann::json::parse(read_text_file(file));
  json.merge_patch(nlohmann::json::parse("{" + keys + "}"));
  folder.write("llm_config.json", json.dump());
}

// Of all tensors of a file.
std::uint64_t data_bytes(const SafetensorsFile& file) {
  std::uint64_t end = 0;
  for (const auto& [name, entry] : file.entries()) end = std::max(end, entry.end);
  return end;
}

bool one_error_line(const Outcome& outcome) {
  const std::size_t at = outcome.err.find("diptych: ");
  return at != std::string::npos &&
         std::count(outcome.err.begin() + static_cast<std::ptrdiff_t>(at), outcome.err.end(),
                    '\n') == 1;
}

TEST_CASE("a limit on the size of files ends with 3 and leaves nothing") {
  const test::Folder folder;
  test::Command command = small_picture(folder);
  command.before_exec = [] {
    const rlimit limit{512, 512};  // bytes of a file; the picture is larger
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 3);
  CHECK(one_error_line(outcome));
  CHECK(outcome.err.find("a.png: ") != std::string::npos);
  CHECK(outcome.out.empty());
  CHECK(folder.names().empty());
}

TEST_CASE("a run that fails leaves no folder that it made") {
  const test::Folder folder;
  test::Command command = small_picture(folder);
  *std::ranges::find(command.arguments, folder.file("a.png")) = folder.file("new/inner/");
  const auto without_limit = command;
  command.before_exec = [] {
    const rlimit limit{512, 512};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  CHECK(run(command).code == 3);
  CHECK(folder.names().empty());
  CHECK(run(without_limit).out == folder.file("new/inner/0000.png") + "\n");
}

void stand_in_a_deleted_folder(const std::string& gone) {
  if (mkdir(gone.c_str(), 0700) != 0 || chdir(gone.c_str()) != 0) _exit(99);
  rmdir(gone.c_str());
}

TEST_CASE("from a deleted current folder absolute paths work, and relative ones fail by name") {
  const test::Folder folder;
  test::Command command = small_picture(folder);
  command.before_exec = [gone = folder.file("gone")] { stand_in_a_deleted_folder(gone); };
  const Outcome absolute = run(command);
  CAPTURE(absolute.err);
  CHECK(absolute.code == 0);
  CHECK(absolute.out == folder.file("a.png") + "\n");
  CHECK(folder.names() == std::vector<std::string>{"a.png"});

  *std::ranges::find(command.arguments, folder.file("a.png")) = "b.png";
  const Outcome relative = run(command);
  CAPTURE(relative.err);
  CHECK(relative.code == 2);
  CHECK(one_error_line(relative));
  CHECK(relative.err.find("b.png: ") != std::string::npos);
  CHECK(folder.names() == std::vector<std::string>{"a.png"});
}

#if DIPTYCH_HAVE_CUDA
// The dynamic linker tells who asked for the driver; libraries that do so are not meant, nor the
// command before the program, which looks whether there is one.
TEST_CASE("the GPU is opened ahead where generate will use it, and by no process of several") {
  const std::string program =
      (std::filesystem::path(DIPTYCH_BINARY).parent_path() / "libexec/diptych").string();
  const auto opens_ahead = [&](std::map<std::string, std::string> environment) {
    test::Command command;
    command.binary = program;
    command.arguments = {"generate"};
    command.environment = std::move(environment);
    command.environment["LD_DEBUG"] = "files";
    command.before_exec = [] {};
    const test::Outcome outcome = test::run(command);
    CHECK(outcome.code == 2);
    return outcome.err.find("file=libcuda.so.1 [0];  dynamically loaded by " + program) !=
           std::string::npos;
  };
  CHECK(opens_ahead({}));
  CHECK(opens_ahead({{"DIPTYCH_DEVICE", "cuda:1"}}));
  CHECK(!opens_ahead({{"DIPTYCH_DEVICE", "cpu"}}));
  CHECK(!opens_ahead({{"RANK", "0"}}));  // of how many is not said, and refused later
  CHECK(!opens_ahead({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}));
}
#endif

TEST_CASE("a system that starts no threads is said in one line") {
  const test::Folder folder;
  test::Command command = small_picture(folder);
  command.environment["OMP_NUM_THREADS"] = "2";
  command.before_exec = [] {
    // A thread's stack is as large as this limit: more than there are addresses.
    rlimit limit{};
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = std::min(limit.rlim_max, rlim_t{1} << 47);
    if (setrlimit(RLIMIT_STACK, &limit) != 0) _exit(99);
  };
  const Outcome outcome = run(command);
  CHECK(outcome.code == 3);
  CHECK(outcome.err ==
        "diptych: 2 threads: the system starts no more than 1 (Resource temporarily unavailable); "
        "fewer: OMP_NUM_THREADS=1\n");
  CHECK(outcome.out.empty());
  CHECK(folder.names().empty());
}

TEST_CASE("an old picture survives a run that fails") {
  const test::Folder folder;
  folder.write("a.png", "old");
  test::Command command = small_picture(folder);
  command.before_exec = [] {
    const rlimit limit{512, 512};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  CHECK(run(command).code == 3);
  CHECK(folder.names() == std::vector<std::string>{"a.png"});
  CHECK(std::filesystem::file_size(folder.path() / "a.png") == 3);
}

// What prints less than stdio's buffer holds, and more.
const std::vector<std::vector<std::string>> kPrinters = {
    {"version"}, {"--version"}, {"generate", "--help"}};

TEST_CASE("a stdout that takes nothing is a failure") {
  for (const auto& arguments : kPrinters) {
    for (const bool closed : {false, true}) {
      test::Command command;
      command.arguments = arguments;
      command.before_exec = [closed] {
        if (closed) {
          close(STDOUT_FILENO);
        } else {
          dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
        }
      };
      const Outcome outcome = run(command);
      CAPTURE(arguments.front());
      CAPTURE(outcome.err);
      CHECK(outcome.code == 3);
      CHECK(outcome.err == (closed ? "diptych: stdout: write failed: Bad file descriptor\n"
                                   : "diptych: stdout: write failed: No space left on device\n"));
    }
  }
}

void close_the_readers_end() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) _exit(127);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a reader that has gone ends a run quietly, as SIGPIPE would") {
  for (const auto& arguments : kPrinters) {
    test::Command command;
    command.arguments = arguments;
    command.before_exec = close_the_readers_end;
    const Outcome outcome = run(command);
    CAPTURE(arguments.front());
    CHECK(outcome.code == 128 + SIGPIPE);
    CHECK(outcome.err.empty());
  }
  const test::Folder folder;
  test::Command command = small_picture(folder);
  command.arguments.emplace_back("-q");
  command.before_exec = close_the_readers_end;
  const Outcome outcome = run(command);
  CHECK(outcome.code == 128 + SIGPIPE);
  CHECK(outcome.err.empty());
  CHECK(folder.names() == std::vector<std::string>{"a.png"});
}

TEST_CASE("a closed stderr harms nothing") {
  const test::Folder folder;
  test::Command command = small_picture(folder);
  command.before_exec = [] { close(STDERR_FILENO); };
  const Outcome outcome = run(command);
  CHECK(outcome.code == 0);
  CHECK(folder.names() == std::vector<std::string>{"a.png"});
}

// Whether that process has a handler for the signal by now, as /proc tells.
bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

TEST_CASE("a signal ends the wait for a prompt on stdin") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const test::Folder folder;
    test::Command command = small_picture(folder);
    *std::find(command.arguments.begin(), command.arguments.end(), "x") = "-";
    command.before_exec = [signal] {
      std::array<int, 2> ends{};
      if (pipe(ends.data()) != 0 || dup2(ends[0], STDIN_FILENO) < 0) _exit(126);
      const pid_t waiting = getpid();
      if (fork() != 0) return;
      // Holds the other end, so that stdin neither has anything nor ends; after a while it ends the
      // wait in a way that fails the test.
      constexpr int kMostTurns = 3000;
      int turns = 0;
      const auto wait = [&turns] { usleep(10'000), ++turns; };
      while (getppid() == waiting && !catches(waiting, signal) && turns < kMostTurns) wait();
      usleep(100'000);
      kill(waiting, signal);
      while (getppid() == waiting && turns < kMostTurns) wait();
      if (getppid() == waiting) kill(waiting, SIGKILL);
      _exit(0);
    };
    const Outcome outcome = run(command);
    CHECK(outcome.code == 128 + signal);
    CHECK(outcome.err.ends_with("diptych: interrupted\n"));
    CHECK(folder.names().empty());
  }
}

TEST_CASE("a signal stops within a step and leaves nothing") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const test::Folder folder;
    test::Command command = small_picture(folder);
    command.arguments.insert(command.arguments.end(), {"--progress", "kv"});
    *std::find(command.arguments.begin(), command.arguments.end(), "2") = "10000";  // steps
    command.interrupt_after = "stage=denoise";
    command.signal = signal;
    const Outcome outcome = run(command);
    CHECK(outcome.code == 128 + signal);
    CHECK(outcome.err.ends_with("diptych: interrupted\n"));
    CHECK(outcome.out.empty());
    CHECK(folder.names().empty());
  }
}

TEST_CASE("a signal that the parent ignores stays ignored") {
  for (const int signal : {SIGINT, SIGHUP}) {
    const test::Folder folder;
    test::Command command = small_picture(folder);
    command.arguments.insert(command.arguments.end(), {"--progress", "kv"});
    *std::find(command.arguments.begin(), command.arguments.end(), "2") = "100";  // steps
    command.before_exec = [signal] { std::signal(signal, SIG_IGN); };
    command.interrupt_after = "stage=denoise";
    command.signal = signal;
    const Outcome outcome = run(command);
    CHECK(outcome.code == 0);
    CHECK(outcome.err.find("done=99\n") != std::string::npos);
    CHECK(folder.names() == std::vector<std::string>{"a.png"});
  }
}

TEST_CASE("a picture behind a link takes the place of what the link points to") {
  const test::Folder folder;
  folder.write("real.png", "old");
  chmod(folder.file("real.png").c_str(), 0640);
  std::filesystem::create_symlink("real.png", folder.path() / "a.png");
  CHECK(run(small_picture(folder)).code == 0);
  CHECK(folder.names() == std::vector<std::string>{"a.png", "real.png"});
  CHECK(std::filesystem::is_symlink(folder.path() / "a.png"));
  CHECK(read_png(folder.path() / "real.png").rgb.size(0) == 64);
  struct stat found {};
  stat(folder.file("real.png").c_str(), &found);
  CHECK((found.st_mode & 07777) == 0640);
}

TEST_CASE("a pipe is no place for a picture") {
  const test::Folder folder;
  mkfifo(folder.file("a.png").c_str(), 0600);
  const Outcome outcome = run(small_picture(folder));
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("diptych: --output: " + folder.file("a.png") + ": is a pipe") !=
        std::string::npos);
  CHECK(folder.names() == std::vector<std::string>{"a.png"});
}

#ifndef __SANITIZE_ADDRESS__  // which maps terabytes for itself
TEST_CASE("too little memory ends with 3 and a hint") {
  const test::Folder folder, model;
  test::Command command = small_picture(folder);
  resize_model(model, "\"vocab_size\": 4800000");  // 1.2 GB of embeddings
  command.arguments.insert(command.arguments.end(),
                           {"-m", model.path().string(), "--load-format", "dummy"});
  command.before_exec = [] {
    // More than the libraries take, less than the embeddings.
    const rlim_t bytes = rlim_t{DIPTYCH_HAVE_CUDA != 0 ? 900 : 600} << 20;
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_DATA, &limit);
  };
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 3);
  CHECK(one_error_line(outcome));
  CHECK(outcome.err.find("a smaller size") != std::string::npos);
  CHECK(outcome.err.find("--offload") == std::string::npos);  // on the CPU
  CHECK(folder.names().empty());
}
#endif

TEST_CASE("weights beyond the host's memory are refused before any is read") {
  const test::Folder folder, model;
  test::Command command = small_picture(folder);
  // 3 * 2 * 64 * 4 * 16 million bytes of float32: 12 TiB of gate_proj and its like in each layer.
  resize_model(model,
               "\"vocab_size\": 640, \"hidden_size\": 1048576, \"intermediate_size\": 1048576, "
               "\"num_attention_heads\": 1024, \"num_key_value_heads\": 1024");
  command.arguments.insert(command.arguments.end(),
                           {"-m", model.path().string(), "--load-format", "dummy"});
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("diptych: --device cpu: this run needs ") != std::string::npos);
  CHECK(outcome.err.find(" GiB are available; it needs ") != std::string::npos);
  CHECK(outcome.err.ends_with("--dtype bfloat16 --quantization int8\n"));
  CHECK(one_error_line(outcome));
  CHECK(folder.names().empty());
}

TEST_CASE("weights that become shorter while they are used end the run with 3 and one line") {
  const test::Folder folder, model;
  const std::string weights = copy_model(model);
  test::Command command = small_picture(folder);
  command.arguments.insert(command.arguments.end(),
                           {"-m", model.path().string(), "--progress", "kv"});
  *std::find(command.arguments.begin(), command.arguments.end(), "2") = "10000";  // steps
  command.interrupt_after = "stage=denoise";
  command.at_cue = [&] { fs::resize_file(weights, 4096); };
  const Outcome outcome = run(command);
  CHECK(outcome.code == 3);
  CHECK(outcome.err.ends_with("diptych: " + weights +
                              ": became shorter while it was read; is it being downloaded or "
                              "copied over?\n"));
  CHECK(folder.names().empty());
}

TEST_CASE("weights with NaN are a bad file") {
  const test::Folder folder, model;
  const std::string weights = copy_model(model);
  // The first number of a tensor that pictures and answers need.
  const std::string name = "language_model.model.layers.1.mlp.down_proj.weight";
  const std::string gen = "language_model.model.layers.1.mlp_moe_gen.down_proj.weight";
  for (const std::string& tensor : {name, gen}) {
    const SafetensorsFile file = SafetensorsFile::open(weights);
    const auto place = static_cast<std::streamoff>(fs::file_size(weights) - data_bytes(file) +
                                                   file.entries().at(tensor).begin);
    std::fstream stream(weights, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(place);
    stream.write("\x00\x00\xC0\x7F", 4);
  }
  const std::string line =
      "diptych: " + weights + ": tensor \"" + name + "\" holds NaN or infinity\n";
  test::Command picture = small_picture(folder);
  picture.arguments.insert(picture.arguments.end(), {"-m", model.path().string()});
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--dtype", "bfloat16"}, {"--quantization", "int8"}}) {
    test::Command command = picture;
    command.arguments.insert(command.arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(command);
    CHECK(outcome.code == 2);
    CHECK(outcome.err.ends_with(line));
    CHECK(one_error_line(outcome));
  }
  const Outcome answer = run({"generate", "-c", test::kTinyConfig, "-m", model.path().string(),
                              "--task", "chat", "-p", "x", "--device", "cpu"});
  CHECK(answer.code == 2);
  CHECK(answer.err.ends_with(line));
  folder.write("p.txt", "a\nb\n");
  const Outcome batch = run({"batch", folder.file("p.txt"), "-c", test::kTinyConfig, "-m",
                             model.path().string(), "-o", folder.file("out"), "--device", "cpu"});
  CHECK(batch.code == 2);  // of no item, but of all
  CHECK(batch.err.ends_with(line));
  CHECK(folder.names() == std::vector<std::string>{"p.txt"});
}

TEST_CASE("Ctrl-C stops between two texts, or two pictures, that are read") {
  const test::Folder folder;
  const auto check = [&](const std::vector<std::string>& inputs, int times) {
    test::Command command = small_picture(folder);
    for (int i = 0; i < times; ++i)
      command.arguments.insert(command.arguments.end(), inputs.begin(), inputs.end());
    command.arguments.insert(command.arguments.end(), {"--progress", "kv"});
    command.interrupt_after = "stage=prefill";
    const Outcome outcome = run(command);
    CHECK(outcome.code == 128 + SIGINT);
    CHECK(outcome.err.ends_with("diptych: interrupted\n"));
    CHECK(outcome.err.find("stage=denoise") == std::string::npos);
    CHECK(folder.names().empty());
  };
  check({"-p", "one more text to be read"}, 300);
  check({"-i", test::kPicture}, 30);
}

}  // namespace
}  // namespace diptych
