// `diptych devices`: where this machine can compute, and with which attention.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/verbs.h"
#include "lib/attention/attention.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

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

Json attention_json(at::Device device) {
  Json list = Json::array();
  for (const AttentionInfo& backend : list_attention(device)) {
    list.push_back({{"name", backend.name},
                    {"usable", !backend.unavailable},
                    {"reason", backend.unavailable ? Json(*backend.unavailable) : Json()}});
  }
  return list;
}

Json gpu_json(const GpuInfo& gpu, std::size_t index) {
  const auto free_bytes = free_gpu_memory(index);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  return {{"device", fmt::format("cuda:{}", index)},
          {"name", gpu.name},
          {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
          {"multiprocessors", gpu.multiprocessors},
          {"total_bytes", gpu.total_bytes},
          {"free_bytes", free_bytes ? Json(*free_bytes) : Json()},
          {"attention", attention_json(device)}};
}

int print_json() {
  const auto gpus = list_gpus();
  Json devices = Json::array();
  devices.push_back({{"device", "cpu"},
                     {"name", device_description(at::kCPU)},
                     {"attention", attention_json(at::kCPU)}});
  for (std::size_t i = 0; i < gpus.size(); ++i) devices.push_back(gpu_json(gpus[i], i));
  Json no_cuda;
  if (gpus.empty()) no_cuda = why_no_gpu().value_or("no reason is known");
  const Json report = {{"devices", std::move(devices)}, {"no_cuda", std::move(no_cuda)}};
  fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_devices(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("devices", "where this machine can compute");
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "the same as JSON on stdout")->envname("DIPTYCH_JSON");
  verb->footer(
      "Lists the CPU and every GPU with the attention backends it can use, and why not the "
      "others.\n"
      "Keys of --json: devices, a list; in each device (as --device takes it), name, and "
      "attention\n"
      "(a list of name, usable, reason: null where usable); of a GPU also compute_capability,\n"
      "multiprocessors, total_bytes, free_bytes (null where unknown). no_cuda says why there is "
      "no\n"
      "GPU, null where there is one.\n"
      "Example:\n  diptych devices");
  verb->callback(
      [json, &run] { run = [json](Log&) { return *json ? print_json() : print_devices(); }; });
}

}  // namespace diptych
