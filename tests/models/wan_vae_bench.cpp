// A Wan autoencoder of the released size with random weights: milliseconds of a picture's and of a
// later chunk's decode and encode by step, memory against the plan, and of the widest convolutions
// in other forms than the one used; or, with --frames, of the decode of a whole clip, with
// --kernels what its kernels take.
//   build/gpu/tests/models/wan_vae_bench 832x480 1280x704
//   build/gpu/tests/models/wan_vae_bench --release 2.1 --frames 81 --vae-dtype tf32,float32 832x480
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lib/base/statistics.h"
#include "lib/models/wan_vae/memory.h"
#include "lib/ops/conv3d.h"
#include "lib/runtime/launches.h"
#include "lib/runtime/runtime.h"

using namespace diptych;

namespace {

constexpr double kMebi = 1024.0 * 1024.0;
constexpr std::int64_t kChunks = 4;  // the last two are like all that would follow

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double milliseconds(at::Device device, const std::function<void()>& work) {
  std::vector<double> times;
  for (int repeat = 0; repeat < 5; ++repeat) {
    synchronize(device);
    const auto start = Clock::now();
    work();
    synchronize(device);
    if (repeat > 0) times.push_back(milliseconds_since(start));
  }
  return spread_of(times).median;
}

struct Size {
  std::int64_t width = 0, height = 0;
};

Size parse_size(const std::string& text) {
  Size size;
  char cross = 0;
  std::istringstream(text) >> size.width >> cross >> size.height;
  return size;
}

void print_memory(const char* pass, at::Device device, std::int64_t planned,
                  const std::function<void()>& work) {
  reset_peak_memory(device);
  const std::uint64_t before = peak_tensor_bytes(device);
  work();
  const std::uint64_t peak = peak_tensor_bytes(device) - before;
  fmt::print("{}: {:.0f} MiB, planned {:.0f}\n", pass, static_cast<double>(peak) / kMebi,
             static_cast<double>(planned) / kMebi);
}

// Prints the steps of the first chunk and of the last with a wait behind each.
class StepClock {
 public:
  explicit StepClock(at::Device device) : device_(device) { restart(); }
  void lap(std::int64_t chunk, std::string_view name) {
    synchronize(device_);
    if (chunk == 0 || chunk == kChunks - 1)
      fmt::print("  chunk {} {}: {:.2f} ms\n", chunk, name, milliseconds_since(start_));
    restart();
  }

