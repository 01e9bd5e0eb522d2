#include "lib/models/qwen_mot/kernel_work.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include "lib/models/bagel/bagel.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
QwenConfig small_config() {
  QwenConfig c;
  c.hidden_size = 8;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 4;
  c.intermediate_size = 16;
  return c;
}

// Two samples of so many latent rows and two markers.
MotPlan image_plan(std::int64_t gen, const std::vector<std::int64_t>& keys) {
  MotPlan plan;
  plan.gen_rows = 2 * gen;
  plan.und_rows = 4;
  plan.gen.q = {gen, gen};
  plan.und.q = {2, 2};
  plan.gen.k = plan.und.k = keys;
  plan.wanted = MotWanted::generation;
  return plan;
}

std::map<std::string, KernelWork> work(const MotPlan& plan, Quantization quantization,
                                       const MotServedBy& served_by = {}) {
  std::map<std::string, KernelWork> families;
  const MatrixFormat format = {at::kBFloat16, quantization};
  for (const KernelWork& each : mot_work(plan, small_config(), format, served_by)) {
    CHECK(families.emplace(each.family, each).second);
  }
  return families;
}

TEST_CASE("mot_work: FLOP and bytes of two layers, by hand") {
  const auto found = work(image_plan(3, {7, 5}), Quantization::none);
  const std::vector<KernelWork> expected = {
      {"qkv_proj gen", 2 * 1536, 2 * (256 + 96 + 192 + 32)},
      {"qkv_proj und", 2 * 1024, 2 * (256 + 64 + 128 + 32)},
      {"qk norm, rope, cache write", 0, 2 * (640 + 240)},
      {"attention gen", 2 * 1152, 2 * (192 + 192)},
      {"attention und", 768, 128 + 192},  // of the last layer only latents go on
      {"o_proj gen", 2 * 768, 2 * (128 + 96 + 96)},
      {"o_proj und", 512, 128 + 64 + 64},
      {"norm", 0, 320 + 2 * 640 + 2 * 384},
      {"gate_up_proj gen", 2 * 3072, 2 * (512 + 96 + 384)},
      {"gate_up_proj und", 2048, 512 + 64 + 256},
      {"silu x gate", 0, 960 + 576},
      {"down_proj gen", 2 * 1536, 2 * (256 + 192 + 96)},
      {"down_proj und", 1024, 256 + 128 + 64}};
  CHECK(found.size() == expected.size());
  for (const KernelWork& each : expected) {
    CAPTURE(each.family);
    REQUIRE(found.contains(each.family));
    CHECK(found.at(each.family).flops == each.flops);
    CHECK(found.at(each.family).bytes == each.bytes);
    CHECK_FALSE(found.at(each.family).fp8);
  }
}

TEST_CASE("mot_work: fp8 quantises what attention gives, and few rows are no e4m3 product") {
  const auto found = work(image_plan(9, {13, 11}), Quantization::fp8);
  CHECK(found.at("qkv_proj gen").bytes == 2 * (192 + 216 + 576 + 32));
  CHECK(found.at("qkv_proj gen").fp8);
  CHECK(found.at("qkv_proj und").bytes == 2 * (192 + 48 + 128 + 32));
  CHECK_FALSE(found.at("qkv_proj und").fp8);
  CHECK(found.at("quantise rows").bytes == 2 * (288 + 216) + 64 + 48);
  CHECK(found.at("norm").bytes == 352 + 264 + 2 * (3 * 352 + 264) + (3 * 288 + 216) + (4 * 288));
  CHECK(found.at("silu x gate").bytes == 40 * (64 + 20));
  CHECK_FALSE(found.contains("dequantise weights"));
}

TEST_CASE("mot_work: attention in fp8 quantises what it reads, and its output") {
  const MotPlan plan = image_plan(9, {13, 11});
  const auto plain = work(plan, Quantization::fp8);
  const auto found = work(plan, Quantization::fp8, {.fp8_attention = true});
  CHECK(found.at("quantise rows").bytes == 64 + 48);  // the markers' output
  CHECK(found.at("quantise q, k and v").bytes == 2 * (288 + 2 * 384 + 144 + 192 + 72));
  CHECK(found.at("attention gen").bytes == 2 * (2 * 144 + 192));
  CHECK(found.at("attention gen").flops == plain.at("attention gen").flops);
  CHECK(found.at("attention gen").fp8);
  CHECK(found.at("attention und") == plain.at("attention und"));
  CHECK(found.at("o_proj gen") == plain.at("o_proj gen"));
}

