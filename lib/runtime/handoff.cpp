#include "lib/runtime/handoff.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/setting.h"
#include "lib/runtime/gpu.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

using namespace std::chrono_literals;

constexpr auto kGlance = 50ms;  // between two looks for a signal

// Of a tensor that is to come: "6 2 3\n", its dtype and sizes.
struct Layout {
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  std::int64_t bytes() const { return c10::multiply_integers(sizes) * elements(); }
  std::int64_t elements() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
};

std::string describe(const Handoff& handoff) {
  std::string text = fmt::format("{}\n", handoff.tensors.size());
  for (const Tensor& tensor : handoff.tensors)
    text += fmt::format("{} {}\n", static_cast<int>(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), " "));
  return text + handoff.text;
}

// What describe() wrote -> the layouts; the family's text goes to `text`.
std::vector<Layout> read_layouts(const std::string& described, std::string& text) {
  std::istringstream lines(described);
  std::string line;
  std::getline(lines, line);
  std::vector<Layout> layouts(std::stoul(line));
  for (Layout& layout : layouts) {
    std::getline(lines, line);
    std::istringstream numbers(line);
    int dtype = 0;
    numbers >> dtype;
    layout.dtype = static_cast<at::ScalarType>(dtype);
    for (std::int64_t size = 0; numbers >> size;) layout.sizes.push_back(size);
  }
  text = described.substr(static_cast<std::size_t>(lines.tellg()));
  return layouts;
}

// Through the group of both ranks: NCCL between GPUs, else Gloo.
class GroupEnd final : public StageEnd {
 public:
  GroupEnd(StageRole role, std::shared_ptr<Ranks> ranks)
      : StageEnd(role), ranks_(std::move(ranks)) {}

  void send(const Handoff& handoff, at::Device device) override {
    ranks_->tell(RankAxis::stage, fmt::format("handoff {}", count_), describe(handoff));
    ranks_->hear(RankAxis::stage, fmt::format("ready {}", count_++));
    const at::Device way = ranks_->device(RankAxis::stage);
    for (const Tensor& tensor : handoff.tensors) {
      if (tensor.numel() > 0) ranks_->send(RankAxis::stage, tensor.to(way));
    }
    synchronize(device);
  }

  Handoff receive(at::Device) override {
    Handoff handoff;
    const auto layouts = read_layouts(
        ranks_->hear(RankAxis::stage, fmt::format("handoff {}", count_)), handoff.text);
    ranks_->tell(RankAxis::stage, fmt::format("ready {}", count_++), "1");
    const at::Device way = ranks_->device(RankAxis::stage);
    for (const Layout& layout : layouts) {
      handoff.tensors.push_back(
          at::empty(layout.sizes, at::TensorOptions(way).dtype(layout.dtype)));
      if (handoff.tensors.back().numel() > 0)
        ranks_->receive(RankAxis::stage, handoff.tensors.back());
    }
    return handoff;
  }

 private:
  std::shared_ptr<Ranks> ranks_;
  std::int64_t count_ = 0;
};

// Memory of the system that another process of the host finds by this one's number and the file's:
// it has no name in a folder, so that nothing is left of a process that is killed.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  ~SharedBytes() { release(); }

  // New memory; what was there before is gone. Page-locked where `device` is a GPU, so that copies
  // to and from it are no detour.
  void create(std::int64_t bytes, at::Device device) {
    release();
    file_ = memfd_create("diptych", MFD_CLOEXEC);
    if (file_ < 0 || ftruncate(file_, bytes) != 0) fail("made", bytes);
    map(bytes, device);
  }
  void open(const std::string& path, std::int64_t bytes, at::Device device) {
    release();
    file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ < 0) fail("opened", bytes);
    map(bytes, device);
  }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", getpid(), file_); }
  std::int64_t size() const { return size_; }  // of bytes(), uint8
  const Tensor& bytes() const { return bytes_; }

 private:
  void map(std::int64_t bytes, at::Device device) {
    memory_ = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                   file_, 0);
    if (memory_ == MAP_FAILED) fail("mapped", bytes);
    size_ = bytes;
    pinned_ = device.is_cuda() && gpu::pin(memory_, bytes);
    bytes_ = at::from_blob(memory_, {bytes}, at::kByte);
  }
  void release() {
    bytes_.reset();
    if (size_ > 0) {
      if (pinned_) gpu::unpin(memory_);
      munmap(memory_, static_cast<std::size_t>(size_));
    }
    if (file_ >= 0) close(file_);
    file_ = -1;
    size_ = 0;
  }
  [[noreturn]] static void fail(const char* what, std::int64_t bytes) {
    throw RunError("shared memory of {} bytes between the stages cannot be {}: {}", bytes, what,
                   std::strerror(errno));
  }

  int file_ = -1;
  void* memory_ = nullptr;
  std::int64_t size_ = 0;
  bool pinned_ = false;
  Tensor bytes_;
};

