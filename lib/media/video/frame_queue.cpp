#include "lib/media/video/frame_queue.h"

#include "lib/base/interrupt.h"

namespace diptych {

FrameQueue::FrameQueue(ImageSize size, std::size_t capacity, Work work)
    : size_(size), capacity_(capacity), work_(std::move(work)), thread_([this] { run(); }) {}

FrameQueue::~FrameQueue() {
  stop(true);
}

void FrameQueue::stop(bool drop) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (drop) waiting_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FrameQueue::run() {
  for (;;) {
    Tensor frame;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      frame = std::move(waiting_.front());
      waiting_.pop_front();
    }
    changed_.notify_all();
    try {
      work_(frame);
    } catch (...) {  // the caller's to know
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      ended_ = true;
      waiting_.clear();
      changed_.notify_all();
      return;
    }
  }
}

void FrameQueue::add(const Tensor& frames) {
  const bool one = frames.dim() == 3;
  TORCH_CHECK((one || frames.dim() == 4) && frames.scalar_type() == at::kByte &&
                  frames.size(-1) == 3 && frames.size(-2) == size_.width &&
                  frames.size(-3) == size_.height,
              "[clip] expected uint8 [frames, ", size_.height, ", ", size_.width, ", 3], got ",
              frames.scalar_type(), " ", frames.sizes());
  if (one) return put(frames);
  for (std::int64_t i = 0; i < frames.size(0); ++i) put(frames[i]);
}

void FrameQueue::put(const Tensor& frame) {
  check_interrupted();
  Tensor own = at::empty(frame.sizes(), at::kByte);
  own.copy_(frame);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || waiting_.size() < capacity_; });
    if (failure_) std::rethrow_exception(failure_);
    TORCH_CHECK(!ended_, "[clip] a frame behind the end");
    waiting_.push_back(std::move(own));
  }
  changed_.notify_all();
}

void FrameQueue::finish() {
  stop(false);
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace diptych
