#include "lib/pipelines/make_runtime.h"

#include <torch/version.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

std::unique_ptr<AttentionBackend> stage_attention(const StageAttention& stage, at::Device device,
                                                  const Tuning& tuning, Log& log) {
  const auto say = [](void* context, const std::string& text) {
    static_cast<Log*>(context)->warning_once(text);
  };
  const std::string& name = stage.self.empty() ? stage.default_backend : stage.self;
  try {
    return make_attention(name, device, say, &log, tuning.shared_table());
  } catch (const InputError& error) {  // it names the backend
    throw InputError("--attention: {}", error.what());
  }
}

// There is nothing to choose on the CPU, and nothing was measured but bfloat16.
Tuning device_tuning(const RunConfig& config, const Runtime& runtime, Log& log) {
  if (runtime.device.is_cpu() || runtime.dtype != at::kBFloat16) return {};
  const TunedDevice own = tuned_device(runtime.device);
  Tuning tuning;
  try {
    tuning = find_tuning(config.tuned_config_dir, own);
  } catch (const InputError& error) {  // it names the file
    throw InputError("--tuned-config-dir: {}", error.what());
  }
  if (tuning.file == nullptr) {
    log.info_once(fmt::format(
        "no tuning of {}: the usual kernels are taken; diptych tune measures which are fastest",
        own.name));
    return tuning;
  }
  log.debug("tuning {}, {}", tuning.table()->hash(), tuning.origin);
  const auto torch = tuning.file->versions.find("torch");
  if (torch == tuning.file->versions.end() || torch->second != TORCH_VERSION) {
    log.info_once(fmt::format("{}: was not measured with libtorch " TORCH_VERSION
                              "; diptych tune measures again",
                              tuning.origin));
  }
  return tuning;
}

}  // namespace

Runtime make_runtime(const RunConfig& config, Log& log, TraceSink* trace) {
  Runtime runtime;
  runtime.device = resolve_device(config.device, log);
  runtime.dtype = resolve_dtype(config.dtype, runtime.device);
  runtime.tuning = device_tuning(config, runtime, log);
  runtime.kernels = {resolve_kernel_policy(config.kernels), runtime.tuning.table()};
  if (runtime.kernels == KernelPolicy::strict && runtime.device.is_cpu()) {
    throw InputError("--kernels strict: needs a CUDA device, the run is on the CPU");
  }
  runtime.quantization =
      resolve_quantization(config.quantization, runtime.device, runtime.dtype, runtime.kernels);
  runtime.read_attention =
      stage_attention(config.read_attention, runtime.device, runtime.tuning, log);
  runtime.paint_attention =
      stage_attention(config.paint_attention, runtime.device, runtime.tuning, log);
  runtime.trace = trace;
  return runtime;
}

}  // namespace diptych
