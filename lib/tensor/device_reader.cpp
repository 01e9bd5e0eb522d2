#include "lib/tensor/device_reader.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lib/base/interrupt.h"

namespace diptych {
namespace {

using DeviceFunctions = c10::impl::VirtualGuardImpl;

struct Readers {
  unsigned threads = 0;
  std::uint64_t piece_bytes = 0;
};

// From the page cache more threads do not read faster: memory's bandwidth ends it. A disk is read
// best in few long pieces: a virtual one gave 12 threads with 4 MiB each 1.28 GB/s, 4 threads with
// 16 MiB 1.54, and 1.52 to one that read all of it in order.
Readers readers_of(const TensorFile& file) {
  constexpr Readers kCached{12, std::uint64_t{4} << 20}, kOnDisk{4, std::uint64_t{16} << 20};
  const Readers best = file.cached_share() < 0.5 ? kOnDisk : kCached;
  return {std::clamp(std::thread::hardware_concurrency(), 2U, best.threads), best.piece_bytes};
}

}  // namespace

// A thread's two page-locked buffers: it fills one while the device copies the other.
class DeviceReader::Staging {
 public:
  Staging(const c10::Stream& stream, std::uint64_t bytes) : stream_(stream), guard_(stream) {
    const auto pinned = at::TensorOptions(at::kByte).pinned_memory(true);
    for (Buffer& buffer : buffers_) {
      buffer.memory = at::empty({static_cast<std::int64_t>(bytes)}, pinned);
      buffer.copied.emplace(stream.device_type());
    }
  }

  void copy(const Piece& piece) {
    Buffer& buffer = buffers_[turn_++ % buffers_.size()];
    if (buffer.used) buffer.copied->synchronize();
    const auto size = static_cast<std::int64_t>(piece.bytes);
    const Tensor from = buffer.memory.narrow(0, 0, size);
    piece.job->file.read(piece.job->entry, piece.begin,
                         {static_cast<std::byte*>(from.mutable_data_ptr()), piece.bytes});
    if (piece.job->free) piece.job->free->block(stream_);
    piece.job->bytes.narrow(0, static_cast<std::int64_t>(piece.begin), size)
        .copy_(from, /*non_blocking=*/true);
    buffer.copied->record(stream_);
    buffer.used = true;
  }

 private:
  struct Buffer {
    Tensor memory;
    std::optional<c10::Event> copied;
    bool used = false;
  };
  c10::Stream stream_;
  c10::StreamGuard guard_;
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
};

DeviceReader::DeviceReader(at::Device device, std::uint64_t most_temporary_bytes)
    : device_(device), most_temporary_bytes_(most_temporary_bytes) {
  if (!device.is_cpu())
    stream_ =
        DeviceFunctions(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

void DeviceReader::start(const TensorFile& first) {
  const Readers readers = readers_of(first);
  piece_bytes_ = readers.piece_bytes;
  for (unsigned i = 0; i < readers.threads; ++i) threads_.emplace_back([this] { work(); });
}

DeviceReader::~DeviceReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  threads_.clear();  // joins
  if (!stream_) return;
  try {
    DeviceFunctions(device_.type()).synchronizeStream(*stream_);
  } catch (const c10::Error&) {  // a lost device copies nothing any more
  }
}

DeviceReader::Piece DeviceReader::next_piece() {
  for (Job& job : jobs_) {
    if (!job.bytes.defined() || job.begun == job.size()) continue;
    const Piece piece{&job, job.begun, std::min(piece_bytes_, job.size() - job.begun)};
    job.begun += piece.bytes;
    return piece;
  }
  return {};
}

void DeviceReader::work() {
  const c10::InferenceMode inference;
  std::optional<Staging> staging;
  std::unique_lock lock(mutex_);
  while (true) {
    Piece piece;
    has_work_.wait(lock, [&] { return stopping_ || (piece = next_piece()).job != nullptr; });
    if (stopping_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (piece.job->bytes.is_cpu()) {
        auto* const memory = static_cast<std::byte*>(piece.job->bytes.mutable_data_ptr());
        piece.job->file.read(piece.job->entry, piece.begin, {memory + piece.begin, piece.bytes});
      } else {
        if (!staging) staging.emplace(*stream_, piece_bytes_);
        staging->copy(piece);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    piece.job->done += piece.bytes;
    if (failure_ || piece.job->is_done()) has_finished_.notify_one();
    if (failure_) return;
  }
}

void DeviceReader::give_memory(Job& job, const Tensor& memory) {
  std::optional<c10::Event> free;
  if (!memory.is_cpu()) {
    free.emplace(device_.type());
    free->record(DeviceFunctions(device_.type()).getStream(device_));
  }
  const Tensor bytes = memory.numel() == 0 ? at::empty({0}, memory.options().dtype(at::kByte))
                                           : memory.view({-1}).view(at::kByte);
  {
    const std::lock_guard lock(mutex_);
    job.free = std::move(free);
    job.tensor = memory;
    job.bytes = bytes;
  }
  has_work_.notify_all();
}

// As many as there is room for; at least one.
void DeviceReader::place_temporaries() {
  while (!unplaced_.empty()) {
    Job& job = *unplaced_.front();
    if (temporary_bytes_ > 0 && temporary_bytes_ + job.size() > most_temporary_bytes_) return;
    unplaced_.pop_front();
    temporary_bytes_ += job.size();
    give_memory(job, at::empty(job.entry.shape,
                               at::TensorOptions().device(device_).dtype(job.entry.dtype)));
  }
}

// Of the jobs in front that are done, what comes then.
void DeviceReader::take_finished() {
  while (true) {
    std::function<void(const Tensor&)> then;
    Tensor tensor;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      if (jobs_.empty() || !jobs_.front().is_done()) return;
      Job& job = jobs_.front();
      if (job.temporary) temporary_bytes_ -= job.size();
      then = std::move(job.then);
      tensor = std::move(job.tensor);
      jobs_.pop_front();
    }
    if (!tensor.is_cpu()) {
      const DeviceFunctions device(device_.type());
      c10::Event copied(device_.type());
      copied.record(*stream_);
      copied.block(device.getStream(device_));
    }
    if (then) then(tensor);
    tensor.reset();
    place_temporaries();
  }
}

void DeviceReader::wait_for_front() {
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return failure_ || jobs_.empty() || jobs_.front().is_done(); };
  while (!has_finished_.wait_for(lock, std::chrono::milliseconds(100), is_done))
    check_interrupted();
}

void DeviceReader::read(const TensorFile& file, const TensorEntry& entry, const Tensor& into,
                        std::function<void(const Tensor&)> then) {
  const bool temporary = !into.defined();
  TORCH_CHECK(temporary || (into.is_contiguous() && into.scalar_type() == entry.dtype &&
                            into.nbytes() == entry.end - entry.begin),
              "[device_reader] ", entry.end - entry.begin, " bytes of ", entry.dtype, " into ",
              into.sizes(), " of ", into.scalar_type());
  if (threads_.empty()) start(file);
  take_finished();
  Job* job = nullptr;
  {
    const std::lock_guard lock(mutex_);
    job = &jobs_.emplace_back(Job{file, entry, temporary, std::move(then)});
  }
  if (!temporary) return give_memory(*job, into);
  unplaced_.push_back(job);
  place_temporaries();
}

void DeviceReader::finish() {
  take_finished();
  while (!jobs_.empty()) {
    wait_for_front();
    take_finished();
  }
}

}  // namespace diptych