constexpr std::int64_t kAlignment = 64;  // of a tensor in shared memory

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor view_of(const Tensor& bytes, std::int64_t begin, const Layout& layout) {
  return bytes.narrow(0, begin, layout.bytes()).view(layout.dtype).view(layout.sizes);
}

// Through memory that both processes map.
class SharedMemoryEnd final : public StageEnd {
 public:
  SharedMemoryEnd(StageRole role, std::shared_ptr<Ranks> ranks)
      : StageEnd(role), ranks_(std::move(ranks)) {}

  void send(const Handoff& handoff, at::Device device) override {
    // What lies there is still read, until the other side asks for more.
    ranks_->hear(RankAxis::stage, fmt::format("ready {}", count_));
    std::int64_t needed = kAlignment;
    for (const Tensor& tensor : handoff.tensors)
      needed += aligned(static_cast<std::int64_t>(tensor.nbytes()));
    if (needed > shared_.size()) shared_.create(needed, device);
    std::int64_t at = 0;
    for (const Tensor& tensor : handoff.tensors) {
      const Layout layout = {tensor.scalar_type(), tensor.sizes().vec()};
      if (tensor.numel() > 0)
        view_of(shared_.bytes(), at, layout).copy_(tensor, /*non_blocking=*/true);
      at += aligned(layout.bytes());
    }
    synchronize(device);
    ranks_->tell(RankAxis::stage, fmt::format("handoff {}", count_++),
                 fmt::format("{}\n{}\n{}", shared_.path(), shared_.size(), describe(handoff)));
  }

  Handoff receive(at::Device device) override {
    ranks_->tell(RankAxis::stage, fmt::format("ready {}", count_), "1");
    std::string described = ranks_->hear(RankAxis::stage, fmt::format("handoff {}", count_++));
    const std::string path = take_line(described);
    const std::int64_t bytes = std::stoll(take_line(described));
    if (path != path_ || bytes != shared_.size()) shared_.open(path, bytes, device);
    path_ = path;
    Handoff handoff;
    std::int64_t at = 0;
    for (const Layout& layout : read_layouts(described, handoff.text)) {
      handoff.tensors.push_back(layout.bytes() == 0 ? at::empty(layout.sizes, layout.dtype)
                                                    : view_of(shared_.bytes(), at, layout));
      at += aligned(layout.bytes());
    }
    return handoff;
  }

 private:
  static std::string take_line(std::string& text) {
    const std::size_t end = text.find('\n');
    std::string line = text.substr(0, end);
    text.erase(0, end + 1);
    return line;
  }

  std::shared_ptr<Ranks> ranks_;
  SharedBytes shared_;
  std::string path_;  // of the other process
  std::int64_t count_ = 0;
};

// What two processes have alike if one finds the other's memory.
std::string host_of_this_process() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  std::array<char, 256> space{};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  return id + " " +
         std::string(space.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
}

}  // namespace

void HandoffQueue::send(Handoff handoff) {
  std::unique_lock lock(mutex_);
  while (waiting_ && !abandoned_) {
    changed_.wait_for(lock, kGlance);
    check_interrupted();
  }
  if (abandoned_) throw Abandoned{};
  waiting_ = std::move(handoff);
  changed_.notify_all();
}

Handoff HandoffQueue::receive() {
  std::unique_lock lock(mutex_);
  while (!waiting_ && !failure_) {
    changed_.wait_for(lock, kGlance);
    check_interrupted();
  }
  if (!waiting_) std::rethrow_exception(failure_);
  Handoff handoff = std::move(*waiting_);
  waiting_.reset();
  changed_.notify_all();
  return handoff;
}

void HandoffQueue::fail(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(why);
  changed_.notify_all();
}

void HandoffQueue::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

std::shared_ptr<StageEnd> make_stage_end(const std::shared_ptr<Ranks>& ranks,
                                         Connector& connector) {
  const StageRole role =
      ranks->group(RankAxis::stage).index == 0 ? StageRole::paints : StageRole::reads;
  const std::string own = host_of_this_process();
  ranks->tell(RankAxis::stage, "host", own);
  const bool one_host = ranks->hear(RankAxis::stage, "host") == own;
  if (connector == Connector::shared_memory && !one_host)
    throw InputError(Setting::of("connector", "shared_memory"),
                     "the two processes are not on one host; expected c10d");
  if (connector == Connector::automatic)
    connector = one_host ? Connector::shared_memory : Connector::c10d;
  if (connector == Connector::shared_memory) return std::make_shared<SharedMemoryEnd>(role, ranks);
  return std::make_shared<GroupEnd>(role, ranks);
}

}  // namespace diptych
