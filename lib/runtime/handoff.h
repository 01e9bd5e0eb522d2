// What one stage of a request leaves for the next, where each has a device, or a process, of its
// own; and the ways from one to the other.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/choices.h"
#include "lib/runtime/ranks.h"
#include "lib/tensor/types.h"

namespace diptych {

struct Handoff {
  std::string text;             // as the family writes it
  std::vector<Tensor> tensors;  // contiguous
};

enum class StageRole { reads, paints };

// One side of the way.
class StageEnd {
 public:
  explicit StageEnd(StageRole role) : role_(role) {}
  StageEnd(const StageEnd&) = delete;
  StageEnd& operator=(const StageEnd&) = delete;
  virtual ~StageEnd() = default;

  StageRole role() const { return role_; }
  // Of the reading stage; `device`: where the tensors are. Waits until the painting stage has taken
  // what was sent before. Throws Interrupted, OtherRankFailed, and RunError where there is no way
  // any more.
  virtual void send(const Handoff& handoff, at::Device device) = 0;
  // Of the painting stage: waits for the next one. Its tensors are good until the next call, on
  // `device` or on the CPU. Throws likewise, and what the reading stage has thrown in this process.
  virtual Handoff receive(at::Device device) = 0;

 private:
  StageRole role_;
};

// Of a session with this end; none where it is both stages.
inline std::optional<StageRole> role_of(const std::shared_ptr<StageEnd>& end) {
  return end == nullptr ? std::nullopt : std::optional(end->role());
}

// Between two threads of a process: tensors are handed on as they are.
class HandoffQueue {
 public:
  // Throws Interrupted, and Abandoned after abandon().
  void send(Handoff handoff);
  Handoff receive();  // throws Interrupted, and what fail() was given
  void fail(std::exception_ptr why);
  void abandon();  // nobody will receive

  struct Abandoned {};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Handoff> waiting_;
  std::exception_ptr failure_;
  bool abandoned_ = false;
};

// Between the two ranks of RankAxis::stage. connector: c10d, shared_memory, which both need the
// same host for, or automatic: shared memory on one host, else c10d. `connector` then says which.
// Throws InputError for shared_memory between hosts.
std::shared_ptr<StageEnd> make_stage_end(const std::shared_ptr<Ranks>& ranks, Connector& connector);

}  // namespace diptych
