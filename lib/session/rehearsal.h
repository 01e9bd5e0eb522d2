// What the first result of a process does only once (kernels and libraries are loaded, attention is
// planned, steps are captured), done beside the load of its weights. Nothing of what is computed is
// used. Knows no model: a family tells the parts.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/log.h"
#include "lib/session/memory/budget.h"

namespace diptych {

// What a family knows of the first run of a session before its weights are read.
struct FirstRun {
  bool is_known = false;        // which requests it serves
  bool reads_files = false;     // weights come from files, and not from the device itself
  bool paints_at_once = false;  // no picture, plan or answer is read or written ahead of the steps
  bool is_alone = false;        // no other process has a part of it
  bool has_cfg_mode = false;    // nothing is measured to choose it
  bool captures_steps = false;  // as CUDA graphs, which no trace and no step cache looks into
  bool keeps_steps_fits = false;  // memory has room for them beside the rest of the run
};

// Why a rehearsal would not do what that run does, or nothing where it would.
std::optional<std::string_view> why_not_rehearsed(const FirstRun& first, at::Device device,
                                                  const MemoryBudget& budget);

class Rehearsal {
 public:
  struct Part {
    std::string name;
    std::function<void()> run;
  };

  Rehearsal() = default;
  // Waits for the part that is under way; leaves out what comes behind it.
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  // Runs the parts in order on a thread of its own. One that throws ends it: what it would have
  // done, the run does, and says why it cannot. Once.
  void start(std::vector<Part> parts);
  // Waits until that many parts are through, or one has failed. False: one of them has failed, or
  // nothing was started.
  bool wait(std::size_t parts);
  // Waits for all of it and tells, for a log, what it took or where it failed and why. "" where it
  // was not started, or was finished before.
  std::string finish();
  void finish(Log& log);  // likewise; tells it at the level debug

 private:
  void work();

  std::vector<Part> parts_;
  std::vector<double> seconds_;         // of the parts that are through
  std::optional<std::string> failure_;  // of the part behind them
  bool ended_ = false, stopping_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::jthread thread_;
};

}  // namespace diptych
