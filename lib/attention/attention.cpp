#include "lib/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lib/attention/backends.h"
#include "lib/base/error.h"
#include "lib/ops/hopper_attention.h"

#if DIPTYCH_HAVE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace diptych {
namespace {

// The backends in `auto`'s order of preference.
struct BackendKind {
  std::string_view name;
  std::optional<std::string> (*unavailable)(at::Device device);
  std::unique_ptr<AttentionBackend> (*make)(at::Device device);
};

std::unique_ptr<AttentionBackend> make_cudnn_or_throw([[maybe_unused]] at::Device device) {
#if DIPTYCH_HAVE_CUDNN
  return make_cudnn(device);
#else
  throw InputError("attention backend cudnn: {}", *cudnn_unavailable(device));
#endif
}

constexpr std::array kBackends = {
    BackendKind{kHopper, hopper_unavailable, make_hopper},
    BackendKind{"cudnn", cudnn_unavailable, make_cudnn_or_throw},
    BackendKind{"flash", flash_unavailable, make_flash},
    BackendKind{"sdpa", sdpa_unavailable, [](at::Device) { return make_sdpa(); }},
    BackendKind{"math", math_unavailable, [](at::Device) { return make_math(); }},
};

// Those that no user asks for: parts of `auto`, and that of replays.
constexpr std::array kInternal = {
    BackendKind{kSplitKv, splitkv_unavailable, make_splitkv},
    BackendKind{kHopperFp8, hopper_unavailable, make_hopper_fp8},
    BackendKind{kMathInOrder, math_unavailable, [](at::Device) { return make_math_in_order(); }},
};

const BackendKind* find_backend(std::string_view name) {
  const auto* const internal = std::ranges::find(kInternal, name, &BackendKind::name);
  if (internal != kInternal.end()) return internal;
  const auto* const found = std::ranges::find(kBackends, name, &BackendKind::name);
  return found == kBackends.end() ? nullptr : found;
}

std::unique_ptr<AttentionBackend> make_auto_for(at::Device device, AutoOptions options) {
  const std::optional<ComputeCapability> capability = compute_capability(device);
  // Before Hopper cuDNN is no faster than FlashAttention-2 and refuses more shapes.
  const bool prefers_cudnn = capability.has_value() && capability->major >= 9;
  const bool is_hopper = capability.has_value() && capability->major == 9;
  const bool own_kernels = options.kernels != KernelPolicy::reference;
  std::vector<std::unique_ptr<AttentionBackend>> preferred;
  for (const BackendKind& kind : kBackends) {
    if (kind.name == "cudnn" && !prefers_cudnn) continue;
    if (kind.name == kHopper && (!is_hopper || !own_kernels)) continue;
    if (kind.name == "flash" && device.is_cpu()) continue;
    if (const std::optional<std::string> reason = kind.unavailable(device)) {
      if (options.say != nullptr)
        options.say(options.context, fmt::format("attention without {}: {}", kind.name, *reason));
      continue;
    }
    preferred.push_back(kind.make(device));
  }
  if (preferred.empty()) throw InputError("attention: {}", *math_unavailable(device));
  // On older GPUs cuDNN serves only calls for which it was measured to be faster.
  if (options.tuning != nullptr && !prefers_cudnn && !cudnn_unavailable(device))
    preferred.push_back(make_cudnn_or_throw(device));
  // These come last: `auto` puts them first for the calls they are meant for, and no other call
  // should report that they cannot serve it.
  if (own_kernels && !splitkv_unavailable(device)) preferred.push_back(make_splitkv(device));
  if (own_kernels && options.quantization == Quantization::fp8 && !hopper_unavailable(device))
    preferred.push_back(make_hopper_fp8(device));
  return make_auto(std::move(preferred), options.say, options.context, std::move(options.tuning));
}

std::optional<std::string> missing_gpu(at::Device device) {
  if (device.is_cuda() && !at::hasCUDA()) return "torch sees no CUDA device";
  return std::nullopt;
}

void check_sizes(const AttentionCall& call) {
  const AttentionLengths& lengths = *call.lengths;
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  TORCH_CHECK(q.dim() == 3 && q.size(0) == lengths.total_q, "[attention] q ", q.sizes(), " for ",
              lengths.total_q, " queries");
  TORCH_CHECK(k.dim() == 4 && k.size(0) == lengths.samples() && k.size(1) == lengths.capacity,
              "[attention] k ", k.sizes(), " for ", lengths.samples(), " samples of capacity ",
              lengths.capacity);
  TORCH_CHECK(v.sizes() == k.sizes(), "[attention] v ", v.sizes(), " beside k ", k.sizes());
  TORCH_CHECK(q.size(2) == k.size(3), "[attention] head_dim ", q.size(2), " and ", k.size(3));
  TORCH_CHECK(k.size(2) > 0 && q.size(1) % k.size(2) == 0, "[attention] ", q.size(1),
              " heads over ", k.size(2), " key heads");
}

void check_extra(const char* name, const Tensor& extra, const AttentionCall& call) {
  TORCH_CHECK(extra.scalar_type() == at::kFloat && extra.device() == call.q.device(),
              "[attention] ", name, " is ", extra.scalar_type(), " on ", extra.device(),
              ", expected float32 on ", call.q.device());
}

void check_extras(const AttentionCall& call) {
  const AttentionLengths& lengths = *call.lengths;
  const std::int64_t heads = call.q.size(1);
  if (const Tensor& bias = call.bias; bias.defined()) {
    check_extra("bias", bias, call);
    TORCH_CHECK(bias.sizes() == at::IntArrayRef({heads, lengths.max_q, lengths.capacity}),
                "[attention] bias ", bias.sizes(), " for ", heads, " heads, up to ", lengths.max_q,
                " queries and a capacity of ", lengths.capacity);
  }
  if (const Tensor& bias = call.last_key_bias; bias.defined()) {
    check_extra("last_key_bias", bias, call);
    TORCH_CHECK(bias.sizes() == at::IntArrayRef({lengths.samples()}) && bias.is_contiguous() &&
                    !call.bias.defined(),
                "[attention] last_key_bias ", bias.sizes(), " with strides ", bias.strides(),
                " for ", lengths.samples(), " samples",
                call.bias.defined() ? ", beside a bias" : "");
  }
  if (const Tensor& sums = call.log_sum_exp; sums.defined()) {
    check_extra("log_sum_exp", sums, call);
    TORCH_CHECK(sums.sizes() == at::IntArrayRef({lengths.total_q, heads}),
                "[attention] log_sum_exp ", sums.sizes(), " for ", lengths.total_q, " queries and ",
                heads, " heads");
  }
}

bool rows_contiguous(const Tensor& keys) {
  return keys.stride(3) == 1 && (keys.size(2) == 1 || keys.stride(2) == keys.size(3));
}

bool reads_16_bytes(const Tensor& tensor) {
  const auto bytes = tensor.element_size();
  for (std::int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) * bytes % 16 != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

}  // namespace

std::unique_ptr<AttentionBackend> make_attention(std::string_view name, at::Device device,
                                                 AutoOptions options) {
  if (name == "auto") return make_auto_for(device, std::move(options));
  const BackendKind* kind = find_backend(name);
  if (kind == nullptr) {
    throw InputError(
        "attention backend \"{}\" is not known; known are auto, hopper, cudnn, flash, sdpa, math",
        name);
  }
  if (const std::optional<std::string> reason = kind->unavailable(device))
    throw InputError("attention backend {}: {}", name, *reason);
  return kind->make(device);
}

LinearOperand AttentionBackend::forward_rows(const AttentionCall& call, Quantization) const {
  return {forward(call).flatten(1), {}};
}

LinearOperand AttentionBackend::forward_projected(QkNormRope rope, AttentionCall call,
                                                  Quantization format, KernelPolicy kernels) const {
  call.q = qk_norm_rope(rope, kernels);
  rope = {};
  return forward_rows(call, format);
}

std::optional<std::string> AttentionBackend::unsupported(const AttentionCall& call) const {
  return kind_unsupported(kind_of(call));
}

std::optional<std::string> attention_unsupported(std::string_view name, const AttentionKind& kind) {
  if (const BackendKind* backend = find_backend(name)) {
    if (std::optional<std::string> reason = backend->unavailable(kind.device)) return reason;
  }
  return make_attention(name, kind.device)->kind_unsupported(kind);
}

std::vector<AttentionInfo> list_attention(at::Device device) {
  std::vector<AttentionInfo> infos;
  for (const BackendKind& kind : kBackends) {
    infos.push_back({std::string(kind.name), kind.unavailable(device)});
  }
  return infos;
}

std::optional<ComputeCapability> compute_capability([[maybe_unused]] at::Device device) {
#if DIPTYCH_HAVE_CUDA
  if (device.is_cuda() && at::hasCUDA()) {
    const cudaDeviceProp* properties = device.has_index()
                                           ? at::cuda::getDeviceProperties(device.index())
                                           : at::cuda::getCurrentDeviceProperties();
    return ComputeCapability{properties->major, properties->minor};
  }
#endif
  return std::nullopt;
}

std::optional<std::string> math_unavailable(at::Device device) {
  return missing_gpu(device);
}
std::optional<std::string> sdpa_unavailable(at::Device device) {
  return missing_gpu(device);
}

std::optional<std::string> flash_unavailable(at::Device device) {
  if (!device.is_cuda()) return fmt::format("needs a CUDA device, not {}", device.str());
#if DIPTYCH_HAVE_CUDA
  if (std::optional<std::string> reason = missing_gpu(device)) return reason;
  const ComputeCapability capability = compute_capability(device).value();
  if (capability.major < 8) {
    return fmt::format("needs compute capability 8.0 or newer, found {}.{}", capability.major,
                       capability.minor);
  }
  return std::nullopt;
#else
  return "this build is without CUDA";
#endif
}

std::optional<std::string> splitkv_unavailable(at::Device device) {
  if (!device.is_cuda()) return fmt::format("needs a CUDA device, not {}", device.str());
#if DIPTYCH_HAVE_CUDA
  return missing_gpu(device);
#else
  return "this build is without CUDA";
#endif
}

std::optional<std::string> hopper_unavailable(at::Device device) {
  if (!device.is_cuda()) return fmt::format("needs a CUDA device, not {}", device.str());
#if DIPTYCH_HAVE_CUDA
  if (std::optional<std::string> reason = missing_gpu(device)) return reason;
  const ComputeCapability capability = compute_capability(device).value();
  if (capability.major != 9 || capability.minor != 0) {
    return fmt::format("needs compute capability 9.0, found {}.{}", capability.major,
                       capability.minor);
  }
  const at::Device there(device.type(),
                         device.has_index() ? device.index() : at::cuda::current_device());
  if (!has_hopper_attention(there)) return "this build has no code for sm_90a";
  return std::nullopt;
#else
  return "this build is without CUDA";
#endif
}

#if !DIPTYCH_HAVE_CUDNN
std::optional<std::string> cudnn_unavailable(at::Device device) {
  if (std::optional<std::string> reason = flash_unavailable(device)) return reason;
  return "this build is without cudnn-frontend or cuDNN headers";
}
#endif

void check_call(const AttentionCall& call) {
  TORCH_CHECK(call.lengths != nullptr, "[attention] a call without lengths");
  check_sizes(call);
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
              "[attention] q, k, v are ", q.scalar_type(), ", ", k.scalar_type(), ", ",
              v.scalar_type());
  TORCH_CHECK(q.device() == k.device() && q.device() == v.device() &&
                  q.device() == call.lengths->k_device.device(),
              "[attention] q, k, v, lengths are on ", q.device(), ", ", k.device(), ", ",
              v.device(), ", ", call.lengths->k_device.device());
  TORCH_CHECK(q.stride(2) == 1, "[attention] q has strides ", q.strides());
  TORCH_CHECK(rows_contiguous(k) && rows_contiguous(v), "[attention] k, v have strides ",
              k.strides(), ", ", v.strides());
  TORCH_CHECK(std::isfinite(call.scale) && call.scale > 0, "[attention] scale ", call.scale);
  check_extras(call);
  for (std::size_t i = 0; call.causal && i < call.lengths->q.size(); ++i) {
    TORCH_CHECK(call.lengths->q[i] <= call.lengths->k[i], "[attention] causal with ",
                call.lengths->q[i], " queries and ", call.lengths->k[i], " keys in sample ", i);
  }
}

