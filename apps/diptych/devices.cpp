// `diptych devices`: where this machine can compute, and with which attention.
#include <string_view>

#include <fmt/format.h>

#include "apps/diptych/verbs.h"
#include "lib/attention/attention.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << 30);
}

void print_attention(at::Device device) {
  for (const AttentionInfo& backend : list_attention(device)) {
    fmt::print("  attention {:<6} {}\n", backend.name,
               backend.unavailable ? "not usable: " + *backend.unavailable : "usable");
  }
}

std::string free_text(std::size_t index) {
  const auto bytes = free_gpu_memory(index);
  return bytes ? fmt::format(", {:.1f} free", gib(*bytes)) : std::string(", free memory unknown");
}

int print_devices() {
  fmt::print("cpu: {}\n", device_description(at::kCPU));
  print_attention(at::kCPU);
  const auto gpus = list_gpus();
  if (gpus.empty()) fmt::print("cuda: none: {}\n", why_no_gpu().value_or("no reason is known"));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuInfo& gpu = gpus[i];
    fmt::print("cuda:{}: {}, {}.{}, {} multiprocessors, {:.1f} GiB{}\n", i, gpu.name, gpu.major,
               gpu.minor, gpu.multiprocessors, gib(gpu.total_bytes), free_text(i));
    print_attention(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(i)));
  }
  return 0;
}

}  // namespace

void add_devices(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("devices", "where this machine can compute");
  verb->footer(
      "Lists the CPU and every GPU with the attention backends it can use, and why not the "
      "others.\n"
      "Example:\n  diptych devices");
  verb->callback([&run] { run = [](Log&) { return print_devices(); }; });
}

}  // namespace diptych
