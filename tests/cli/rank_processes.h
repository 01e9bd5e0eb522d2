// Several processes as a launcher starts them: each is told its rank by the environment.
#pragma once

#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/cli/process.h"
#include "tests/cli/words.h"
#include "tests/support/free_port.h"

namespace diptych::test {

// `change`: what is different about one of them. `ended`: gets the ranks in the order of their
// ends.
inline std::vector<Outcome> run_ranks(std::size_t size, const Words& arguments,
                                      const std::function<void(std::size_t, Command&)>& change = {},
                                      std::vector<std::size_t>* ended = nullptr) {
  const std::string port = std::to_string(free_port());
  std::vector<Outcome> outcomes(size);
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (std::size_t rank = 0; rank < size; ++rank) {
    Command command;
    command.arguments = arguments;
    command.environment = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(size)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port},
                           {"OMP_NUM_THREADS", "1"}};
    if (change) change(rank, command);
    threads.emplace_back([&outcomes, &mutex, ended, rank, command] {
      outcomes[rank] = run(command);
      const std::lock_guard lock(mutex);
      if (ended != nullptr) ended->push_back(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Signals one rank, which shows nothing, once the progress of another one has come to `cue`.
// `file`: where its process says its number.
inline void signal_at_cue(std::size_t rank, Command& command, std::size_t victim,
                          std::size_t watched, const std::string& cue, int signal,
                          const std::string& file) {
  if (rank == victim) {
    command.before_exec = [file] { std::ofstream(file) << getpid(); };
  } else if (rank == watched) {
    command.interrupt_after = cue;
    command.at_cue = [file, signal] {
      pid_t process = 0;
      std::ifstream(file) >> process;
      if (process > 0) kill(process, signal);
    };
  }
}

inline void check_all(const std::vector<Outcome>& outcomes, int code) {
  for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == code, outcome.err);
}

}  // namespace diptych::test
