#include <doctest/doctest.h>

#include "lib/attention/backends.h"
#include "lib/base/error.h"
#include "lib/tuning/table.h"
#include "tests/attention/cases.h"
#include "tests/attention/inputs.h"

namespace diptych {
namespace {

using attention_cases::Case;
using attention_cases::Inputs;
using attention_cases::make_inputs;

const Case kSmall = {"", 4, 2, 16, {3, 2}, {5, 2}, 8};

// The message of the InputError that `act` ends in.
template <typename Act>
std::string refusal(Act&& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Serves what has at most `most` queries, with zeros; says so otherwise. Counts how often it was
// asked to prepare.
class Limited final : public AttentionBackend {
 public:
  // head_dim: of the heads that it serves; 0: of all.
  Limited(std::string name, std::int64_t most, bool late, std::int64_t head_dim = 0)
      : name_(name), most_(most), head_dim_(head_dim), late_(late) {}
  std::string_view name() const override { return name_; }
  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    if (head_dim_ == 0 || kind.head_dim == head_dim_) return std::nullopt;
    return fmt::format("not heads of {}", kind.head_dim);
  }
  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    return late_ ? std::nullopt : refuse(call);
  }
  std::optional<std::string> prepare(const AttentionCall& call) const override {
    ++prepared;
    return refuse(call);
  }
  Tensor forward(const AttentionCall& call) const override { return at::zeros_like(call.q); }
  bool reads_lengths_on_device() const override { return true; }
  mutable int prepared = 0;

 private:
  std::optional<std::string> refuse(const AttentionCall& call) const {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (call.q.size(0) <= most_) return std::nullopt;
    return fmt::format("at most {} queries", most_);
  }
  std::string name_;
  std::int64_t most_, head_dim_;
  bool late_;  // it finds out only when it prepares
};

void collect(void* context, const std::string& text) {
  static_cast<std::vector<std::string>*>(context)->push_back(text);
}

}  // namespace

TEST_CASE("lengths: sums and device tensors") {
  const auto lengths = AttentionLengths::make({3, 1, 4}, {10, 1, 6}, 12, at::kCPU);
  CHECK(lengths.samples() == 3);
  CHECK(lengths.total_q == 8);
  CHECK(lengths.max_q == 4);
  CHECK(lengths.max_k == 10);
  CHECK(lengths.capacity == 12);
  CHECK_FALSE(lengths.equal_q());
  CHECK((lengths.cu_q.scalar_type() == at::kInt));
  CHECK(at::equal(lengths.q_device, at::tensor({3, 1, 4}, at::kInt)));
  CHECK(at::equal(lengths.k_device, at::tensor({10, 1, 6}, at::kInt)));
  CHECK(at::equal(lengths.cu_q, at::tensor({0, 3, 4, 8}, at::kInt)));
  CHECK(at::equal(lengths.cu_capacity, at::tensor({0, 12, 24, 36}, at::kInt)));
  CHECK(AttentionLengths::make({4, 4}, {9, 5}, 9, at::kCPU).equal_q());
}

TEST_CASE("lengths: other keys are followed in place, other queries and capacities are not") {
  auto lengths = AttentionLengths::make({3, 1}, {10, 1}, 12, at::kCPU);
  const Tensor before = lengths.k_device;
  lengths.follow(AttentionLengths::make({3, 1}, {4, 12}, 12, at::kCPU));
  CHECK((lengths.k == std::vector<std::int64_t>{4, 12}));
  CHECK(lengths.max_k == 12);
  CHECK(lengths.k_device.is_same(before));
  CHECK(at::equal(before, at::tensor({4, 12}, at::kInt)));
  CHECK_THROWS_AS(lengths.follow(AttentionLengths::make({1, 3}, {4, 12}, 12, at::kCPU)),
                  c10::Error);
  CHECK_THROWS_AS(lengths.follow(AttentionLengths::make({3, 1}, {4, 12}, 16, at::kCPU)),
                  c10::Error);
}

