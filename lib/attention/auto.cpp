// `auto`: takes the first backend in order of preference that can serve a call, and prints one line
// for each reason why an earlier one cannot. It decides once per plan: all layers and steps that
// share an AttentionLengths find the decision again, without an allocation.
#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include <fmt/ranges.h>

#include "lib/attention/backends.h"
#include "lib/base/error.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

// Everything in a call that a decision depends on, except its lengths.
struct Layout {
  c10::Device device;
  at::ScalarType dtype;
  bool causal;
  double scale;
  std::int64_t heads, kv_heads, head_dim;
  std::array<std::int64_t, 6> strides;  // of q, k and v, without the contiguous head_dim
  std::uintptr_t misalignment;          // of the three, in a 16-byte unit
  bool biased, last_key_biased;
  bool log_sum_exp;  // asked for
  bool operator==(const Layout&) const = default;
};

Layout layout_of(const AttentionCall& call) {
  const auto start = [](const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  };
  return {call.q.device(),
          call.q.scalar_type(),
          call.causal,
          call.scale,
          call.q.size(1),
          call.k.size(2),
          call.q.size(2),
          {call.q.stride(0), call.q.stride(1), call.k.stride(0), call.k.stride(1), call.v.stride(0),
           call.v.stride(1)},
          (start(call.q) | start(call.k) | start(call.v)) % 16,
          call.bias.defined(),
          call.last_key_bias.defined(),
          call.log_sum_exp.defined()};
}

struct Decision {
  // The k_device of the lengths it was made for. It is kept alive, so that no other plan's tensor
  // can get the same memory and be mistaken for it.
  Tensor plan;
  std::optional<Layout> layout;
  const AttentionBackend* backend = nullptr;
};

class AutoAttention final : public AttentionBackend {
 public:
  AutoAttention(std::vector<std::unique_ptr<AttentionBackend>> preferred, SayFn say, void* context,
                std::shared_ptr<const TuningTable> tuning)
      : backends_(std::move(preferred)), say_(say), context_(context), tuning_(std::move(tuning)) {
    for (const auto& backend : backends_) preferred_.push_back(backend.get());
    many_ = preferred_;
    put_first(kHopperFp8, many_);
    const auto names = info_of(TunedKernel::attention).choices;
    for (std::size_t i = 0; i < names.size(); ++i) {
      // What is best for few queries follows splitkv, and stands in for it where it is missing.
      first_[i] = names[i] == kSplitKv ? first(FirstAttention::flash) : preferred_;
      put_first(names[i], first_[i]);
    }
  }

  std::string_view name() const override { return "auto"; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return choose(preferred_, kind, [&kind](const auto& b) { return b.kind_unsupported(kind); })
        .refusal();
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    return choose(preferred_, kind_of(call), [&call](const auto& b) { return b.unsupported(call); })
        .refusal();
  }

  std::optional<std::string> prepare(const AttentionCall& call) const override {
    return choose(order(call), kind_of(call), [&call](const auto& b) { return b.prepare(call); })
        .refusal();
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    return backend_for(call).forward(call);
  }

  LinearOperand forward_rows(const AttentionCall& call, Quantization format) const override {
    check_call(call);
    return backend_for(call).forward_rows(call, format);
  }

  bool reads_lengths_on_device() const override {  // of all that served so far
    const std::lock_guard lock(mutex_);
    return !served_.empty() && std::ranges::all_of(backends_, [this](const auto& backend) {
      return backend->reads_lengths_on_device() ||
             std::ranges::count(served_, backend->name()) == 0;
    });
  }

  // As the one that goes first.
  bool takes_last_key_bias(const AttentionKind& kind) const override {
    const auto usual = std::ranges::find_if(
        preferred_, [&](const AttentionBackend* b) { return !b->kind_unsupported(kind); });
    return usual != preferred_.end() && (*usual)->takes_last_key_bias(kind);
  }

  std::string served_by() const override {
    const std::lock_guard lock(mutex_);
    return fmt::format("{}", fmt::join(served_, ", "));
  }

  void forget_served() const override {
    const std::lock_guard lock(mutex_);
    served_.clear();
    decisions_ = {};  // else calls decided before would not be noted in served_
  }

 private:
  using Order = std::vector<const AttentionBackend*>;

