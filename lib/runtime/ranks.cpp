#include "lib/runtime/ranks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define USE_C10D_GLOO 1
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/runtime/rank_groups.h"

namespace diptych {
namespace {

using namespace std::chrono_literals;
using Store = c10::intrusive_ptr<c10d::Store>;

constexpr auto kMeeting = 60s;
constexpr auto kPatience = 5s;   // until it is said who is waited for
constexpr auto kGlance = 10ms;   // between two looks for what another rank says
constexpr auto kBeat = 250ms;    // between two signs of life
constexpr int kLostBeats = 20;   // without one: the process is gone
constexpr int kMissedBeats = 3;  // likewise: perhaps
constexpr auto kLastWords = 2s;  // until what a rank has said must be known
constexpr int kLost = 3;         // exit code: RunError's
constexpr int kWrongInput = 2;   // likewise: InputError's
constexpr const char* kFailed = "failed";
constexpr int kTag = 0;  // of what goes from one rank to another: in order
constexpr std::array kAxes = {RankAxis::cfg, RankAxis::ulysses, RankAxis::ring, RankAxis::stage,
                              RankAxis::request};  // `request` last: it may be one of the others

std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// Closed when it goes.
class Socket {
 public:
  explicit Socket(const addrinfo& to)
      : file_(::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                       to.ai_protocol)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (file_ >= 0) ::close(file_);
  }

  // Whether somebody listens there; waits for a moment.
  bool connects(const addrinfo& to) const {
    constexpr int kMoment = 500;  // milliseconds
    if (file_ < 0) return false;
    if (::connect(file_, to.ai_addr, to.ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) return false;
    pollfd ready = {file_, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    return ::poll(&ready, 1, kMoment) == 1 &&
           ::getsockopt(file_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }

 private:
  int file_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const Launch& launch) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error =
      ::getaddrinfo(launch.host.c_str(), std::to_string(launch.port).c_str(), &hints, &found);
  if (error != 0)
    throw InputError("MASTER_ADDR: {}: {}; expected the host of rank 0", launch.host,
                     ::gai_strerror(error));
  return {found, &::freeaddrinfo};
}

// Ahead of libtorch's client, which sees no Ctrl-C and tries for longer than it is told.
void await_listener(const Launch& launch) {
  const Addresses addresses = addresses_of(launch);
  const auto end = std::chrono::steady_clock::now() + kMeeting;
  const auto listens = [&] {
    for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
      if (Socket(*to).connects(*to)) return true;
    }
    return false;
  };
  bool told = false;
  while (!listens()) {
    check_interrupted();
    if (!told && std::chrono::steady_clock::now() > end - kMeeting + kPatience) {
      std::fprintf(
          stderr, "diptych: rank %zu waits for %s:%d (MASTER_ADDR, MASTER_PORT), for up to %d s\n",
          launch.rank, launch.host.c_str(), launch.port, static_cast<int>(kMeeting.count()));
      told = true;
    }
    if (std::chrono::steady_clock::now() > end)
      throw RunError(
          "rank {} of {}: nobody listens at {}:{} (MASTER_ADDR, MASTER_PORT) within {} s",
          launch.rank, launch.size, launch.host, launch.port, kMeeting.count());
    std::this_thread::sleep_for(10 * kGlance);
  }
}

Store open_store(const Launch& launch) {
  if (launch.rank != 0 || launch.launcher_listens) await_listener(launch);
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.launcher_listens;
  options.numWorkers = launch.size;
  options.waitWorkers = false;
  options.timeout = kMeeting;
  try {
    // The launcher has names of its own there, and those of an attempt that failed stay.
    return c10::make_intrusive<c10d::PrefixStore>(
        "diptych." + launch.attempt, c10::make_intrusive<c10d::TCPStore>(launch.host, options));
  } catch (const std::exception& error) {
    throw RunError("rank {} of {}: no meeting at {}:{} (MASTER_ADDR, MASTER_PORT): {}", launch.rank,
                   launch.size, launch.host, launch.port,
                   std::string(error.what()).substr(0, std::string(error.what()).find('\n')));
  }
}

// Everybody says that it is there; who waits in vain names who is not.
void await_all(c10d::Store& store, const Launch& launch) {
  const auto key = [](std::size_t rank) { return "here" + std::to_string(rank); };
  const auto end = std::chrono::steady_clock::now() + kMeeting;
  bool told = launch.rank != 0;  // by rank 0
  store.set(key(launch.rank), bytes_of("1"));
  for (std::size_t rank = 0; rank < launch.size; ++rank) {
    while (!store.check({key(rank)})) {
      check_interrupted();
      if (std::chrono::steady_clock::now() > end)
        throw RunError("rank {} of {} did not come to {}:{} within {} s", rank, launch.size,
                       launch.host, launch.port, kMeeting.count());
      if (!told && std::chrono::steady_clock::now() > end - kMeeting + kPatience) {
        std::fprintf(stderr, "diptych: rank %zu waits for rank %zu, for up to %d s\n", launch.rank,
                     rank, static_cast<int>(kMeeting.count()));
        told = true;
      }
      std::this_thread::sleep_for(kGlance);
    }
  }
}

// Tells the others that this process lives, and hears when one of them does not or has failed: on a
// connection of its own, beside whatever the process waits for.
class Watch {
 public:
  Watch(const Launch& launch, Store store)
      : launch_(launch), store_(std::move(store)), beats_(launch.size) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  std::optional<int> failed() const {
    const int code = failed_;
    return code < 0 ? std::nullopt : std::optional(code);
  }
  // Whether a rank gives no sign of life, and is perhaps gone.
  bool misses_one() const { return misses_one_; }
  // Nobody's end matters from now on.
  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Beats {
    std::int64_t last = -1;
    int missed = 0;
  };

