// Brings tensors of files to a device as fast as both go: threads read pieces into page-locked
// memory while the device copies earlier ones. On the CPU the threads read to where it is wanted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "lib/tensor/tensor_file.h"

namespace diptych {

// Calls come from one thread at a time, whose current stream is the one that uses the tensors.
class DeviceReader {
 public:
  // `most_temporary_bytes`: of tensors with memory for themselves; one of them may be larger.
  DeviceReader(at::Device device, std::uint64_t most_temporary_bytes);
  ~DeviceReader();  // ends what is under way without finishing it
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;

  // Begins to read a tensor of the file into `into`: contiguous, of the stored dtype, on the device
  // or the host. What is there until `then` runs is undefined; what the current stream is given in
  // `then` and later sees the bytes. `then` gets the tensor within a later call, in the order of
  // read(); it may be empty. Never waits.
  // Where `into` is undefined the tensor has memory on the device for itself, from when its turn
  // comes until `then` has run: few of those are there at a time.
  // Throws RunError where a file is cut short or cannot be read, also one of an earlier call.
  void read(const TensorFile& file, const TensorEntry& entry, const Tensor& into,
            std::function<void(const Tensor&)> then);
  void finish();  // waits for all of it; throws as read(), and Interrupted

 private:
  struct Job {
    TensorFile file;
    TensorEntry entry;
    bool temporary = false;
    std::function<void(const Tensor&)> then;
    Tensor tensor{}, bytes{};           // and the same as uint8 [n]; undefined until it has memory
    std::uint64_t begun = 0, done = 0;  // bytes given to a thread, bytes on their way or there
    std::optional<c10::Event> free{};   // what the memory was used for before has ended
    std::uint64_t size() const { return entry.end - entry.begin; }
    bool is_done() const { return bytes.defined() && done == size(); }
  };
  struct Piece {
    Job* job = nullptr;
    std::uint64_t begin = 0, bytes = 0;
  };
  class Staging;
  void start(const TensorFile& first);
  void work();
  Piece next_piece();  // the lock is held; null job: none
  void give_memory(Job& job, const Tensor& memory);
  void place_temporaries();
  void take_finished();
  void wait_for_front();

  at::Device device_;
  std::uint64_t most_temporary_bytes_;
  std::optional<c10::Stream> stream_;  // of the copies; nullopt on the CPU
  std::deque<Job> jobs_;               // in order; references stay valid
  std::deque<Job*> unplaced_;          // of these, temporaries whose turn has not come
  std::uint64_t temporary_bytes_ = 0;  // of those that have memory
  std::mutex mutex_;
  std::condition_variable has_work_, has_finished_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::uint64_t piece_bytes_ = 0;
  std::vector<std::jthread> threads_;  // from the first read() on
};

}  // namespace diptych