TEST_CASE("lengths: what cannot be is a programmer's error, with its numbers") {
  const auto make = [](std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                       std::int64_t capacity) -> std::string {
    try {
      AttentionLengths::make(q, k, capacity, at::kCPU);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  CHECK(make({}, {}, 4) == "[attention] 0 query lengths and 0 key lengths");
  CHECK(make({1, 2}, {3}, 4) == "[attention] 2 query lengths and 1 key lengths");
  CHECK(make({1, 0}, {3, 3}, 4) == "[attention] sample 1 has 0 queries");
  CHECK(make({1}, {0}, 4) == "[attention] sample 0 has 0 keys in a capacity of 4");
  CHECK(make({1}, {5}, 4) == "[attention] sample 0 has 5 keys in a capacity of 4");
  CHECK(make({1, 1}, {5, 5}, 2000000000) ==
        "[attention] 2 queries and 4000000000 rows of keys do not fit 32 bits");
}

TEST_CASE("every backend agrees with loops in double") {
  attention_cases::check_table(at::kCPU);
}

TEST_CASE("rows behind the keys are not read") {
  attention_cases::check_rows_behind_keys_unread(at::kCPU);
}

TEST_CASE("samples are isolated, bit for bit") {
  attention_cases::check_isolation(at::kCPU);
}

TEST_CASE("a sample alone gives the bits it gives beside others") {
  attention_cases::check_alone_equals_packed(at::kCPU);
}

TEST_CASE("math_in_order sums values key after key") {
  attention_cases::check_order(at::kCPU);
}

TEST_CASE("math gives the same in blocks of queries") {
  // 66 queries x 28 heads x 40000 keys are over the logits held at a time; the last query alone is
  // not.
  const Inputs inputs = make_inputs({"", 28, 4, 8, {66}, {40000}, 40000}, 0);
  const auto math = make_attention("math", at::kCPU);
  const Inputs last = {inputs.q.narrow(0, 65, 1), inputs.k, inputs.v,
                       AttentionLengths::make({1}, {40000}, 40000, at::kCPU)};
  for (const bool causal : {false, true}) {
    const Tensor wanted = math->forward(last.call(causal)).to(at::kDouble);
    CHECK(attention_cases::relative_max(math->forward(inputs.call(causal)).narrow(0, 65, 1),
                                        wanted) <= 1e-5);
  }
}

TEST_CASE("queries and keys that are not finite give results that are not") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const char* name : {"sdpa", "math"}) {
      for (const bool causal : {false, true}) {
        CAPTURE(name);
        Inputs inputs = make_inputs({"", 4, 2, 16, {5, 3}, {20, 9}, 24}, 1).to(at::kCPU, dtype);
        const auto forward = [&] {
          return make_attention(name, at::kCPU)->forward(inputs.call(causal));
        };
        inputs.q[2].fill_(NAN);
        Tensor out = forward();
        CHECK(out[2].isnan().all().item<bool>());
        CHECK(at::isfinite(out.narrow(0, 3, 5)).all().item<bool>());
        inputs.k[1].fill_(NAN);
        out = forward();
        CHECK(out.narrow(0, 5, 3).isnan().all().item<bool>());
        CHECK(at::isfinite(out.narrow(0, 3, 2)).all().item<bool>());
      }
    }
  }
}

TEST_CASE("the backends of the CPU, and why not the others") {
  std::map<std::string, std::string> reasons;
  for (const AttentionInfo& info : list_attention(at::kCPU)) {
    reasons[info.name] = info.unavailable.value_or("usable");
  }
  const std::map<std::string, std::string> wanted = {{"hopper", "needs a CUDA device, not cpu"},
                                                     {"cudnn", "needs a CUDA device, not cpu"},
                                                     {"flash", "needs a CUDA device, not cpu"},
                                                     {"sdpa", "usable"},
                                                     {"math", "usable"}};
  CHECK(reasons == wanted);
}

