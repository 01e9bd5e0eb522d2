// What the exchanges of a process with the others cost: bytes and time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "lib/runtime/ranks.h"
#include "lib/runtime/stopwatch.h"

namespace diptych {

struct ExchangeCost {
  std::int64_t count = 0;
  std::int64_t sent_bytes = 0;  // of tensors, once for every rank that gets them
  double seconds = 0;           // on the group's device; the wait for the others counts
};

// Other ranks, through which everything passes; between start() and stop() it is counted. Used by
// one thread.
class MeteredRanks final : public Ranks {
 public:
  explicit MeteredRanks(std::shared_ptr<Ranks> ranks);

  // From zero. Until stop() nothing that exchanges may be captured: a replay is not seen.
  void start();
  // Waits for the device. -> of each axis that had exchanges.
  std::map<RankAxis, ExchangeCost> stop();

  void regroup(const ParallelDegrees& degrees) override {
    ranks_->regroup(degrees);
    set_comm(ranks_->comm());
  }
  Tensor all_gather(RankAxis axis, const Tensor& part) override;
  Tensor all_to_all(RankAxis axis, const Tensor& parts) override;
  Tensor exchange(RankAxis axis, const Tensor& edges) override;
  at::Device device(RankAxis axis) const override { return ranks_->device(axis); }
  void send(RankAxis axis, const Tensor& tensor) override;
  void receive(RankAxis axis, const Tensor& tensor) override;
  void tell(RankAxis axis, const std::string& name, const std::string& text) override {
    ranks_->tell(axis, name, text);
  }
  std::string hear(RankAxis axis, const std::string& name) override {
    return ranks_->hear(axis, name);
  }
  std::string common_text(const std::string& name,
                          const std::function<std::string()>& make) override {
    return ranks_->common_text(name, make);
  }
  std::string group_text(const std::string& name,
                         const std::function<std::string()>& make) override {
    return ranks_->group_text(name, make);
  }
  bool fail(int exit_code) noexcept override { return ranks_->fail(exit_code); }
  std::optional<int> failed_elsewhere() noexcept override { return ranks_->failed_elsewhere(); }
  std::optional<int> failed() const noexcept override { return ranks_->failed(); }
  int finish(int exit_code) override { return ranks_->finish(exit_code); }

 private:
  struct Meter {
    ExchangeCost cost;
    std::unique_ptr<Stopwatch> stopwatch;
  };
  template <typename Work>
  auto metered(RankAxis axis, std::int64_t sent_bytes, const Work& work);

  std::shared_ptr<Ranks> ranks_;
  bool counts_ = false;
  std::map<RankAxis, Meter> meters_;
};

}  // namespace diptych
