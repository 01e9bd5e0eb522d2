#include "lib/session/make_runtime.h"

#include <map>
#include <memory>

#include <fmt/format.h>
#include <torch/version.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/runtime/threads.h"

namespace diptych {
namespace {

// The backend that the stage configuration names for a role.
const std::string& backend_name(const StageAttention& stage, AttentionRole role) {
  const bool set_apart = role == AttentionRole::self && !stage.self.empty();
  return set_apart ? stage.self : stage.default_backend;
}

// Roles of the same name share a backend. `field`: of the stage's attention.
StageBackends stage_backends(std::string_view field, const StageAttention& stage,
                             std::span<const AttentionRole> roles, const Runtime& runtime,
                             Quantization quantization, Log& log) {
  const auto say = [](void* context, const std::string& text) {
    static_cast<Log*>(context)->warning_once(text);
  };
  std::map<std::string, std::shared_ptr<AttentionBackend>> made;
  StageBackends backends;
  for (const AttentionRole role : roles) {
    const std::string& name = backend_name(stage, role);
    std::shared_ptr<AttentionBackend>& backend = made[name];
    about(attention_setting(field, stage), [&] {
      if (backend == nullptr) {
        backend = make_attention(
            name, runtime.device,
            {say, &log, runtime.tuning.shared_table(), runtime.kernels, quantization});
      }
    });
    backends.set(role, backend);
  }
  return backends;
}

// Whether the autoencoder of a run on the device, in that dtype, computes in TF32. Throws
// InputError where it was asked for and the device has no such thing.
bool resolve_vae_tf32(VaeDtype choice, at::Device device, at::ScalarType dtype) {
  if (choice == VaeDtype::automatic) return device.is_cuda() && dtype != at::kFloat;
  if (choice == VaeDtype::tf32 && !device.is_cuda()) {
    throw InputError(Setting::of("vae_dtype", "tf32"),
                     "needs a CUDA device, the run is on the CPU");
  }
  return choice == VaeDtype::tf32;
}

// Why no tuning is used, or null.
const char* why_untuned(const Runtime& runtime) {
  if (runtime.device.is_cpu()) return "on the CPU";
  return runtime.dtype == at::kBFloat16 ? nullptr : "in float32: only bfloat16 is measured";
}

Tuning device_tuning(const RunConfig& config, const Runtime& runtime, Log& log) {
  const std::filesystem::path& folder = config.tuned_config_dir;
  const Setting setting = Setting::of("tuned_config_dir");
  if (!folder.empty()) require_folder(folder, setting);
  if (const char* why = why_untuned(runtime)) {
    if (!folder.empty()) log.warning_once(fmt::format("{}: has no effect {}", setting.label, why));
    return {};
  }
  const TunedDevice own = tuned_device(runtime.device);
  Tuning tuning = about(setting, [&] { return find_tuning(folder, own); });
  for (const std::string& note : tuning_notes(tuning, folder, own, TORCH_VERSION))
    log.info_once(note);
  if (tuning.file != nullptr) log.debug("tuning {}, {}", tuning.name(), tuning.origin);
  return tuning;
}

// `auto` never takes it there. It may be wanted all the same: it halves the memory.
void warn_of_slow_dtype(const RunConfig& config, at::Device device, Log& log) {
  if (config.dtype != DtypeChoice::bfloat16 || !device.is_cpu() || cpu_multiplies_bfloat16())
    return;
  log.warning_once(fmt::format(
      "{} bfloat16: slow on this CPU, which has neither AVX512-BF16 nor AMX-BF16; float32 is "
      "faster and takes twice the memory",
      Setting::of("dtype").label));
}

}  // namespace

Setting attention_setting(std::string_view field, const StageAttention& stage) {
  const std::string name = fmt::format("{}{}", field, stage.self.empty() ? "" : "_self");
  return Setting::of(name).called("--attention");
}

Runtime make_runtime(const RunConfig& config, Log& log, std::span<const AttentionRole> roles,
                     const std::function<StoredWeights()>& stored) {
  require_threads();
  set_up_vector_functions();
  Runtime runtime;
  runtime.device = resolve_device(config.device, log);
  if (runtime.device.is_cuda())
    runtime.opening = std::make_shared<const DeviceOpening>(runtime.device, log);
  runtime.dtype = resolve_dtype(config.dtype, runtime.device, stored);
  warn_of_slow_dtype(config, runtime.device, log);
  runtime.vae_tf32 = resolve_vae_tf32(config.vae_dtype, runtime.device, runtime.dtype);
  runtime.tuning = device_tuning(config, runtime, log);
  runtime.kernels = {config.kernels, runtime.tuning.table()};
  if (runtime.kernels == KernelPolicy::strict && runtime.device.is_cpu()) {
    throw InputError(Setting::of("kernels", "strict"),
                     "needs a CUDA device, the run is on the CPU");
  }
  require_quantizable(config.quantization, runtime.device, runtime.dtype, runtime.kernels);
  runtime.quantization = config.quantization;
  runtime.ranks = config.ranks;
  // Not fp8 for what is read: that happens once, and every denoise step attends to it.
  runtime.read_attention = stage_backends("read_attention", config.read_attention, roles, runtime,
                                          Quantization::none, log);
  runtime.paint_attention = stage_backends("paint_attention", config.paint_attention, roles,
                                           runtime, runtime.quantization, log);
  return runtime;
}

}  // namespace diptych
