#include "lib/runtime/metered_ranks.h"

#include <utility>

namespace diptych {
namespace {

std::int64_t bytes_of(const Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

std::int64_t size_of(const RankGroup& group) {
  return static_cast<std::int64_t>(group.size);
}

// Runs when it goes, also where an exchange fails.
class Stopping {
 public:
  explicit Stopping(Stopwatch& stopwatch) : stopwatch_(stopwatch) { stopwatch_.start(); }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;
  ~Stopping() { stopwatch_.stop(); }

 private:
  Stopwatch& stopwatch_;
};

}  // namespace

MeteredRanks::MeteredRanks(std::shared_ptr<Ranks> ranks)
    : Ranks(ranks->rank(), ranks->comm()), ranks_(std::move(ranks)) {}

void MeteredRanks::start() {
  meters_.clear();
  counts_ = true;
}

std::map<RankAxis, ExchangeCost> MeteredRanks::stop() {
  counts_ = false;
  std::map<RankAxis, ExchangeCost> costs;
  for (auto& [axis, meter] : meters_) {
    meter.cost.seconds = meter.stopwatch->seconds();
    costs[axis] = meter.cost;
  }
  meters_.clear();
  return costs;
}

template <typename Work>
auto MeteredRanks::metered(RankAxis axis, std::int64_t sent_bytes, const Work& work) {
  if (!counts_) return work();
  Meter& meter = meters_[axis];
  if (meter.stopwatch == nullptr) meter.stopwatch = make_stopwatch(device(axis));
  ++meter.cost.count;
  meter.cost.sent_bytes += sent_bytes;
  const Stopping stopping(*meter.stopwatch);
  return work();
}

Tensor MeteredRanks::all_gather(RankAxis axis, const Tensor& part) {
  return metered(axis, bytes_of(part) * (size_of(group(axis)) - 1),
                 [&] { return ranks_->all_gather(axis, part); });
}

Tensor MeteredRanks::all_to_all(RankAxis axis, const Tensor& parts) {
  const std::int64_t size = size_of(group(axis));
  return metered(axis, bytes_of(parts) / size * (size - 1),
                 [&] { return ranks_->all_to_all(axis, parts); });
}

Tensor MeteredRanks::exchange(RankAxis axis, const Tensor& edges) {
  const RankGroup& ranks = group(axis);
  const std::int64_t neighbours =
      (ranks.index > 0 ? 1 : 0) + (ranks.index + 1 < ranks.size ? 1 : 0);
  return metered(axis, bytes_of(edges) / 2 * neighbours,
                 [&] { return ranks_->exchange(axis, edges); });
}

void MeteredRanks::send(RankAxis axis, const Tensor& tensor) {
  metered(axis, bytes_of(tensor), [&] { ranks_->send(axis, tensor); });
}

void MeteredRanks::receive(RankAxis axis, const Tensor& tensor) {
  metered(axis, 0, [&] { ranks_->receive(axis, tensor); });
}

}  // namespace diptych