 private:
  void restart() {
    synchronize(device_);
    start_ = Clock::now();
  }
  at::Device device_;
  Clock::time_point start_;
};

WanVae load_release(const WanVaeConfig& config, const WanVaePrecision& precision,
                    at::Device device) {
  return WanVae::load(Weights::dummy(device, precision.maps), config,
                      {KernelPolicy::automatic, precision.is_tf32()});
}

void decode_clip(const WanVae& vae, const Tensor& latent, const WanVaeObserver& observer = {}) {
  WanVaeDecoder decoder(vae, latent, observer);
  while (decoder.has_next()) frames_to_uint8(decoder.next());
}

Tensor draw_latent(const WanVaeConfig& config, std::int64_t t, const Size& size,
                   at::Device device) {
  const std::int64_t side = config.spatial();
  return at::randn({t, size.height / side, size.width / side, config.z_dim},
                   at::TensorOptions().device(device));
}

// Milliseconds of a clip's decode by kernel, those that take most.
void print_kernels(const WanVae& vae, const Tensor& latent) {
  constexpr const char* kScope = "decode";
  constexpr std::size_t kMost = 24, kName = 96;
  const auto launches = record_launches(kScope, [&] {
    synchronize(latent.device());
    RECORD_USER_SCOPE(kScope);
    decode_clip(vae, latent);
    synchronize(latent.device());
  });
  if (!launches || launches->scopes.empty()) return;
  struct Sum {
    double ms = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  for (const GpuActivity& each : launches->scopes.front()) {
    Sum& sum = sums[each.name];
    sum.ms += static_cast<double>(each.end_ns - each.start_ns) / 1e6;
    ++sum.count;
  }
  std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  if (sorted.size() > kMost) sorted.resize(kMost);
  for (const auto& [name, sum] : sorted)
    fmt::print("  {:>9.2f} ms {:>5} x {}\n", sum.ms, sum.count, name.substr(0, kName));
}

// As levels of 255 on the device.
void measure_clip(const WanVae& vae, const WanVaePrecision& precision, const Size& size,
                  std::int64_t frames, bool kernels, at::Device device) {
  const std::int64_t t = WanVaeConfig::latent_frames(frames);
  const Tensor latent = draw_latent(vae.config, t, size, device);
  const double ms = milliseconds(device, [&] { decode_clip(vae, latent); });
  fmt::print("{}x{} decode, {}: {} frames {:.1f} ms\n", size.width, size.height,
             name_of(precision.name()), WanVaeConfig::frames(t), ms);
  print_memory("decode", device,
               wan_vae_decode_bytes(vae.config, {size.width, size.height, frames}, precision),
               [&] { decode_clip(vae, latent); });
  if (kernels) print_kernels(vae, latent);
}

void measure_passes(const WanVae& vae, const WanVaePrecision& precision, const Size& size,
                    at::Device device) {
  const WanVaeClip clip{size.width, size.height, WanVaeConfig::frames(kChunks)};
  const auto options = at::TensorOptions().device(device);
  const Tensor latent = draw_latent(vae.config, kChunks, size, device);
  const Tensor video = at::randn({3, clip.frames, size.height, size.width}, options).clamp_(-1, 1);
  const auto ms = [&](const std::function<void()>& work) { return milliseconds(device, work); };
  const double one = ms([&] { decode_clip(vae, latent.narrow(0, 0, 1)); });
  const double fewer = ms([&] { decode_clip(vae, latent.narrow(0, 0, kChunks - 1)); });
  const double all = ms([&] { decode_clip(vae, latent); });
  fmt::print("{}x{} decode, {}: a picture {:.1f} ms, a chunk of four frames {:.1f} ms\n",
             size.width, size.height, name_of(precision.name()), one, all - fewer);
  const double picture = ms([&] { vae.encode(video.narrow(1, 0, 1)); });
  const double shorter = ms([&] { vae.encode(video.narrow(1, 0, clip.frames - 4)); });
  const double whole = ms([&] { vae.encode(video); });
  fmt::print("{}x{} encode, {}: a picture {:.1f} ms, a chunk of four frames {:.1f} ms\n",
             size.width, size.height, name_of(precision.name()), picture, whole - shorter);
  print_memory("decode", device, wan_vae_decode_bytes(vae.config, clip, precision),
               [&] { decode_clip(vae, latent); });
  print_memory("encode", device, wan_vae_encode_bytes(vae.config, clip, precision),
               [&] { vae.encode(video); });
  StepClock clock(device);
  const WanVaeObserver lap = [&](std::int64_t chunk, std::string_view name, const Tensor&) {
    clock.lap(chunk, name);
  };
  WanVaeDecoder decoder(vae, latent, lap);
  for (std::int64_t chunk = 0; decoder.has_next(); ++chunk) {
    decoder.next();
    clock.lap(chunk, "decoder.out");
  }
  vae.encode(video, lap);
}

// One causal convolution of `frames` frames of `channels`, h x w: by the kernel of this project,
// and by libtorch as one in three dimensions, in channels_last and not, as three in two dimensions,
// and as one over three frames' channels.
void measure_forms(std::int64_t channels, std::int64_t frames, const Size& size,
                   at::ScalarType dtype, at::Device device) {
  const std::int64_t h = size.height, w = size.width;
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  const Tensor x = at::randn({frames + 2, h, w, channels}, options);
  const Tensor weight = at::randn({channels, channels, 3, 3, 3}, options)
                            .contiguous(at::MemoryFormat::ChannelsLast3d);
  const Tensor bias = at::zeros({channels}, options);
  const Tensor clip = x.permute({3, 0, 1, 2}).unsqueeze(0);
  const Tensor plain_clip = clip.contiguous(), plain_weight = weight.contiguous();
  const std::array<std::int64_t, 3> padding = {0, 1, 1};
  const auto tap = [&](std::int64_t i) {
    return weight.select(2, i).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const std::vector<Tensor> taps = {tap(0), tap(1), tap(2)};
  const Tensor wide = at::cat(taps, 1).contiguous(at::MemoryFormat::ChannelsLast);
  const auto images = [&](std::int64_t first) {
    return x.narrow(0, first, frames).permute({0, 3, 1, 2});
  };
  const auto flat = [&] {
    Tensor y = at::conv2d(images(0), taps[0], bias, 1, 1);
    for (std::int64_t i = 1; i < 3; ++i)
      y.add_(at::conv2d(images(i), taps[static_cast<std::size_t>(i)], {}, 1, 1));
    return y;
  };
  const auto joined = [&] {
    return at::conv2d(at::cat({images(0), images(1), images(2)}, 1), wide, bias, 1, 1);
  };
  const double flops = 54.0 * static_cast<double>(channels * channels * frames * h * w);
  const auto print = [&](const char* form, const std::function<void()>& work) {
    const double ms = milliseconds(device, work);
    fmt::print("  {:<34} {:>8.3f} ms {:>6.0f} TFLOP/s\n", form, ms, flops / ms / 1e9);
  };
  fmt::print("{} channels, {} frames of {}x{}, {}:\n", channels, frames, w, h,
             c10::toString(dtype));
  const bool own = has_conv3d_kernels(options, KernelPolicy::automatic) &&
                   conv3d_kernel_fits(channels, channels);
  const bool split = !own && wan_vae_splits_taps(channels, channels, dtype);
  if (own) {
    const Tensor packed = weight.permute({0, 2, 3, 4, 1}).unsqueeze(0);
    const bool in_pairs = frames % 2 == 0 && wan_vae_takes_pairs(channels, channels);
    print(in_pairs ? "kernels/conv3d" : "kernels/conv3d (used)", [&] {
      conv3d(x, {.weight = packed, .bias = bias, .row_padding = 1, .column_padding = 1});
    });
    if (in_pairs) {
      const Tensor maps = at::randn({2 * frames, h, w, channels}, options);
      const Tensor five = at::cat({packed, packed.narrow(2, 0, kPairedTaps - 3)}, 2);
      print("kernels/conv3d, pairs (used)", [&] {
        conv3d(
            maps,
            {.weight = five, .bias = bias, .row_padding = 1, .column_padding = 1, .pairs = true});
      });
    }
  }
  print(own || split ? "conv3d, channels_last" : "conv3d, channels_last (used)",
        [&] { at::conv3d(clip, weight, bias, 1, padding); });
  print("conv3d", [&] { at::conv3d(plain_clip, plain_weight, bias, 1, padding); });
  print(split ? "three conv2d and sums (used)" : "three conv2d and sums", [&] { flat(); });
  print("conv2d of three frames' channels", [&] { joined(); });
}

// The widest convolutions of each stage, of a chunk that is not the first.
void measure_stages(const WanVaeConfig& config, const Size& size, at::ScalarType dtype,
                    at::Device device) {
  const std::int64_t side = config.spatial();
  std::int64_t frames = 1, doubled = 1;
  for (std::size_t s = 0; s < config.stages(); ++s) {
    measure_forms(config.decoder_out(s), frames,
                  {size.width / side * doubled, size.height / side * doubled}, dtype, device);
    doubled *= 2;
    if (s + 1 < config.stages() && config.doubles_time(s)) frames *= 2;
  }
}

struct Asked {
  std::vector<std::string> sizes{"832x480", "1280x704"}, dtypes{"bfloat16"};
  std::string release = "2.2";
  std::int64_t frames = 0;  // of a whole clip; 0: the steps
  bool kernels = false;
};

WanVaePrecision parse_precision(const std::string& name, at::Device device) {
  WanVaePrecision precision = name == name_of(VaeDtype::float32) ? at::kFloat : at::kBFloat16;
  if (name == name_of(VaeDtype::tf32)) precision = WanVaePrecision::tf32();
  return precision.on(device, KernelPolicy::automatic);
}

void run(const Asked& asked) {
  Log log(LogLevel::quiet);
  const at::Device device = resolve_device({DeviceChoice::Kind::automatic, 0}, log);
  const WanVaeConfig config =
      asked.release == "2.1" ? WanVaeConfig::wan21() : WanVaeConfig::wan22();
  for (const std::string& dtype : asked.dtypes) {
    const WanVaePrecision precision = parse_precision(dtype, device);
    const WanVae vae = load_release(config, precision, device);
    for (const std::string& text : asked.sizes) {
      const Size size = parse_size(text);
      if (asked.frames > 0) {
        measure_clip(vae, precision, size, asked.frames, asked.kernels, device);
        continue;
      }
      measure_passes(vae, precision, size, device);
      measure_stages(config, size, precision.products, device);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kNoGpu = 77, kFailed = 3;
  CLI::App app("Times a Wan autoencoder at its released size");
  Asked asked;
  app.add_option("--release", asked.release, "of Wan")->check(CLI::IsMember({"2.1", "2.2"}));
  app.add_option("--vae-dtype", asked.dtypes, "one or more, with commas between them")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"bfloat16", "tf32", "float32"}));
  app.add_option("--frames", asked.frames, "decode a clip of so many, and nothing else")
      ->check(CLI::PositiveNumber);
  app.add_flag("--kernels", asked.kernels, "with --frames: the kernels that take most");
  app.add_option("sizes", asked.sizes, "WIDTHxHEIGHT in pixels, multiples of 16")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            const Size size = parse_size(text);
            const bool good =
                size.width > 0 && size.height > 0 && size.width % 16 == 0 && size.height % 16 == 0;
            return good ? "" : text + ": expected WIDTHxHEIGHT, multiples of 16";
          },
          "SIZE"));
  CLI11_PARSE(app, argc, argv);
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kNoGpu;
  }
  try {
    const c10::InferenceMode inference;
    run(asked);
  } catch (const std::exception& error) {
    fmt::print(stderr, "wan_vae_bench: {}\n", error.what());
    return kFailed;
  }
  return 0;
}