void require_supported(const AttentionBackend& backend, const AttentionCall& call) {
  if (const std::optional<std::string> reason = backend.unsupported(call)) {
    throw InputError("attention backend {}: {}", backend.name(), *reason);
  }
}

AttentionKind kind_of(const AttentionCall& call) {
  return {call.q.device(), call.q.scalar_type(), call.q.size(2)};
}

std::optional<std::string> dtype_unsupported(const AttentionKind& kind) {
  const at::ScalarType dtype = kind.dtype;
  if (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) return std::nullopt;
  return fmt::format("needs float32, bfloat16 or float16, not {}", c10::toString(dtype));
}

std::optional<std::string> half_precision_unsupported(const AttentionKind& kind,
                                                      std::int64_t max_head_dim) {
  if (!kind.device.is_cuda()) return fmt::format("needs a CUDA device, not {}", kind.device.str());
  if (kind.dtype != at::kBFloat16 && kind.dtype != at::kHalf) {
    return fmt::format("needs bfloat16 or float16, not {}", c10::toString(kind.dtype));
  }
  if (kind.head_dim % 8 != 0 || kind.head_dim > max_head_dim) {
    return fmt::format("needs a head_dim that is a multiple of 8 and at most {}, not {}",
                       max_head_dim, kind.head_dim);
  }
  return std::nullopt;
}

