// The autoencoder of the released size with random weights: seconds of a decode and of an encode in
// float32 and in TF32, how many levels their pixels are apart, memory against the plan, and where
// the time goes: by step, by part of a residual block at full resolution, and of the attention.
//   build/gpu/tests/models/vae_bench 1024 512
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lib/base/statistics.h"
#include "lib/media/image_transform.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/models/flux_vae/memory.h"
#include "lib/runtime/runtime.h"
#include "lib/tensor/tf32.h"

using namespace diptych;

namespace {

constexpr double kMebi = 1024.0 * 1024.0;

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double milliseconds(at::Device device, const std::function<void()>& work) {
  synchronize(device);
  const auto start = Clock::now();
  work();
  synchronize(device);
  return milliseconds_since(start);
}

struct Times {
  double first = 0, median = 0;
};

Times time_of(at::Device device, const std::function<void()>& work, int repeats = 7) {
  Times times;
  times.first = milliseconds(device, work);
  milliseconds(device, work);
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(milliseconds(device, work));
  times.median = spread_of(std::move(all)).median;
  return times;
}

struct Model {
  std::string name;
  FluxVae vae;
};

void print_times(const Model& model, const char* pass, std::int64_t side, at::Device device,
                 std::int64_t planned, const std::function<void()>& work) {
  const Times times = time_of(device, work);
  reset_peak_memory(device);
  const std::uint64_t before = peak_tensor_bytes(device);
  work();
  const std::uint64_t peak = peak_tensor_bytes(device) - before;
  fmt::print("{:<14} {:<8} {:>5}  {:>9.2f} {:>9.2f}   {:>9.1f} {:>9.1f}\n", pass, model.name, side,
             times.median, times.first, static_cast<double>(peak) / kMebi,
             static_cast<double>(planned) / kMebi);
}

Tensor levels(const Tensor& image) {
  return to_uint8(image).to(at::kInt);
}

void print_difference(const char* what, const Tensor& a, const Tensor& b) {
  const Tensor apart = (levels(a) - levels(b)).abs();
  fmt::print("{:<34} levels apart: at most {}, {:.3f} % of all values; relative {:.2e}\n", what,
             apart.max().item<int>(), 100 * apart.gt(0).to(at::kFloat).mean().item<double>(),
             ((a - b).norm() / b.norm()).item<double>());
}

// Each step's time with a wait behind it.
void print_steps(const Model& model, const Tensor& latent, at::Device device) {
  fmt::print("{} by step, ms:", model.name);
  synchronize(device);
  auto start = Clock::now();
  const auto lap = [&](std::string_view name) {
    synchronize(device);
    fmt::print(" {} {:.2f}", name, milliseconds_since(start));
    start = Clock::now();
  };
  model.vae.decode(latent, [&](std::string_view name, const Tensor&) { lap(name); });
  lap("rest");
  fmt::print("\n");
}

double once(at::Device device, const std::function<void()>& work) {
  return time_of(device, work).median;
}

// The operations of the levels with the most pixels, alone.
void print_operations(const Model& model, std::int64_t side, at::Device device) {
  const Tf32Scope precision(model.vae.compute.tf32);
  const auto map = [&](std::int64_t channels, std::int64_t at) {
    return at::randn({1, channels, at, at}, at::TensorOptions().device(device))
        .contiguous(model.vae.compute.layout());
  };
  const auto& d = model.vae.decoder;
  const auto print = [&](const std::string& what, const std::function<void()>& work) {
    fmt::print("  {:<40} {:>8.3f} ms\n", what, once(device, work));
  };
  fmt::print("{} at {}:\n", model.name, side);
  for (std::size_t level = 0; level < d.up.size(); ++level) {
    const std::int64_t at = side >> level;
    const VaeResBlock& wide = d.up[level].block.front();
    const VaeResBlock& block = d.up[level].block.back();
    const Tensor in = map(wide.conv1.weight.size(1), at), x = map(block.conv1.weight.size(1), at);
    const auto name = [&](const char* what, const Tensor& of) {
      return fmt::format("level {}: {}, {} of {}x{}", level, what, of.size(1), at, at);
    };
    print(name("norm, silu", x), [&] { block.norm1.activated(x); });
    print(name("conv", x), [&] { block.conv1.forward(x); });
    if (wide.nin_shortcut) {
      print(name("first conv", in), [&] { wide.conv1.forward(in); });
      print(name("shortcut", in), [&] { wide.nin_shortcut->forward(in); });
    }
    print(name("add", x), [&] { x.add_(x); });
    if (!d.up[level].resample) continue;
    const Tensor before = map(d.up[level].resample->weight.size(1), at);
    Tensor doubled;
    print(name("double", before), [&] {
      doubled = at::upsample_nearest2d(before, {2 * at, 2 * at});
    });
    print(name("conv of doubled", before), [&] { d.up[level].resample->forward(doubled); });
  }
  const Tensor last = map(d.conv_out.weight.size(1), side);
  print("conv_out", [&] { d.conv_out.forward(last); });
  const Tensor middle = map(d.mid.attn_1.q.weight.size(1), side / 8);
  print("attention", [&] { d.mid.attn_1.forward(middle); });
  print("attention: q", [&] { d.mid.attn_1.q.forward(middle); });
}

void measure(std::int64_t side, const std::vector<Model>& models, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const auto options = at::TensorOptions().device(device);
  const Tensor latent = at::randn({1, 16, side / 8, side / 8}, generator, options);
  const VaeStrips strips;
  const Tensor exact = models.front().vae.decode(latent);
  const Tensor image = exact.clamp(-1, 1);
  for (const Model& model : models) {
    const FluxVae& vae = model.vae;
    const FluxVaeConfig& c = vae.config;
    print_times(model, "decode", side, device, vae_decode_bytes(c, side, side, {}),
                [&] { vae.decode(latent); });
    print_times(model, "decode strips", side, device, vae_decode_bytes(c, side, side, strips),
                [&] { vae.decode(latent, {}, strips); });
    print_times(model, "encode", side, device, vae_encode_bytes(c, side, side, {}),
                [&] { vae.encode_moments(image); });
  }
  const FluxVae& tf32 = models.back().vae;
  print_difference("decode, TF32 against float32", tf32.decode(latent), exact);
  print_difference("decode in strips", tf32.decode(latent, {}, strips), exact);
  print_difference("float32 in strips", models.front().vae.decode(latent, {}, strips), exact);
  const Tensor moments = models.front().vae.encode_moments(image);
  fmt::print("encode: relative {:.2e}\n",
             ((tf32.encode_moments(image) - moments).norm() / moments.norm()).item<double>());
  for (const Model& model : models) print_steps(model, latent, device);
  print_operations(models.back(), side, device);
}

void run(const std::vector<std::int64_t>& sides) {
  Log log(LogLevel::quiet);
  const at::Device device = resolve_device({DeviceChoice::Kind::numbered, 0}, log);
  const Weights weights = Weights::dummy(device, at::kFloat);
  const FluxVaeConfig config;
  const std::vector<Model> models = {
      {"float32", FluxVae::load(weights, config)},
      {"tf32", FluxVae::load(weights, config, {.tf32 = true, .kernels = KernelPolicy::strict})}};
  fmt::print("{}\n{:<14} {:<8} {:>5}  {:>9} {:>9}   {:>9} {:>9}\n", device_description(device),
             "pass", "", "side", "ms", "first ms", "peak MiB", "planned");
  for (const std::int64_t side : sides) measure(side, models, device);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kNoGpu = 77, kFailed = 3;
  CLI::App app("Times the autoencoder at its released size in float32 and in TF32");
  std::vector<std::int64_t> sides{1024, 512, 256};
  app.add_option("sides", sides, "pixels, multiples of 16")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kNoGpu;
  }
  try {
    const c10::InferenceMode inference;
    run(sides);
  } catch (const std::exception& error) {
    fmt::print(stderr, "vae_bench: {}\n", error.what());
    return kFailed;
  }
  return 0;
}
