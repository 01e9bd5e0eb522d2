// From resolved requests to results: one session per loaded model.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/session/capabilities.h"
#include "lib/session/job.h"
#include "lib/session/result.h"

namespace diptych {

// All steps of one picture, in a profile: a scope of record_launches() (lib/runtime/launches.h).
inline constexpr const char* kDenoiseScope = "denoise";

// A model that serves requests, opened with the device, dtype, attention and checkpoint of one
// RunConfig; those of the requests are not looked at. Weights are read by load(), or the first
// run().
class Session {
 public:
  virtual ~Session() = default;
  // Reads and checks a request: tokens, schedule, sizes of its pictures. Computes nothing. Throws
  // InputError for a request that this model cannot serve.
  virtual std::unique_ptr<Job> make_job(const RunConfig& request) = 0;
  // Reads the weights, laid out so that each of the expected run() calls fits into memory; nothing
  // where they are there already, or no expected run can be. Where several are expected, a run
  // keeps the steps that it has captured for the next one, if memory has room for them. Its
  // failures are of the session, not of a request.
  virtual void load(std::span<const JobGroup> expected, Progress& progress) = 0;
  // A name for the content of the loaded weights; after load(). It may take long to read them all.
  // Throws as run() would where load() found room for none of the expected runs.
  virtual std::string weights_hash() = 0;
  // Whether both can share forwards: their settings agree (may_share_forwards, lib/config/fields.h)
  // and neither has to run alone.
  virtual bool may_share(const RunConfig& a, const RunConfig& b) const = 0;
  // Whether it can begin with what comes behind the next run().
  virtual bool reads_ahead() const { return false; }
  // The jobs of the run() behind the next one, which stay until then. They may be run otherwise, or
  // not at all.
  virtual void expect_next(const JobGroup& /*jobs*/) {}
  // Runs the jobs together; several must share pairwise and make one result each. Throws
  // Interrupted between steps.
  virtual void run(const JobGroup& jobs, Progress& progress, const Results& results) = 0;
  // What only some families can do; null pointers for what this one cannot.
  virtual Capabilities capabilities() { return {}; }
  virtual Report report() const = 0;  // of everything so far
};

}  // namespace diptych