TEST_CASE("a backend that is not there is refused by name") {
  CHECK(refusal([] { make_attention("flash3", at::kCPU); }) ==
        "attention backend \"flash3\" is not known; known are auto, hopper, cudnn, flash, sdpa, "
        "math");
  CHECK(refusal([] { make_attention("flash", at::kCPU); }) ==
        "attention backend flash: needs a CUDA device, not cpu");
  CHECK(refusal([] { make_attention("cudnn", at::kCPU); }) ==
        "attention backend cudnn: needs a CUDA device, not cpu");
  CHECK(refusal([] { make_attention("hopper", at::kCPU); }) ==
        "attention backend hopper: needs a CUDA device, not cpu");
  CHECK(refusal([] { make_attention("splitkv", at::kCPU); }) ==
        "attention backend splitkv: needs a CUDA device, not cpu");
}

TEST_CASE("a backend asked for by name refuses what it cannot serve") {
  const Inputs inputs = make_inputs(kSmall, 0).to(at::kCPU, at::kDouble);
  CHECK(refusal([&] { make_attention("math", at::kCPU)->forward(inputs.call(false)); }) ==
        "attention backend math: needs float32, bfloat16 or float16, not Double");
  CHECK(refusal([&] { make_attention("auto", at::kCPU)->forward(inputs.call(false)); }) ==
        "attention: no backend can serve this call (sdpa: needs float32, bfloat16 or float16, not "
        "Double; math: needs float32, bfloat16 or float16, not Double)");
}

TEST_CASE("what a backend cannot serve is known from the kind of calls alone") {
  const auto asked = [](std::string_view name, at::ScalarType dtype, std::int64_t head_dim) {
    return attention_unsupported(name, {at::kCPU, dtype, head_dim}).value_or("served");
  };
  CHECK(asked("math", at::kFloat, 16) == "served");
  CHECK(asked("sdpa", at::kBFloat16, 7) == "served");
  CHECK(asked("auto", at::kHalf, 128) == "served");
  CHECK(asked("math", at::kDouble, 16) == "needs float32, bfloat16 or float16, not Double");
  CHECK(asked("flash", at::kBFloat16, 128) == "needs a CUDA device, not cpu");
  CHECK(asked("cudnn", at::kBFloat16, 128) == "needs a CUDA device, not cpu");
  CHECK(asked("hopper", at::kBFloat16, 128) == "needs a CUDA device, not cpu");
  CHECK(asked("splitkv", at::kBFloat16, 128) == "needs a CUDA device, not cpu");
  CHECK(asked("auto", at::kDouble, 16) ==
        "sdpa: needs float32, bfloat16 or float16, not Double; math: needs float32, bfloat16 or "
        "float16, not Double");
  CHECK(refusal([&] { asked("flash3", at::kFloat, 16); }) ==
        "attention backend \"flash3\" is not known; known are auto, hopper, cudnn, flash, sdpa, "
        "math");
  // The rules of flash and cuDNN, which no CPU can make.
  const auto half = [](at::ScalarType dtype, std::int64_t head_dim, std::int64_t most) {
    const AttentionKind kind = {at::Device(at::kCUDA, 0), dtype, head_dim};
    return half_precision_unsupported(kind, most).value_or("served");
  };
  CHECK(half(at::kBFloat16, 128, 128) == "served");
  CHECK(half(at::kFloat, 128, 128) == "needs bfloat16 or float16, not Float");
  CHECK(half(at::kHalf, 136, 128) ==
        "needs a head_dim that is a multiple of 8 and at most 128, not 136");
  CHECK(half(at::kHalf, 12, 256) ==
        "needs a head_dim that is a multiple of 8 and at most 256, not 12");
}