TEST_CASE("mot_work: generation rows that one kernel multiplies and activates") {
  const MotPlan plan = image_plan(3, {7, 5});
  const auto plain = work(plan, Quantization::none);
  const auto found = work(plan, Quantization::none, {.one_gated_kernel = true});
  CHECK(found.size() == plain.size());
  CHECK(found.at("gate_up_proj gen").bytes == 2 * (512 + 96 + 192));
  CHECK(found.at("gate_up_proj gen").flops == 2 * 3072);
  CHECK((found.at("gate_up_proj und") == plain.at("gate_up_proj und")));
  CHECK(found.at("silu x gate").bytes == 4 * 96);  // the four markers of the first layer
}

TEST_CASE("mot_work: of int8 weights many rows take a plain copy") {
  const auto found = work(image_plan(9, {13, 11}), Quantization::int8);
  CHECK(found.at("qkv_proj gen").bytes == 2 * (256 + 288 + 576 + 32));
  CHECK(found.at("qkv_proj und").bytes == 2 * (192 + 64 + 128 + 32));
  // qkv, o, gate and up, down: a byte and a scale a row, and two bytes.
  CHECK(found.at("dequantise weights").bytes == 2 * (192 + 256 + 96 + 128 + 384 + 512 + 160 + 256));
  CHECK_FALSE(found.contains("quantise rows"));
}

TEST_CASE("mot_work: of int8 weights many rows take no copy where a kernel needs none") {
  TuningTable table;
  const TunedShape down = {8, 16, 0};
  table.add({TunedKernel::linear_int8, down, 17, 18, static_cast<int>(Int8Product::mixed_64), {}});
  const MotPlan plan = image_plan(9, {13, 11});
  const auto copied = work(plan, Quantization::int8, {.tuning = &table});
  const auto mixed = work(plan, Quantization::int8, {.tuning = &table, .mixed_kernel = true});
  CHECK((copied == work(plan, Quantization::int8)));
  CHECK(mixed.at("dequantise weights").bytes == 2 * (192 + 256 + 96 + 128 + 384 + 512));
  CHECK(mixed.at("down_proj gen").bytes == copied.at("down_proj gen").bytes - 2 * (256 - 160));
  CHECK((mixed.at("qkv_proj gen") == copied.at("qkv_proj gen")));
}

TEST_CASE("mot_work: products are those that a tuning chooses") {
  TuningTable table;
  const auto choose = [&](TunedKernel kernel, const TunedShape& shape, auto choice) {
    table.add({kernel, shape, 4, 4, static_cast<int>(choice), {}});
  };
  choose(TunedKernel::linear_int8, {16, 8, 0}, Int8Product::copy);
  choose(TunedKernel::linear_fp8, {64, 32, 0}, Fp8Product::cutlass);
  const MotPlan plan = image_plan(9, {13, 11});
  const auto plain = work(plan, Quantization::int8);
  const auto tuned = work(plan, Quantization::int8, {.tuning = &table});
  // The weights of qkv for the four markers, in two layers: a copy is made of them, and read.
  CHECK(tuned.at("dequantise weights").bytes - plain.at("dequantise weights").bytes ==
        2 * (192 + 256));
  CHECK(tuned.at("qkv_proj und").bytes - plain.at("qkv_proj und").bytes == 2 * (256 - 192));
  CHECK((tuned.at("o_proj und") == plain.at("o_proj und")));
  QwenConfig wide = small_config();
  wide.hidden_size = 32;
  wide.head_dim = 16;
  for (const KernelWork& each :
       mot_work(plan, wide, {at::kBFloat16, Quantization::fp8}, {&table})) {
    CAPTURE(each.family);
    if (each.family.ends_with("proj und")) CHECK(each.fp8 == (each.family == "qkv_proj und"));
  }
}

TEST_CASE("mot_work: a single row of fp8 stays plain, and with it what norms make of the others") {
  MotPlan plan = image_plan(8, {12, 10});
  plan.und_rows = 1;
  plan.und.q = {1};
  const auto found = work(plan, Quantization::fp8);
  CHECK(found.at("qkv_proj und").bytes == 2 * (192 + 16 + 32 + 32));
  CHECK(found.at("norm").bytes == 17 * 32 + 2 * 17 * 64 + 2 * 16 * 64);
  CHECK(found.at("quantise rows").bytes == 2 * (3 * (256 + 192) + 512 + 320));
}

// Passes calls on and counts them.
class CountingAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return backend_->name(); }
  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return backend_->kind_unsupported(kind);
  }
  Tensor forward(const AttentionCall& call) const override {
    ++calls_;
    return backend_->forward(call);
  }
  int take() const { return std::exchange(calls_, 0); }

 private:
  std::unique_ptr<AttentionBackend> backend_ = make_attention("math", at::kCPU);
  mutable int calls_ = 0;
};

