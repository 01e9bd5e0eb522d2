// Milliseconds of every attention backend on the shapes of denoise steps (head_dim 128, bfloat16),
// of BAGEL's pictures and of clips, launched by a CUDA graph as a step's are, each result held
// against the math backend on some of its query rows, also with values of mean 1: sums grow then.
// Exit code 1 where a result is off, 77 without a GPU.
#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lib/attention/backends.h"
#include "lib/base/log.h"
#include "lib/runtime/launch_times.h"
#include "tests/attention/inputs.h"

namespace diptych {
namespace {

using attention_cases::Case;
using attention_cases::Inputs;
using attention_cases::relative_norm;

constexpr int kInputSets = 4;              // together larger than the L2 cache
constexpr std::int64_t kCheckedRows = 64;  // queries of each sample that math recomputes
constexpr double kMaxError = 0.005;        // bfloat16 output and weights: about 0.002 in the 2-norm
constexpr double kMaxFp8Error = 0.1;       // and in e4m3 0.06

struct Options {
  int repeats = 10;
  std::vector<std::string> backends = {"hopper", "cudnn", "hopper_fp8", "splitkv",
                                       "flash",  "sdpa",  "math"};
};

std::vector<Case> shapes() {
  const auto gqa = [](std::string name, std::vector<std::int64_t> q, std::vector<std::int64_t> k) {
    const std::int64_t capacity = *std::max_element(k.begin(), k.end());
    return Case{std::move(name), 28, 4, 128, std::move(q), std::move(k), capacity};
  };
  // Latents, and apart from them a picture's two markers; keys are those of the prompt, too.
  return {gqa("1024², batch 1", {4096}, {4162}),
          gqa("1024², batch 2", {4096, 4096}, {4162, 4098}),
          gqa("1024², batch 3", {4096, 4096, 4096}, {8300, 4098, 4162}),
          gqa("512², batch 2", {1024, 1024}, {1090, 1026}),
          gqa("256², batch 2", {256, 256}, {322, 258}),
          gqa("1024², markers, batch 2", {2, 2}, {4162, 4098}),
          gqa("decode, batch 1", {1}, {4162}),
          {"Wan 1.3B, 480p, 81 frames", 12, 12, 128, {32760}, {32760}, 32760},
          {"Wan 14B, 480p, 81 frames", 40, 40, 128, {32760}, {32760}, 32760},
          {"Lance, 480p, 121 frames", 16, 2, 128, {49290}, {49290}, 49290}};
}

Inputs random_inputs(const Case& shape, at::Device device) {
  const auto samples = static_cast<std::int64_t>(shape.q.size());
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  Inputs inputs;
  inputs.lengths = AttentionLengths::make(shape.q, shape.k, shape.capacity, device);
  inputs.q = at::randn({inputs.lengths.total_q, shape.heads, shape.head_dim}, options);
  inputs.k = at::randn({samples, shape.capacity, shape.kv_heads, shape.head_dim}, options);
  inputs.v = at::randn({samples, shape.capacity, shape.kv_heads, shape.head_dim}, options);
  return inputs;
}

// The 2-norm error against math over the first and last rows of each sample.
double error_against_math(const Inputs& inputs, const Tensor& got, const AttentionBackend& math) {
  std::vector<Tensor> some_q, some_got;
  std::vector<std::int64_t> lengths;
  std::int64_t first = 0;
  for (const std::int64_t queries : inputs.lengths.q) {
    const std::int64_t count = std::min(kCheckedRows, queries), front = count / 2;
    for (const auto& [begin, rows] :
         {std::pair{first, front}, std::pair{first + queries - (count - front), count - front}}) {
      some_q.push_back(inputs.q.narrow(0, begin, rows));
      some_got.push_back(got.narrow(0, begin, rows));
    }
    lengths.push_back(count);
    first += queries;
  }
  const Inputs some = {at::cat(some_q), inputs.k, inputs.v,
                       AttentionLengths::make(lengths, inputs.lengths.k, inputs.lengths.capacity,
                                              inputs.q.device())};
  const Tensor wanted = math.forward(some.call(false)).to(at::kCPU, at::kDouble);
  return relative_norm(at::cat(some_got), wanted);
}

double tera_flops(const Case& shape) {
  double products = 0;
  for (std::size_t i = 0; i < shape.q.size(); ++i) {
    products += static_cast<double>(shape.q[i] * shape.k[i]);
  }
  return products * 4 * static_cast<double>(shape.heads * shape.head_dim) / 1e12;
}

// One row of the table; false where the result is off.
bool measure(const Case& shape, const std::string& name, const std::vector<Inputs>& sets,
             const Options& options, const AttentionBackend& math) {
  const at::Device device = sets[0].q.device();
  const auto backend = make_attention(name, device);
  const double begin = steady_seconds();
  if (const auto reason = backend->prepare(sets[0].call(false))) {
    fmt::print("| {} | {} | {} | | | | |\n", shape.name, name, *reason);
    return true;
  }
  const double prepared = steady_seconds() - begin;
  const auto error_of = [&](const Inputs& inputs) {
    return error_against_math(inputs, backend->forward(inputs.call(false)), math);
  };
  const double error = error_of(sets[0]);
  Inputs with_mean = sets[0];
  with_mean.v = with_mean.v + 1;
  const double mean_error = error_of(with_mean);
  std::vector<std::function<void()>> works;
  for (const Inputs& inputs : sets) {
    // As a layer calls it: what is computed in fp8 stays so.
    works.emplace_back([&] { backend->forward_rows(inputs.call(false), Quantization::fp8); });
  }
  const int repeats = name == "math" ? std::min(options.repeats, 3) : options.repeats;
  const double ms = launch_milliseconds(works, repeats, device);
  fmt::print("| {} | {} | {:.4f} | {:.0f} | {:.4f} | {:.4f} | {:.0f} |\n", shape.name, name, ms,
             tera_flops(shape) / ms * 1e3, error, mean_error, prepared * 1e3);
  std::fflush(stdout);
  const double most = name == kHopperFp8 ? kMaxFp8Error : kMaxError;
  const double largest = std::max(error, mean_error);
  if (largest <= most) return true;
  fmt::print(stderr, "{}: error {:.4f} against math, at most {} expected\n", name, largest, most);
  return false;
}

int run(const Options& options) {
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return 77;
  }
  const at::Device device(at::kCUDA, 0);
  const c10::InferenceMode inference;
  std::vector<std::string> usable;
  for (const AttentionInfo& info : list_attention(device)) {
    const bool wanted = std::count(options.backends.begin(), options.backends.end(), info.name) > 0;
    if (wanted && info.unavailable) fmt::print("{}: {}\n\n", info.name, *info.unavailable);
    if (wanted && !info.unavailable) usable.push_back(info.name);
  }
  const auto add = [&](std::string_view name, const std::optional<std::string>& unavailable) {
    const bool wanted = std::count(options.backends.begin(), options.backends.end(), name) > 0;
    if (wanted && !unavailable) usable.emplace_back(name);
  };
  add(kSplitKv, splitkv_unavailable(device));
  add(kHopperFp8, hopper_unavailable(device));
  const auto math = make_attention("math", device);
  bool good = true;
  fmt::print(
      "| shape | backend | ms | TFLOP/s | error against math | with values of mean 1 | prepare, ms "
      "|\n"
      "|---|---|---|---|---|---|---|\n");
  for (const Case& shape : shapes()) {
    std::vector<Inputs> sets;
    for (int i = 0; i < kInputSets; ++i) sets.push_back(random_inputs(shape, device));
    for (const std::string& name : usable) {
      good = measure(shape, name, sets, options, *math) && good;
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace diptych

int main(int argc, char** argv) {
  diptych::Options options;
  CLI::App app("Times the attention backends on CUDA device 0, as a Markdown table.");
  app.add_option("--repeats", options.repeats, "replays, of which the median is shown")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--backend", options.backends, "only these (repeatable)")
      ->check(CLI::IsMember({"hopper", "cudnn", "hopper_fp8", "splitkv", "flash", "sdpa", "math"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return diptych::run(options);
}