TEST_CASE("auto takes the first that serves, says each reason once, and remembers who served") {
  std::vector<std::unique_ptr<AttentionBackend>> preferred;
  preferred.push_back(std::make_unique<Limited>("small", 2, false));
  preferred.push_back(std::make_unique<Limited>("medium", 5, true));
  preferred.push_back(make_math());
  std::vector<std::string> said;
  const auto backend = make_auto(std::move(preferred), collect, &said);
  CHECK(backend->served_by().empty());
  const Inputs two = make_inputs({"", 4, 2, 16, {2}, {2}, 8}, 0);
  const Inputs five = make_inputs(kSmall, 0);
  const Inputs six = make_inputs({"", 4, 2, 16, {6}, {6}, 8}, 0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Inputs* inputs : {&five, &two, &six}) backend->forward(inputs->call(false));
  }
  CHECK(backend->name() == "auto");
  CHECK(backend->served_by() == "medium, small, math");
  CHECK_FALSE(backend->reads_lengths_on_device());  // math does not
  backend->forget_served();
  CHECK_FALSE(backend->reads_lengths_on_device());
  backend->forward(five.call(false));
  CHECK(backend->reads_lengths_on_device());
  backend->forget_served();
  CHECK(backend->served_by().empty());
  const std::vector<std::string> wanted = {
      "attention takes medium (small: at most 2 queries)",
      "attention takes math (small: at most 2 queries; medium: at most 5 queries)"};
  CHECK(said == wanted);
  CHECK(at::equal(backend->forward(six.call(true)), make_math()->forward(six.call(true))));
}

TEST_CASE("auto asks first what a tuning says, of calls that it knows") {
  const auto server = [](std::int64_t queries, std::int64_t head_dim, bool causal,
                         at::ScalarType dtype = at::kBFloat16, bool splits = true) {
    auto table = std::make_shared<TuningTable>();
    const auto add = [&](std::int64_t first, std::int64_t last, FirstAttention choice) {
      table->add({TunedKernel::attention, {4, 2, 16}, first, last, static_cast<int>(choice), {}});
    };
    add(1, 2, FirstAttention::sdpa);
    add(3, 4, FirstAttention::cudnn);
    add(5, 6, FirstAttention::splitkv);
    add(200, 300, FirstAttention::flash);
    std::vector<std::unique_ptr<AttentionBackend>> preferred;
    for (const char* name : {"cudnn", "flash", "sdpa"})
      preferred.push_back(std::make_unique<Limited>(name, 1000, false));
    if (splits) preferred.push_back(std::make_unique<Limited>("splitkv", 16, false));
    const auto backend = make_auto(std::move(preferred), nullptr, nullptr, table);
    const Inputs inputs =
        make_inputs({"", 4, 2, head_dim, {queries}, {queries}, queries}, 0).to(at::kCPU, dtype);
    backend->forward(inputs.call(causal));
    return backend->served_by();
  };
  CHECK(server(2, 16, false) == "sdpa");
  CHECK(server(3, 16, false) == "cudnn");
  CHECK(server(250, 16, false) == "flash");
  CHECK(server(5, 16, false) == "splitkv");
  // Of others nothing was measured: very few queries go to splitkv, few and causal ones to flash.
  CHECK(server(7, 16, false) == "splitkv");
  CHECK(server(16, 16, false) == "splitkv");
  CHECK(server(17, 16, false) == "flash");
  CHECK(server(150, 16, false) == "cudnn");
  CHECK(server(3, 16, true) == "splitkv");
  CHECK(server(150, 16, true) == "flash");
  CHECK(server(3, 32, false) == "splitkv");
  CHECK(server(3, 16, false, at::kFloat) == "splitkv");
  // Without it, few queries go where others do.
  for (const std::int64_t queries : {5, 7, 16, 17})
    CHECK(server(queries, 16, false, at::kBFloat16, false) == "flash");
}

