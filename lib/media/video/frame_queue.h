// Frames that wait for a thread which does something with each.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

class FrameQueue {
 public:
  using Work = std::function<void(const Tensor& rgb)>;  // uint8 [height, width, 3], contiguous, CPU

  // add() takes frames of this size and waits while `capacity` are waiting.
  FrameQueue(ImageSize size, std::size_t capacity, Work work);
  ~FrameQueue();  // what still waits is dropped
  FrameQueue(const FrameQueue&) = delete;
  FrameQueue& operator=(const FrameQueue&) = delete;

  // uint8 [height, width, 3] or [frames, height, width, 3], any device; copied. Throws what `work`
  // threw, then or before, and Interrupted.
  void add(const Tensor& frames);
  void finish();  // waits until everything is done; throws likewise

 private:
  void put(const Tensor& frame);
  void run();
  void stop(bool drop);

  ImageSize size_;
  std::size_t capacity_;
  Work work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Tensor> waiting_;
  std::exception_ptr failure_;
  bool ended_ = false;  // nothing comes any more
  std::thread thread_;
};

}  // namespace diptych
