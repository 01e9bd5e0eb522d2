// Processes that were started together and share requests: who they are, and what they exchange.
// Through libtorch's c10d: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lib/runtime/comm.h"
#include "lib/tensor/types.h"

namespace diptych {

// What a launcher (torchrun, mpirun, srun) told this process.
struct Launch {
  std::size_t rank = 0, size = 1;
  std::string host = "127.0.0.1";  // where rank 0 listens
  std::uint16_t port = 29500;
  bool launcher_listens = false;  // in rank 0's place, as torchrun does
  std::string attempt = "0";      // which one, of a launcher that starts all again
};

// How the ranks that share a request divide it. stage: who reads, and who paints; request: all of
// the stage.
enum class RankAxis { cfg, ulysses, ring, stage, request };

// Why a rank ends early though nothing failed in it: another one did. That one has said why.
struct OtherRankFailed {
  int exit_code;
};

// What failed in this rank; the others end with it.
struct RankFailed {
  int exit_code;
  std::string text;  // one line
};

class Ranks {
 public:
  // Meets the others, and opens a group for every degree above 1: of `device`, of the stage axis of
  // `stage_device`. Throws InputError as Comm::of_rank and for degrees that are not rank 0's, and
  // RunError where they do not all come within a minute.
  static std::shared_ptr<Ranks> meet(const Launch& launch, const ParallelDegrees& degrees,
                                     at::Device device, at::Device stage_device);
  virtual ~Ranks() = default;

  // From now on the request is divided so, by as many ranks as before. All ranks call it, with the
  // same degrees, between runs; what holds for the division before must be made anew. Throws
  // InputError as Comm::of_rank.
  virtual void regroup(const ParallelDegrees& degrees) = 0;
  const Comm& comm() const { return comm_; }
  std::size_t rank() const { return rank_; }
  const RankGroup& group(RankAxis axis) const;
  // Of the ranks that share a request, the one that writes its results.
  bool leads() const { return comm_.leads(); }

  // part: contiguous, of one shape and dtype on all ranks of the group -> [ranks, ...], in their
  // order. On CUDA the current stream waits, the host does not.
  virtual Tensor all_gather(RankAxis axis, const Tensor& part) = 0;
  // parts [ranks, ...], contiguous: slice i goes to rank i -> the slices that each rank has sent
  // here, in their order. Likewise.
  virtual Tensor all_to_all(RankAxis axis, const Tensor& parts) = 0;
  // edges [2, ...], contiguous: slice 0 goes to the rank before this one, slice 1 to the one behind
  // -> what these have sent here, likewise; zeros where there is none. Likewise.
  virtual Tensor exchange(RankAxis axis, const Tensor& edges) = 0;
  virtual at::Device device(RankAxis axis) const = 0;  // of the group
  // tensor: contiguous, on the group's device; goes to, or is filled by, the other rank of an axis
  // of two. On CUDA the current stream waits, the host does not.
  virtual void send(RankAxis axis, const Tensor& tensor) = 0;
  virtual void receive(RankAxis axis, const Tensor& tensor) = 0;
  // A text for the other rank of an axis of two, which waits for it there. Each name once. hear()
  // throws as common_text().
  virtual void tell(RankAxis axis, const std::string& name, const std::string& text) = 0;
  virtual std::string hear(RankAxis axis, const std::string& name) = 0;
  // The text of rank 0, which alone calls `make`; the others wait for it, however long it takes.
  // Each name once. Throws Interrupted, and OtherRankFailed.
  virtual std::string common_text(const std::string& name,
                                  const std::function<std::string()>& make) = 0;
  // Likewise of the leading one of the ranks that share a request.
  virtual std::string group_text(const std::string& name,
                                 const std::function<std::string()>& make) = 0;

  // Says that this rank ends with that code: the others end likewise, within seconds. Whether it
  // is the first to say so, and so the one that says why.
  virtual bool fail(int exit_code) noexcept = 0;
  // The exit code of another rank that has ended early. What fails because of that may be known a
  // little earlier: waits up to two seconds, and up to six where a rank gives no sign of life.
  virtual std::optional<int> failed_elsewhere() noexcept = 0;
  // The same as far as it is known now. From then on check_interrupted() throws.
  virtual std::optional<int> failed() const noexcept = 0;
  // Waits until every rank has come so far, and returns the greatest of their exit codes. Nothing
  // may be exchanged afterwards. Throws as common_text().
  virtual int finish(int exit_code) = 0;

 protected:
  Ranks(std::size_t rank, const Comm& comm) : comm_(comm), rank_(rank) {}
  void set_comm(const Comm& comm) { comm_ = comm; }

 private:
  Comm comm_;
  std::size_t rank_;
};

}  // namespace diptych