std::optional<std::string> alignment_unsupported(const AttentionCall& call) {
  if (!reads_16_bytes(call.q) || !reads_16_bytes(call.k) || !reads_16_bytes(call.v)) {
    return "needs rows of q, k and v that begin at multiples of 16 bytes";
  }
  return std::nullopt;
}

bool has_bias(const AttentionCall& call) {
  return call.bias.defined() || call.last_key_bias.defined();
}

Tensor last_key_mask(const AttentionCall& call, std::int64_t first, std::int64_t samples,
                     std::int64_t keys) {
  const Tensor mask = at::zeros({samples, 1, 1, keys}, call.last_key_bias.options());
  const Tensor bias = call.last_key_bias.narrow(0, first, samples);
  mask.select(3, keys - 1).copy_(bias.view({samples, 1, 1}));
  return mask;
}

std::optional<std::string> bias_unsupported(const AttentionCall& call) {
  return has_bias(call) ? std::optional<std::string>("takes no bias") : std::nullopt;
}

std::optional<std::string> log_sum_exp_unsupported(const AttentionCall& call) {
  return call.log_sum_exp.defined() ? std::optional<std::string>("gives no log-sum-exp")
                                    : std::nullopt;
}

std::optional<std::string> extras_unsupported(const AttentionCall& call) {
  if (std::optional<std::string> reason = bias_unsupported(call)) return reason;
  return log_sum_exp_unsupported(call);
}

bool served_in_fp8(const AttentionBackend& backend) {
  return backend.served_by().find(kHopperFp8) != std::string::npos;
}

std::int64_t sample_stride(const Tensor& keys) {
  return keys.size(0) == 1 ? keys.size(1) * keys.stride(1) : keys.stride(0);
}

}  // namespace diptych
