// A model whose stages are apart in one process: one session reads, on a thread and a device of its
// own, and another one paints what the first has read.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/runtime/handoff.h"
#include "lib/session/session.h"

namespace diptych {

using OpenSession = std::function<std::unique_ptr<Session>(const RunConfig&, Log&)>;

// The thread of the reading stage: it does one thing after the other, in order.
class ReadingThread {
 public:
  ReadingThread();
  // Waits for what has begun; the rest is not done.
  ~ReadingThread();
  void start(std::function<void()> work);  // which throws nothing
  // Waits until it is done. Throws what it throws.
  void run(const std::function<void()>& work);

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  bool ending_ = false;
  std::jthread thread_;  // last: it uses the others
};

class StagedSession final : public Session {
 public:
  // config.read_device is given. `open`: of the family, for a config that has a stage_end. Throws
  // as it does.
  StagedSession(const RunConfig& config, const OpenSession& open, Log& log);
  ~StagedSession() override;

  // What writes a text is the work of the reading stage alone.
  std::unique_ptr<Job> make_job(const RunConfig& request) override;
  void load(std::span<const JobGroup> expected, Progress& progress) override;
  std::string weights_hash() override;
  bool may_share(const RunConfig& a, const RunConfig& b) const override;
  bool reads_ahead() const override { return reads_ahead_; }
  void expect_next(const JobGroup& jobs) override;
  void run(const JobGroup& jobs, Progress& progress, const Results& results) override;
  Report report() const override;

 private:
  // What is read of a group of jobs, until they are painted.
  struct Reading {
    JobGroup jobs;  // of the painting stage
    HandoffQueue queue;
  };
  class End;

  std::shared_ptr<Reading> begin(const JobGroup& jobs);
  void abandon();
  void load_reader(std::span<const JobGroup> expected);

  Log& log_;
  Progress quiet_;  // of what is read beside what is painted
  bool reads_ahead_;
  std::shared_ptr<End> reads_, paints_;
  std::unique_ptr<Session> reader_, painter_;
  bool paints_anything_ = false;
  std::shared_ptr<Reading> next_;  // begun before its run()
  JobGroup following_;             // of expect_next()
  ReadingThread thread_;           // ends before what it uses
};

}  // namespace diptych