  static void put_first(std::string_view name, Order& order) {
    std::stable_partition(order.begin(), order.end(),
                          [&](const AttentionBackend* b) { return b->name() == name; });
  }

  const Order& first(FirstAttention choice) const {
    return first_[static_cast<std::size_t>(choice)];
  }

  struct Choice {
    const AttentionBackend* backend;  // null: none can
    std::string reasons;              // why those before it cannot
    std::optional<std::string> refusal() const {
      return backend == nullptr ? std::optional(reasons) : std::nullopt;
    }
  };

  // The first that `ask` has no reason against, for a call of that kind.
  template <typename Ask>
  static Choice choose(const Order& order, const AttentionKind& kind, const Ask& ask) {
    std::string reasons;
    for (const AttentionBackend* backend : order) {
      const std::optional<std::string> reason = ask(*backend);
      if (!reason) return {backend, std::move(reasons)};
      const std::string_view name = backend->name();
      if (name == kHopper && backend->kind_unsupported(kind)) continue;  // as for vision towers
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, *reason);
    }
    return {nullptr, std::move(reasons)};
  }

  // A cuDNN plan takes longer to build (about 40 ms on an H200) than it saves in a call with few
  // queries or in a prefill, which happens once. Backends without plans go first there. Measured
  // times include their share of the plan.
  const Order& order(const AttentionCall& call) const {
    const std::int64_t queries = call.lengths->max_q;
    if (call.causal)
      return first(queries <= kMostSplitQueries ? FirstAttention::splitkv : FirstAttention::flash);
    if (call.last_key_bias.defined()) return preferred_;
    const AttentionBackend& fp8 = *many_.front();
    if (queries >= kFewestFp8Queries && fp8.name() == kHopperFp8 &&
        !fp8.kind_unsupported(kind_of(call)))
      return many_;
    if (tuning_ != nullptr && call.q.scalar_type() == at::kBFloat16) {
      const TunedShape shape = {call.q.size(1), call.k.size(2), call.q.size(2)};
      const auto tuned = tuning_->find(TunedKernel::attention, shape, queries);
      if (tuned) return first(static_cast<FirstAttention>(*tuned));
    }
    return first(usual_attention(queries));
  }

  const AttentionBackend& backend_for(const AttentionCall& call) const {
    const std::lock_guard lock(mutex_);
    const Layout layout = layout_of(call);
    for (const Decision& decision : decisions_) {
      if (decision.plan.is_same(call.lengths->k_device) && decision.layout == layout) {
        return *decision.backend;
      }
    }
    const Choice choice =
        choose(order(call), kind_of(call), [&call](const auto& b) { return b.prepare(call); });
    if (choice.backend == nullptr) {
      throw InputError("attention: no backend can serve this call ({})", choice.reasons);
    }
    note(choice);
    decisions_[next_] = {call.lengths->k_device, layout, choice.backend};
    next_ = (next_ + 1) % decisions_.size();
    return *choice.backend;
  }

  // With the mutex held.
  void note(const Choice& choice) const {
    const std::string_view server = choice.backend->name();
    if (std::find(served_.begin(), served_.end(), server) == served_.end()) {
      served_.emplace_back(server);
    }
    if (choice.reasons.empty() || !said_.insert(choice.reasons).second || say_ == nullptr) return;
    say_(context_, fmt::format("attention takes {} ({})", server, choice.reasons));
  }

  std::vector<std::unique_ptr<AttentionBackend>> backends_;
  Order preferred_;             // of backends_
  std::array<Order, 5> first_;  // the same with each FirstAttention in front
  Order many_;                  // the same with that in e4m3 in front
  SayFn say_;
  void* context_;
  std::shared_ptr<const TuningTable> tuning_;  // or null
  mutable std::mutex mutex_;                   // guards what follows
  // The latest decisions; the oldest is replaced. A run has a plan or two for each guidance branch
  // or batch of branches, and for each prefill.
  mutable std::array<Decision, 16> decisions_;
  mutable std::size_t next_ = 0;
  mutable std::vector<std::string> served_;
  mutable std::set<std::string, std::less<>> said_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_auto(
    std::vector<std::unique_ptr<AttentionBackend>> preferred, SayFn say, void* context,
    std::shared_ptr<const TuningTable> tuning) {
  return std::make_unique<AutoAttention>(std::move(preferred), say, context, std::move(tuning));
}

}  // namespace diptych
