#include "lib/session/staged_session.h"

#include <future>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "lib/base/error.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

RunConfig of_stage(const RunConfig& config, const DeviceChoice& device,
                   std::shared_ptr<StageEnd> end) {
  RunConfig own = config;
  own.device = device;
  own.read_device.reset();
  own.stage_end = std::move(end);
  return own;
}

}  // namespace

ReadingThread::ReadingThread() : thread_([this] { loop(); }) {}

ReadingThread::~ReadingThread() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void ReadingThread::loop() {
  const c10::InferenceMode inference;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !works_.empty(); });
    if (ending_) return;
    const std::function<void()> work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void ReadingThread::start(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
  changed_.notify_all();
}

void ReadingThread::run(const std::function<void()>& work) {
  std::packaged_task<void()> task(work);
  std::future<void> done = task.get_future();
  start([&task] { task(); });
  done.get();
}

// The way between the two sessions, which leads through the queue of the jobs that are run.
class StagedSession::End final : public StageEnd {
 public:
  using StageEnd::StageEnd;
  void send(const Handoff& handoff, at::Device device) override {
    synchronize(device);  // the other side knows nothing of this one's stream
    reading->queue.send(handoff);
  }
  Handoff receive(at::Device) override { return reading->queue.receive(); }

  std::shared_ptr<Reading> reading;  // of what this side runs
};

StagedSession::StagedSession(const RunConfig& config, const OpenSession& open, Log& log)
    : log_(log),
      quiet_(log, ProgressStyle::none),
      reads_(std::make_shared<End>(StageRole::reads)),
      paints_(std::make_shared<End>(StageRole::paints)) {
  painter_ = open(of_stage(config, config.device, paints_), log);
  thread_.run([&] { reader_ = open(of_stage(config, *config.read_device, reads_), log); });
  // TF32, which an autoencoder may compute in, holds for the whole process: float32 of the other
  // stage would take it, too.
  const Report of_reader = reader_->report(), of_painter = painter_->report();
  const bool tf32 = of_reader.vae_dtype == "tf32" || of_painter.vae_dtype == "tf32";
  reads_ahead_ = !tf32 || (of_reader.dtype != "float32" && of_painter.dtype != "float32");
  if (!reads_ahead_)
    log_.info(
        "nothing is read ahead: the autoencoder's TF32 would change float32 of the other "
        "stage");
}

StagedSession::~StagedSession() {
  abandon();
  // A session ends on the thread that used it.
  thread_.run([this] { reader_.reset(); });
}

std::unique_ptr<Job> StagedSession::make_job(const RunConfig& request) {
  if (!request.answers()) return painter_->make_job(request);
  std::unique_ptr<Job> job;
  thread_.run([&] { job = reader_->make_job(request); });
  return job;
}

bool StagedSession::may_share(const RunConfig& a, const RunConfig& b) const {
  return painter_->may_share(a, b);
}

void StagedSession::load(std::span<const JobGroup> expected, Progress& progress) {
  std::vector<JobGroup> painted;
  for (const JobGroup& group : expected) {
    if (!group.front()->config().answers()) painted.push_back(group);
  }
  paints_anything_ |= !painted.empty();
  std::packaged_task<void()> task([&] { load_reader(expected); });
  std::future<void> read = task.get_future();
  thread_.start([&task] { task(); });
  try {
    if (!painted.empty()) painter_->load(painted, progress);
  } catch (...) {
    read.wait();
    throw;
  }
  read.get();
}

void StagedSession::load_reader(std::span<const JobGroup> expected) {
  std::vector<std::unique_ptr<Job>> jobs;  // the reader's own
  std::vector<JobGroup> groups;
  for (const JobGroup& group : expected) {
    JobGroup& own = groups.emplace_back();
    for (Job* job : group) {
      if (job->config().answers()) {
        own.push_back(job);
      } else {
        own.push_back(jobs.emplace_back(reader_->make_job(job->config())).get());
      }
    }
  }
  reader_->load(groups, quiet_);
}

std::string StagedSession::weights_hash() {
  if (paints_anything_) return painter_->weights_hash();
  std::string hash;
  thread_.run([&] { hash = reader_->weights_hash(); });
  return hash;
}

// The thread reads them once it has read what it was given before.
std::shared_ptr<StagedSession::Reading> StagedSession::begin(const JobGroup& jobs) {
  auto reading = std::make_shared<Reading>();
  reading->jobs = jobs;
  std::vector<RunConfig> requests;
  for (const Job* job : jobs) requests.push_back(job->config());
  thread_.start([this, reading, requests = std::move(requests)] {
    try {
      std::vector<std::unique_ptr<Job>> own;
      JobGroup group;
      for (const RunConfig& request : requests) {
        own.push_back(reader_->make_job(request));
        group.push_back(own.back().get());
      }
      reads_->reading = reading;
      reader_->run(group, quiet_, {});
    } catch (const HandoffQueue::Abandoned&) {
    } catch (...) {
      reading->queue.fail(std::current_exception());
    }
    reads_->reading.reset();
  });
  return reading;
}

void StagedSession::expect_next(const JobGroup& jobs) {
  const bool paints = !jobs.empty() && !jobs.front()->config().answers();
  if (reads_ahead_ && paints) following_ = jobs;
}

void StagedSession::abandon() {
  if (next_ != nullptr) next_->queue.abandon();
  next_.reset();
}

void StagedSession::run(const JobGroup& jobs, Progress& progress, const Results& results) {
  const JobGroup following = std::exchange(following_, {});
  if (jobs.front()->config().answers()) {
    thread_.run([&] { reader_->run(jobs, progress, results); });
    return;
  }
  paints_anything_ = true;
  if (next_ != nullptr && next_->jobs != jobs) abandon();
  std::shared_ptr<Reading> reading = next_ != nullptr ? std::move(next_) : begin(jobs);
  next_.reset();
  if (!following.empty()) next_ = begin(following);
  paints_->reading = reading;
  try {
    painter_->run(jobs, progress, results);
  } catch (...) {
    reading->queue.abandon();
    paints_->reading.reset();
    throw;
  }
  paints_->reading.reset();
}

Report StagedSession::report() const {
  return paints_anything_ ? painter_->report() : reader_->report();
}

}  // namespace diptych