std::int64_t count_linears(const std::function<void()>& work) {
  static thread_local std::int64_t linears;
  linears = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(f.name()) == "aten::linear") ++linears;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return linears;
}

Bagel tiny_bagel() {
  const fs::path folder = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";
  const Weights weights = Weights::open(folder / "ema.safetensors", at::kCPU, at::kFloat);
  return Bagel::load(weights, Bagel::checked(weights, BagelConfig::load(folder)));
}

TEST_CASE("products: as many as forward() has, and the last one's values") {
  const Bagel model = tiny_bagel();
  const MotBackbone& backbone = model.language_model;
  KvCache cache(backbone.config.kv_shape(), 1, 16, at::kFloat);
  const std::vector<MotSample> samples = {
      {.context = 0, .position = 0, .gen_rows = 12, .und_rows = 2}};
  MotPlan plan = plan_image_block(samples, 0, cache, backbone.config, at::kFloat);
  plan.wanted = MotWanted::generation;
  const CountingAttention attention;
  const Tensor x = at::randn({14, backbone.config.hidden_size}, at::kFloat);
  const KernelPolicy policy = KernelPolicy::automatic;
  const std::int64_t whole =
      count_linears([&] { backbone.forward(plan, x.clone(), cache, attention, policy); });
  CHECK(whole == 2 * 8 + 5);
  CHECK(attention.take() == 5);
  const Tensor before = x.clone();
  const MotProductRows rows = backbone.product_rows(plan, x, cache, policy);
  CHECK(x.equal(before));
  CHECK(rows.q.sizes() == at::IntArrayRef({14, 4, 16}));
  Tensor last;
  CHECK(count_linears([&] { last = backbone.products(plan, rows, cache, attention, policy); }) ==
        whole);
  CHECK(attention.take() == 5);
  const Tensor expected =
      linear(rows.inner.values.narrow(0, 0, 12), backbone.layers[2].gen.down_proj, {}, policy);
  CHECK(last.equal(expected));
  CHECK(last.abs().max().item<double>() > 0);
}

// The labels of the work's launches, in the order in which they begin.
std::vector<std::string> labels_of(const std::function<void()>& work) {
  static thread_local std::vector<std::string> labels;
  labels.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (const auto label = LaunchLabel::read(f.name())) labels.emplace_back(*label);
        return nullptr;
      }).scopes({at::RecordScope::USER_SCOPE}));
  work();
  at::removeCallback(handle);
  return labels;
}

TEST_CASE("forward: its launches are labelled with the families of mot_work") {
  const Bagel model = tiny_bagel();
  const MotBackbone& backbone = model.language_model;
  KvCache cache(backbone.config.kv_shape(), 1, 16, at::kFloat);
  const std::vector<MotSample> samples = {
      {.context = 0, .position = 0, .gen_rows = 12, .und_rows = 2}};
  MotPlan plan = plan_image_block(samples, 0, cache, backbone.config, at::kFloat);
  plan.wanted = MotWanted::generation;
  const CountingAttention attention;
  const Tensor x = at::randn({14, backbone.config.hidden_size}, at::kFloat);
  const std::vector<std::string> labels = labels_of(
      [&] { backbone.forward(plan, x.clone(), cache, attention, KernelPolicy::automatic); });
  // What both kinds of rows go through in one launch has a label around those of its parts.
  const std::vector<std::string> before = {"norm"};
  const std::vector<std::string> layer = {
      "qkv_proj",      "qkv_proj gen",  "qkv_proj und",     "qk norm, rope, cache write",
      "attention gen", "attention und", "o_proj gen",       "o_proj und",
      "norm",          "gate_up_proj",  "gate_up_proj gen", "gate_up_proj und",
      "silu x gate",   "down_proj",     "down_proj gen",    "down_proj und",
      "norm"};
  std::vector<std::string> expected = before;
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), layer.begin(), layer.end());
  for (const std::string& label : layer) {  // of the last layer only latents go on
    if (!label.ends_with(" und") || label == "qkv_proj und") expected.push_back(label);
  }
  CHECK(labels == expected);
  for (const KernelWork& each :
       mot_work(plan, backbone.config, {at::kFloat, Quantization::none}, {})) {
    CAPTURE(each.family);
    CHECK(std::ranges::find(labels, each.family) != labels.end());
  }
}

}  // namespace
}  // namespace diptych