TEST_CASE(
    "auto asks hopper first for many queries, and says nothing where heads are of another size") {
  for (const bool serves : {true, false}) {
    std::vector<std::unique_ptr<AttentionBackend>> preferred;
    preferred.push_back(std::make_unique<Limited>("hopper", 1000, false, serves ? 16 : 128));
    for (const char* name : {"cudnn", "flash"})
      preferred.push_back(std::make_unique<Limited>(name, 1000, false));
    preferred.push_back(make_math());
    std::vector<std::string> said;
    const auto backend = make_auto(std::move(preferred), collect, &said);
    backend->forward(make_inputs({"", 4, 2, 16, {150}, {150}, 150}, 0).call(false));
    CHECK(backend->served_by() == (serves ? "hopper" : "cudnn"));
    backend->forward(make_inputs({"", 4, 2, 16, {20}, {20}, 20}, 0).call(false));
    CHECK(backend->served_by() == (serves ? "hopper, flash" : "cudnn, flash"));
    CHECK(said.empty());
    backend->forward(make_inputs({"", 4, 2, 16, {1001}, {1001}, 1001}, 0).call(false));
    CHECK(said ==
          std::vector<std::string>(
              1, serves ? "attention takes math (hopper: at most 1000 queries; cudnn: at most 1000 "
                          "queries; flash: at most 1000 queries)"
                        : "attention takes math (cudnn: at most 1000 queries; flash: at "
                          "most 1000 queries)"));
  }
}

TEST_CASE("auto decides once per plan and kind of call") {
  auto limited = std::make_unique<Limited>("small", 5, false);
  const Limited& small = *limited;
  std::vector<std::unique_ptr<AttentionBackend>> preferred;
  preferred.push_back(std::move(limited));
  preferred.push_back(make_math());
  const auto backend = make_auto(std::move(preferred), nullptr, nullptr);
  const Inputs inputs = make_inputs(kSmall, 0);
  for (int layer = 0; layer < 3; ++layer) {
    Inputs other = make_inputs(kSmall, 0, 7);
    other.lengths = inputs.lengths;  // a copy is the same plan
    CHECK(backend->forward(inputs.call(false)).count_nonzero().item<std::int64_t>() == 0);
    CHECK(backend->forward(other.call(false)).count_nonzero().item<std::int64_t>() == 0);
  }
  CHECK(small.prepared == 1);
  backend->forward(inputs.call(true));
  CHECK(small.prepared == 2);
  backend->forward(inputs.sliced().call(true));
  CHECK(small.prepared == 3);
  backend->forward(inputs.to(at::kCPU, at::kFloat).call(true));  // lengths of its own
  CHECK(small.prepared == 4);
  // Of more plans than are remembered the oldest is decided again.
  std::vector<Inputs> many;
  for (int i = 0; i < 40; ++i) many.push_back(inputs.to(at::kCPU, at::kFloat));
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const Inputs& each : many) backend->forward(each.call(false));
  }
  CHECK(small.prepared == 4 + 3 * 40);
  backend->forward(many.back().call(false));
  CHECK(small.prepared == 4 + 3 * 40);
}

TEST_CASE("auto on the CPU is sdpa; a named backend serves by its name") {
  const Inputs inputs = make_inputs(kSmall, 0);
  std::vector<std::string> said;
  const auto backend = make_attention("auto", at::kCPU, {.say = collect, .context = &said});
  backend->forward(inputs.call(true));
  CHECK(backend->served_by() == "sdpa");
  CHECK(said.empty());
  CHECK(make_attention("math", at::kCPU)->served_by() == "math");
}

TEST_CASE("calls that contradict their lengths are a programmer's error") {
  const Inputs good = make_inputs(kSmall, 0);
  const auto math = make_attention("math", at::kCPU);
  Inputs bad = good;
  bad.q = good.q.narrow(0, 0, 4);
  CHECK_THROWS_AS(math->forward(bad.call(false)), c10::Error);
  bad = good;
  bad.v = good.v.narrow(1, 0, 7);
  CHECK_THROWS_AS(math->forward(bad.call(false)), c10::Error);
  bad = good;
  bad.k = good.k.to(at::kBFloat16);
  CHECK_THROWS_AS(math->forward(bad.call(false)), c10::Error);
  bad = good;
  bad.k = good.k.transpose(1, 2).contiguous().transpose(1, 2);
  CHECK_THROWS_AS(math->forward(bad.call(false)), c10::Error);
  bad = good;
  bad.lengths = AttentionLengths::make({3, 2}, {2, 2}, 8, at::kCPU);
  CHECK_NOTHROW(math->forward(bad.call(false)));
  CHECK_THROWS_AS(math->forward(bad.call(true)), c10::Error);  // a query without a key
}

}  // namespace diptych
