#include "lib/pipelines/make_runtime.h"

#include "lib/base/error.h"

namespace diptych {
namespace {

std::unique_ptr<AttentionBackend> stage_attention(const StageAttention& stage, at::Device device,
                                                  Log& log) {
  const auto say = [](void* context, const std::string& text) {
    static_cast<Log*>(context)->warning_once(text);
  };
  const std::string& name = stage.self.empty() ? stage.default_backend : stage.self;
  try {
    return make_attention(name, device, say, &log);
  } catch (const InputError& error) {  // it names the backend
    throw InputError("--attention: {}", error.what());
  }
}

}  // namespace

Runtime make_runtime(const RunConfig& config, Log& log, TraceSink* trace) {
  Runtime runtime;
  runtime.device = resolve_device(config.device, log);
  runtime.dtype = resolve_dtype(config.dtype, runtime.device);
  runtime.kernels = resolve_kernel_policy(config.kernels);
  if (runtime.kernels == KernelPolicy::strict && runtime.device.is_cpu()) {
    throw InputError("--kernels strict: needs a CUDA device, the run is on the CPU");
  }
  runtime.read_attention = stage_attention(config.read_attention, runtime.device, log);
  runtime.paint_attention = stage_attention(config.paint_attention, runtime.device, log);
  runtime.trace = trace;
  return runtime;
}

}  // namespace diptych