  void run(const std::stop_token& stop) {
    try {
      while (!stop.stop_requested()) {
        look();
        if (failed_ >= 0) return end_soon(stop);
        std::this_thread::sleep_for(kBeat);
      }
    } catch (const std::exception&) {  // the store is gone, and rank 0 with it
      if (stop.stop_requested()) return;
      lost(0);
      end_soon(stop);
    }
  }

  void lost(std::size_t rank) {
    std::fprintf(stderr, "diptych: rank %zu: rank %zu is gone\n", launch_.rank, rank);
    failed_ = kLost;
  }

  void look() {
    store_->add(beat(launch_.rank), 1);
    if (store_->check({kFailed})) {
      failed_ = std::atoi(text_of(store_->get(kFailed)).c_str());
      return;
    }
    bool misses_one = false;
    for (std::size_t rank = 0; rank < launch_.size; ++rank) {
      if (rank == launch_.rank) continue;
      const std::int64_t now = store_->add(beat(rank), 0);
      Beats& beats = beats_[rank];
      beats.missed = now == beats.last ? beats.missed + 1 : 0;
      beats.last = now;
      misses_one = misses_one || beats.missed >= kMissedBeats;
      if (beats.missed < kLostBeats) continue;
      return lost(rank);
    }
    misses_one_ = misses_one;
  }

  // Whoever waits for a rank that will not come cannot end in order.
  void end_soon(const std::stop_token& stop) const {
    interrupt();
    for (auto waited = 0ms; waited < 2 * kLastWords && !stop.stop_requested(); waited += kBeat)
      std::this_thread::sleep_for(kBeat);
    if (stop.stop_requested()) return;
    std::fflush(nullptr);
    std::_Exit(failed_);
  }

  static std::string beat(std::size_t rank) { return "beat" + std::to_string(rank); }

  Launch launch_;
  Store store_;
  std::vector<Beats> beats_;
  std::atomic<int> failed_ = -1;
  std::atomic<bool> misses_one_ = false;
  std::jthread thread_;  // last: it uses the others
};

// NCCL gives nothing to wait for where an exchange runs on the current stream.
void await(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

std::string text_of(const ParallelDegrees& degrees) {
  return fmt::format("cfg {}, ulysses {}, ring {}, stages {}", degrees.cfg, degrees.ulysses,
                     degrees.ring, degrees.stages);
}

class C10dRanks final : public Ranks {
 public:
  C10dRanks(const Launch& launch, const ParallelDegrees& degrees, at::Device device,
            at::Device stage_device)
      : Ranks(launch.rank, Comm::of_rank(launch.rank, launch.size, degrees)),
        launch_(launch),
        device_(device),
        stage_device_(stage_device),
        store_(open_store(launch)) {
    await_all(*store_, launch);
    watch_ = std::make_unique<Watch>(launch, open_store(follower()));
    require_same(degrees);
    open_groups(degrees);
  }
  // Launchers end all processes when the first one ends, which should be the one that says why. And
  // the store goes with rank 0, which may have heard of a failure before the others.
  ~C10dRanks() override {
    if (!says_why_ && somebody_failed()) {
      std::this_thread::sleep_for(kLastWords);
    } else if (rank() == 0 && (has_failed_ || failed())) {
      std::this_thread::sleep_for(3 * kBeat);
    }
    watch_->stop();
  }

  void regroup(const ParallelDegrees& degrees) override {
    set_comm(Comm::of_rank(launch_.rank, launch_.size, degrees));
    open_groups(degrees);
  }

  Tensor all_gather(RankAxis axis, const Tensor& part) override {
    const auto ranks = static_cast<std::int64_t>(group(axis).size);
    std::vector<std::int64_t> sizes = {ranks};
    sizes.insert(sizes.end(), part.sizes().begin(), part.sizes().end());
    Tensor all = at::empty(sizes, part.options());
    Tensor flat = all.view({-1}), own = part.view({-1});
    c10d::AllgatherOptions options;
    options.asyncOp = false;  // on the current stream
    await(groups_.at(axis)->_allgather_base(flat, own, options));
    return all;
  }

  Tensor all_to_all(RankAxis axis, const Tensor& parts) override {
    Tensor in = parts.view({-1}), out = at::empty_like(in);
    std::vector<std::int64_t> even;
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    await(groups_.at(axis)->alltoall_base(out, in, even, even, options));
    return out.view_as(parts);
  }

  at::Device device(RankAxis axis) const override {
    return axis == RankAxis::stage ? stage_device_ : device_;
  }

  void send(RankAxis axis, const Tensor& tensor) override {
    std::vector<Tensor> one = {tensor};
    await(groups_.at(axis)->send(one, other_in(axis), kTag));
  }

  void receive(RankAxis axis, const Tensor& tensor) override {
    std::vector<Tensor> one = {tensor};
    await(groups_.at(axis)->recv(one, other_in(axis), kTag));
  }

  void tell(RankAxis axis, const std::string& name, const std::string& text) override {
    store_->set(key_of(axis, group(axis).index, name), bytes_of(text));
  }

  std::string hear(RankAxis axis, const std::string& name) override {
    const std::string key = key_of(axis, static_cast<std::size_t>(other_in(axis)), name);
    std::string text = await_text(key);
    store_->deleteKey(key);  // there may be very many
    return text;
  }

  Tensor exchange(RankAxis axis, const Tensor& edges) override {
    const RankGroup& ranks = group(axis);
    const std::int64_t before = ranks.index > 0 ? 1 : 0;
    const std::int64_t behind = ranks.index + 1 < ranks.size ? 1 : 0;
    std::vector<std::int64_t> sent(ranks.size, 0);
    if (before > 0) sent[ranks.index - 1] = 1;
    if (behind > 0) sent[ranks.index + 1] = 1;
    std::vector<std::int64_t> received = sent;  // Gloo takes both vectors away
    // As bytes: not every backend knows every dtype.
    const Tensor bytes = edges.reshape({2, -1}).view(at::kByte);
    const Tensor all = at::empty_like(bytes);
    if (before == 0) all[0].zero_();
    if (behind == 0) all[1].zero_();
    Tensor in = bytes.narrow(0, 1 - before, before + behind);
    Tensor out = all.narrow(0, 1 - before, before + behind);
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    await(groups_.at(axis)->alltoall_base(out, in, received, sent, options));
    return all.view(edges.scalar_type()).view(edges.sizes());
  }

  std::string common_text(const std::string& name,
                          const std::function<std::string()>& make) override {
    return text_of_rank(0, "all." + name, make);
  }

  std::string group_text(const std::string& name,
                         const std::function<std::string()>& make) override {
    const std::size_t shared = launch_.size / comm().data.size;
    return text_of_rank(comm().data.index * shared, "group." + name, make);
  }

  bool fail(int exit_code) noexcept override {
    bool first = true;
    try {
      const auto own = bytes_of(fmt::format("{} of rank {}", exit_code, rank()));
      has_failed_ = true;
      first = store_->compareSet(kFailed, {}, own) == own;
    } catch (const std::exception&) {  // rank 0 has gone before
    }
    says_why_ = first;
    return first;
  }

  std::optional<int> failed_elsewhere() noexcept override {
    // Of a process that was killed the exchange knows at once, and the watch by its beats.
    const auto most = [&] { return watch_->misses_one() ? (kLostBeats + 2) * kBeat : kLastWords; };
    for (auto waited = 0ms; waited < most(); waited += kBeat) {
      if (const auto code = watch_->failed()) return code;
      std::this_thread::sleep_for(kBeat);
    }
    return std::nullopt;
  }

  std::optional<int> failed() const noexcept override { return watch_->failed(); }

  int finish(int exit_code) override {
    int greatest = 0;
    for (std::size_t other = 0; other < launch_.size; ++other) {
      const std::string code =
          text_of_rank(other, "done", [&] { return std::to_string(exit_code); });
      greatest = std::max(greatest, std::atoi(code.c_str()));
    }
    watch_->stop();
    await_left();
    return greatest;
  }

 private:
  using Groups = std::map<RankAxis, c10::intrusive_ptr<c10d::Backend>>;

  bool somebody_failed() const noexcept {
    try {
      return store_->check({kFailed});
    } catch (const std::exception&) {  // rank 0 has gone before
      return false;
    }
  }

  // Ranks with other degrees would wait for each other without end.
  void require_same(const ParallelDegrees& degrees) {
    const std::string own = text_of(degrees);
    const std::string first = common_text("degrees", [&] { return own; });
    if (own == first) return;
    if (!fail(kWrongInput)) throw OtherRankFailed{kWrongInput};
    throw InputError("rank {} of {} has other degrees than rank 0: {}; expected {}", rank(),
                     launch_.size, own, first);
  }

  // Those of degrees that came before are still open.
  void open_groups(const ParallelDegrees& degrees) {
    const std::string name = text_of(degrees);
    if (const auto known = opened_.find(name); known != opened_.end()) {
      groups_ = known->second;
      return;
    }
    groups_.clear();
    for (const RankAxis axis : kAxes) {
      if (group(axis).size > 1) groups_[axis] = open_group(axis, name);
    }
    opened_[name] = groups_;
  }

  std::string text_of_rank(std::size_t speaker, const std::string& name,
                           const std::function<std::string()>& make) {
    const std::string key = fmt::format("text.{}.{}", speaker, name);
    if (rank() == speaker) {
      const std::string text = make();
      store_->set(key, bytes_of(text));
      return text;
    }
    return await_text(key);
  }

  std::string await_text(const std::string& key) {
    while (!store_->check({key})) {
      if (const auto code = failed()) throw OtherRankFailed{*code};
      check_interrupted();
      std::this_thread::sleep_for(kGlance);
    }
    return text_of(store_->get(key));
  }

  int other_in(RankAxis axis) const { return static_cast<int>(1 - group(axis).index); }

  std::string key_of(RankAxis axis, std::size_t teller, const std::string& name) const {
    return fmt::format("told.{}{}.{}", name_of_group(axis), teller, name);
  }

  Launch follower() const {
    Launch launch = launch_;
    launch.rank = launch_.size;  // not the one that listens
    return launch;
  }

  // Rank 0 listens until the others have heard everything.
  void await_left() {
    if (rank() != 0) return store_->set("left" + std::to_string(rank()), bytes_of("1"));
    for (std::size_t other = 1; other < launch_.size; ++other)
      store_->wait({"left" + std::to_string(other)}, kMeeting);
  }

  c10::intrusive_ptr<c10d::Backend> open_group(RankAxis axis, const std::string& degrees) const {
    // Where one degree alone divides the request, all that share it are that degree's group.
    for (const auto& [other, backend] : groups_) {
      if (axis == RankAxis::request && group(other) == group(axis)) return backend;
    }
    const Store own =
        c10::make_intrusive<c10d::PrefixStore>(degrees + "." + name_of_group(axis), store_);
    return device(axis).is_cuda() ? make_nccl_group(own, group(axis), device(axis))
                                  : make_gloo_group(own, group(axis));
  }

  // Of the ranks that differ in the axis alone: the places of the first of them.
  std::string name_of_group(RankAxis axis) const {
    const Comm& c = comm();
    const auto place = [&](RankAxis of) {
      const bool within = of == axis || (axis == RankAxis::request && of != RankAxis::stage);
      return within ? 0 : group(of).index;
    };
    return fmt::format("{}.{}.{}.{}.{}.{}.", static_cast<int>(axis), c.data.index,
                       place(RankAxis::stage), place(RankAxis::cfg), place(RankAxis::ring),
                       place(RankAxis::ulysses));
  }

  Launch launch_;
  at::Device device_, stage_device_;
  Store store_;
  bool has_failed_ = false, says_why_ = false;
  std::unique_ptr<Watch> watch_;
  Groups groups_;
  std::map<std::string, Groups> opened_;  // by the degrees
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_group(const Store& store, const RankGroup& group) {
  auto options = c10d::ProcessGroupGloo::Options::create(kExchangeTimeout);
  options->devices = {c10d::ProcessGroupGloo::createDefaultDevice()};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(group.index),
                                                     static_cast<int>(group.size), options);
}

const RankGroup& Ranks::group(RankAxis axis) const {
  switch (axis) {
    case RankAxis::cfg:
      return comm_.cfg;
    case RankAxis::ulysses:
      return comm_.ulysses;
    case RankAxis::ring:
      return comm_.ring;
    case RankAxis::stage:
      return comm_.stage;
    case RankAxis::request:
      return comm_.request;
  }
  TORCH_CHECK(false, "[ranks] an axis that is none");
}

std::shared_ptr<Ranks> Ranks::meet(const Launch& launch, const ParallelDegrees& degrees,
                                   at::Device device, at::Device stage_device) {
  // c10d's warnings about connections that end come with frames of its stack. What has ended is
  // said by the ranks; who wants to know more asks libtorch.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  return std::make_shared<C10dRanks>(launch, degrees, device, stage_device);
}

}  // namespace diptych
