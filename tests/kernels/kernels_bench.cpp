// How fast each kernel is at the sizes of BAGEL-7B, against the copy bandwidth of the same GPU.
// Every kernel here is bound by memory, so the share of that bandwidth says how much is left. The
// launches of one measurement are in one CUDA graph and rotate over buffers that together exceed
// the level 2 cache.
#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "kernels/linear_row/linear_row.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/quantize_attention/quantize_attention.h"
#include "kernels/quantize_rows/quantize_rows.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu_mul/silu_mul.h"
#include "lib/base/error.h"
#include "tests/kernels/kernel_dtype.h"

using namespace diptych;
using diptych::testing::kernel_dtype;
using diptych::testing::Tensor;

namespace {

constexpr std::int64_t kWidth = 3584, kInner = 18944, kHeads = 28, kKvHeads = 4, kHeadDim = 128;
constexpr double kRotatedBytes = 512e6;  // several times the level 2 cache of any GPU served
constexpr std::size_t kMinLaunches = 16, kMaxBuffers = 64;

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw RunError("{}: {}", what, cudaGetErrorString(error));
}
void require(const char* error, const char* what) {
  if (error != nullptr) throw RunError("{}: {}", what, error);
}

// One set of buffers and the launch on it.
using Launch = std::function<const char*(CUstream_st*)>;
struct Case {
  std::string name;
  double bytes;                  // moved by one launch
  std::function<Launch()> make;  // allocates a set
};

double median_ms(const Case& bench, int repeats) {
  const auto wanted = static_cast<std::size_t>(kRotatedBytes / bench.bytes) + 2;
  std::vector<Launch> sets(std::min(wanted, kMaxBuffers));
  for (Launch& set : sets) set = bench.make();
  require(cudaDeviceSynchronize(), "filling the buffers");
  const std::size_t launches = (kMinLaunches + sets.size() - 1) / sets.size() * sets.size();

  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  require(cudaStreamCreate(&stream), "cudaStreamCreate");
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of the capture");
  for (std::size_t i = 0; i < launches; ++i)
    require(sets[i % sets.size()](stream), bench.name.c_str());
  require(cudaStreamEndCapture(stream, &graph), "end of the capture");
  require(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  require(cudaEventCreate(&begin), "cudaEventCreate");
  require(cudaEventCreate(&end), "cudaEventCreate");

  std::vector<float> times;
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp + repeats; ++i) {
    require(cudaEventRecord(begin, stream), "cudaEventRecord");
    require(cudaGraphLaunch(ready, stream), "cudaGraphLaunch");
    require(cudaEventRecord(end, stream), "cudaEventRecord");
    require(cudaEventSynchronize(end), bench.name.c_str());
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= kWarmUp) times.push_back(ms);
  }
  require(cudaEventDestroy(begin), "cudaEventDestroy");
  require(cudaEventDestroy(end), "cudaEventDestroy");
  require(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return static_cast<double>(times[static_cast<std::size_t>(repeats / 2)]) /
         static_cast<double>(launches);
}

Case copy_case() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto make = []() -> Launch {
    const auto options = at::TensorOptions(at::kByte).device(at::kCUDA);
    const Tensor from = at::zeros({kBytes}, options), to = at::empty({kBytes}, options);
    return [from, to](CUstream_st* stream) -> const char* {
      const cudaError_t error =
          cudaMemcpyAsync(to.data_ptr(), from.data_ptr(), static_cast<std::size_t>(kBytes),
                          cudaMemcpyDeviceToDevice, stream);
      return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
    };
  };
  return {"copy 1 GiB", 2.0 * static_cast<double>(kBytes), make};
}

// What a kernel is timed as.
enum class Form { plain, routed, quantised };
std::string suffix(Form form) {
  return form == Form::plain ? "" : form == Form::routed ? ", routed" : ", to e4m3";
}

// One row in 512, at least one, goes to the second set, about as a picture's markers do.
struct Routes {
  std::int64_t first, second;
  Tensor index;  // of the second set; the first is the range before
  Routes(std::int64_t rows, const at::TensorOptions& options)
      : first(rows - (rows + 511) / 512),
        second(rows - first),
        index(at::arange(first, rows, options.dtype(at::kLong))) {}
  kernels::RowSet range() const { return {nullptr, 0, first}; }
  kernels::RowSet list() const { return {index.const_data_ptr<std::int64_t>(), 0, second}; }
};

// Shape 0 is in use, the others are beside it.
std::string shape_suffix(int shape) {
  return shape == 0 ? "" : fmt::format(", shape {}", shape);
}

Case norm_case(std::int64_t rows, bool add, Form form, const at::TensorOptions& options,
               int shape = 0) {
  const bool quantised = form == Form::quantised;
  const auto make = [rows, add, form, quantised, options, shape]() -> Launch {
    const Tensor x = at::randn({rows, kWidth}, options);
    const Tensor y = at::empty({rows, kWidth}, quantised ? options.dtype(at::kByte) : options);
    const Tensor scales = at::empty({rows}, options.dtype(at::kFloat));
    const Tensor delta = add ? at::randn({rows, kWidth}, options) : Tensor();
    const Tensor weight = at::ones({kWidth}, options), other = weight.clone();
    const Routes routes(rows, options);
    kernels::RmsNormArgs args;
    args.x = x.data_ptr();
    args.sets[0] = {weight.data_ptr(), {nullptr, 0, rows}};
    if (form == Form::routed) {
      args.sets[0].rows = routes.range();
      args.sets[1] = {other.data_ptr(), routes.list()};
    }
    args.y = y.data_ptr();
    if (quantised) args.scales = scales.data_ptr<float>();
    args.rows = rows;
    args.width = args.x_stride = args.y_stride = args.delta_stride = args.sum_stride = kWidth;
    args.eps = 1e-6F;
    args.dtype = kernel_dtype(x.scalar_type());
    args.shape = shape;
    if (add) {
      args.delta = delta.data_ptr();
      args.sum = x.data_ptr();
    }
    return [args, x, y, scales, delta, weight, other, routes](CUstream_st* stream) {
      return kernels::rms_norm(args, stream);
    };
  };
  const auto size = static_cast<double>(options.dtype().itemsize());
  const double bytes = (add ? 3 : 1) * size + (quantised ? 1 : size);
  return {std::string("rms_norm") + (add ? " with add" : "") + suffix(form) + shape_suffix(shape),
          static_cast<double>(rows * kWidth) * bytes, make};
}

Case silu_case(std::int64_t rows, Form form, const at::TensorOptions& options, int shape = 0) {
  const bool quantised = form == Form::quantised;
  const auto make = [rows, quantised, options, shape]() -> Launch {
    const Tensor gate_up = at::randn({rows, 2 * kInner}, options);
    const Tensor y = at::empty({rows, kInner}, quantised ? options.dtype(at::kByte) : options);
    const Tensor scales = at::empty({rows}, options.dtype(at::kFloat));
    kernels::SiluMulArgs args;
    args.gate_up = gate_up.data_ptr();
    args.y = y.data_ptr();
    args.rows = rows;
    args.inner = args.y_stride = kInner;
    args.gate_up_stride = 2 * kInner;
    args.dtype = kernel_dtype(gate_up.scalar_type());
    args.shape = shape;
    if (quantised) args.scales = scales.data_ptr<float>();
    return
        [args, gate_up, y, scales](CUstream_st* stream) { return kernels::silu_mul(args, stream); };
  };
  const auto size = static_cast<double>(options.dtype().itemsize());
  return {"silu_mul" + suffix(form) + shape_suffix(shape),
          static_cast<double>(rows * kInner) * (2 * size + (quantised ? 1 : size)), make};
}

Case rope_case(std::int64_t rows, bool every_step, Form form, const at::TensorOptions& options) {
  constexpr std::int64_t kRow = (kHeads + 2 * kKvHeads) * kHeadDim;
  const auto make = [rows, every_step, form, options]() -> Launch {
    const Tensor qkv = at::randn({rows, kRow}, options),
                 q = at::empty({rows, kHeads, kHeadDim}, options);
    const Tensor weight = at::ones({kHeadDim}, options), other = weight.clone();
    const Routes routes(rows, options);
    const Tensor angles = at::randn({rows, kHeadDim / 2}, options.dtype(at::kFloat));
    const Tensor cos = angles.cos(), sin = angles.sin();
    const Tensor slots = at::arange(rows, options.dtype(at::kLong));
    const Tensor keys = at::empty({1, rows, kKvHeads, kHeadDim}, options),
                 values = at::empty_like(keys);
    kernels::QkNormRopeArgs args;
    args.qkv = qkv.data_ptr();
    args.sets[0] = {weight.data_ptr(), weight.data_ptr(), {nullptr, 0, rows}};
    if (form == Form::routed) {
      args.sets[0].rows = routes.range();
      args.sets[1] = {other.data_ptr(), other.data_ptr(), routes.list()};
    }
    args.cos = cos.data_ptr<float>();
    args.sin = sin.data_ptr<float>();
    args.slots = slots.data_ptr<std::int64_t>();
    args.q = q.data_ptr();
    args.keys = keys.data_ptr();
    args.values = values.data_ptr();
    args.rows = args.capacity = rows;
    args.heads = kHeads;
    args.kv_heads = kKvHeads;
    args.head_dim = kHeadDim;
    args.samples = 1;
    args.qkv_stride = kRow;
    args.cos_stride = args.sin_stride = kHeadDim / 2;
    args.key_stride = args.value_stride = rows * kKvHeads * kHeadDim;
    args.eps = 1e-6F;
    args.round_every_step = every_step;
    args.dtype = kernel_dtype(q.scalar_type());
    return [args, qkv, q, weight, other, routes, cos, sin, slots, keys,
            values](CUstream_st* stream) { return kernels::qk_norm_rope(args, stream); };
  };
  const double row_bytes =
      2.0 * static_cast<double>(kRow) * static_cast<double>(options.dtype().itemsize()) +
      4.0 * static_cast<double>(kHeadDim) + 8.0;
  return {std::string("qk_norm_rope ") + (every_step ? "every step" : "at the end") + suffix(form),
          static_cast<double>(rows) * row_bytes, make};
}

Case quantize_case(std::int64_t rows, kernels::Stored stored, const at::TensorOptions& options,
                   int shape = 0) {
  const auto make = [rows, stored, options, shape]() -> Launch {
    const Tensor x = at::randn({rows, kWidth}, options);
    const Tensor values = at::empty({rows, kWidth}, options.dtype(at::kByte)),
                 scales = at::empty({rows}, options.dtype(at::kFloat));
    kernels::QuantizeRowsArgs args;
    args.x = x.data_ptr();
    args.values = values.data_ptr();
    args.scales = scales.data_ptr<float>();
    args.rows = rows;
    args.width = args.x_stride = kWidth;
    args.dtype = kernel_dtype(x.scalar_type());
    args.stored = stored;
    args.shape = shape;
    return [args, x, values, scales](CUstream_st* stream) {
      return kernels::quantize_rows(args, stream);
    };
  };
  const auto element = static_cast<double>(options.dtype().itemsize());
  const char* name = stored == kernels::Stored::e4m3 ? "quantize_rows e4m3" : "quantize_rows int8";
  return {name + shape_suffix(shape),
          static_cast<double>(rows) * (static_cast<double>(kWidth) * (element + 1) + 4), make};
}

// q of `rows` queries in two samples, and their keys and values behind a prompt.
Case quantize_attention_case(std::int64_t rows, const at::TensorOptions& options) {
  constexpr std::int64_t kSamples = 2, kPrompt = 64, kKvWidth = kKvHeads * kHeadDim;
  const std::int64_t capacity = rows / kSamples + kPrompt;
  const auto make = [rows, capacity, options]() -> Launch {
    const auto bytes = options.dtype(at::kByte), floats = options.dtype(at::kFloat);
    const Tensor q = at::randn({rows, kWidth}, options),
                 keys = at::randn({kSamples, capacity, kKvWidth}, options),
                 values = at::randn_like(keys),
                 counts = at::full({kSamples}, capacity, options.dtype(at::kInt));
    const std::int64_t blocks = kernels::hopper_fp8_value_blocks(capacity);
    const std::vector<Tensor> written = {
        at::empty(q.sizes(), bytes),
        at::empty(keys.sizes(), bytes),
        at::empty({kSamples, kKvHeads, blocks, kernels::kValueBlockBytes}, bytes),
        at::empty({kernels::kAttentionScales}, floats),
        at::empty({rows}, floats),
        at::empty({kernels::kQuantizeAttentionScratch}, options.dtype(at::kInt))};
    kernels::QuantizeAttentionArgs args;
    args.q = q.data_ptr();
    args.keys = keys.data_ptr();
    args.values = values.data_ptr();
    args.key_counts = counts.data_ptr<std::int32_t>();
    args.q_values = written[0].data_ptr();
    args.key_values = written[1].data_ptr();
    args.value_values = written[2].data_ptr();
    args.scales = written[3].data_ptr<float>();
    args.row_scales = written[4].data_ptr<float>();
    args.most = static_cast<std::uint32_t*>(written[5].data_ptr());
    args.rows = rows;
    args.q_width = args.q_stride = kWidth;
    args.samples = kSamples;
    args.capacity = capacity;
    args.kv_width = args.key_row_stride = args.value_row_stride = kKvWidth;
    args.key_stride = args.value_stride = capacity * kKvWidth;
    args.value_blocks = blocks;
    args.dtype = kernel_dtype(q.scalar_type());
    return [args, q, keys, values, counts, written](CUstream_st* stream) {
      return kernels::quantize_attention(args, stream);
    };
  };
  const auto element = static_cast<double>(options.dtype().itemsize());
  const auto elements = [](std::int64_t rows_of, std::int64_t width) {
    return static_cast<double>(rows_of * width);
  };
  return {"quantize_attention",
          elements(rows, kWidth) * (element + 1) +
              2 * elements(kSamples * capacity, kKvWidth) * (2 * element + 1),
          make};
}

// The weights of gate and up.
Case dequantize_case(const at::TensorOptions& options) {
  const auto make = [options]() -> Launch {
    const Tensor values = at::ones({2 * kInner, kWidth}, options.dtype(at::kChar)),
                 scales = at::ones({2 * kInner}, options.dtype(at::kFloat)),
                 y = at::empty({2 * kInner, kWidth}, options);
    kernels::DequantizeRowsArgs args;
    args.values = values.data_ptr<std::int8_t>();
    args.scales = scales.data_ptr<float>();
    args.y = y.data_ptr();
    args.rows = 2 * kInner;
    args.width = kWidth;
    args.dtype = kernel_dtype(y.scalar_type());
    return [args, values, scales, y](CUstream_st* stream) {
      return kernels::dequantize_rows(args, stream);
    };
  };
  const auto element = static_cast<double>(options.dtype().itemsize());
  return {"dequantize_rows int8", static_cast<double>(2 * kInner * kWidth) * (element + 1), make};
}

struct Weight {
  const char* name;
  std::int64_t inputs, outputs;
};
constexpr Weight kGateUp = {"", kWidth, 2 * kInner}, kDown = {" down", kInner, kWidth};

Case linear_case(const Weight& size, std::int64_t rows, kernels::Stored stored,
                 const at::TensorOptions& options, int shape = 0) {
  const bool plain = stored == kernels::Stored::plain;
  const auto make = [size, rows, stored, plain, options, shape]() -> Launch {
    const Tensor x = at::randn({rows, size.inputs}, options),
                 y = at::empty({rows, size.outputs}, options);
    // Codes of every kind, below those of a NaN.
    const auto codes_of = [&](at::IntArrayRef sizes) {
      return at::randint(0, 127, sizes, options.dtype(at::kByte));
    };
    const Tensor weight = plain ? at::randn({size.outputs, size.inputs}, options)
                                : codes_of({size.outputs, size.inputs});
    const Tensor scales = at::ones({size.outputs}, options.dtype(at::kFloat));
    const bool codes = stored == kernels::Stored::e4m3 && rows > 1;
    const Tensor x_codes = codes_of({rows, size.inputs}),
                 x_scales = at::ones({rows}, options.dtype(at::kFloat));
    kernels::LinearRowArgs args;
    args.x = x.data_ptr();
    args.weight = weight.data_ptr();
    args.scales = plain ? nullptr : scales.data_ptr<float>();
    args.y = y.data_ptr();
    if (codes) {
      args.x = x_codes.data_ptr();
      args.x_scales = x_scales.data_ptr<float>();
    }
    args.rows = rows;
    args.inputs = size.inputs;
    args.outputs = size.outputs;
    args.dtype = kernel_dtype(x.scalar_type());
    args.stored = stored;
    args.shape = shape;
    return [args, x, x_codes, x_scales, y, weight, scales](CUstream_st* stream) {
      return kernels::linear_row(args, stream);
    };
  };
  const char* name = plain                             ? "linear_row"
                     : stored == kernels::Stored::e4m3 ? "linear_row e4m3"
                                                       : "linear_row int8";
  const auto element = static_cast<double>(options.dtype().itemsize());
  return {std::string(name) + size.name + shape_suffix(shape),
          static_cast<double>(size.outputs * size.inputs) * (plain ? element : 1), make};
}

void run(const std::vector<std::int64_t>& row_counts, at::ScalarType dtype, int repeats) {
  const auto options = at::TensorOptions(dtype).device(at::kCUDA);
  const auto gb_per_second = [](double bytes, double ms) { return bytes / (ms * 1e6); };
  const Case copy = copy_case();
  const double copy_ms = median_ms(copy, repeats);
  const double copy_rate = gb_per_second(copy.bytes, copy_ms);
  fmt::print("{:<34}{:>7}{:>10}{:>10}{:>9}{:>8}\n", c10::toString(dtype), "rows", "ms", "MB",
             "GB/s", "share");
  fmt::print("{:<34}{:>7}{:>10.4f}{:>10.1f}{:>9.0f}{:>8}\n", copy.name, "", copy_ms,
             copy.bytes / 1e6, copy_rate, "1.00");
  const auto print = [&](const Case& bench, std::int64_t rows) {
    const double ms = median_ms(bench, repeats), rate = gb_per_second(bench.bytes, ms);
    fmt::print("{:<34}{:>7}{:>10.4f}{:>10.1f}{:>9.0f}{:>8.2f}\n", bench.name, rows, ms,
               bench.bytes / 1e6, rate, rate / copy_rate);
  };
  using kernels::Stored;
  for (const std::int64_t rows : row_counts) {
    for (const Case& bench :
         {norm_case(rows, false, Form::plain, options), norm_case(rows, true, Form::plain, options),
          norm_case(rows, true, Form::routed, options),
          norm_case(rows, true, Form::quantised, options),
          norm_case(rows, true, Form::plain, options, 1),
          norm_case(rows, true, Form::quantised, options, 1), silu_case(rows, Form::plain, options),
          silu_case(rows, Form::quantised, options), silu_case(rows, Form::quantised, options, 1),
          silu_case(rows, Form::quantised, options, 2), rope_case(rows, true, Form::plain, options),
          rope_case(rows, false, Form::plain, options),
          rope_case(rows, false, Form::routed, options), quantize_case(rows, Stored::e4m3, options),
          quantize_case(rows, Stored::e4m3, options, 1), quantize_case(rows, Stored::i8, options),
          quantize_attention_case(rows, options)}) {
      print(bench, rows);
    }
  }
  // Whatever the row counts, these read the weights of gate and up.
  print(dequantize_case(options), 2 * kInner);
  for (const Stored stored : {Stored::plain, Stored::e4m3, Stored::i8}) {
    for (const Weight& size : {kGateUp, kDown}) print(linear_case(size, 1, stored, options), 1);
  }
  for (const std::int64_t rows : {2, 4, 8, 16}) {
    for (const Weight& size : {kGateUp, kDown})
      print(linear_case(size, rows, Stored::plain, options), rows);
  }
  for (const Stored stored : {Stored::e4m3, Stored::i8}) {
    for (const std::int64_t rows : {2, 4, 8, 16})
      print(linear_case(kGateUp, rows, stored, options), rows);
    for (int shape = 1; shape < kernels::kLinearShapes; ++shape) {
      for (const std::int64_t rows : {1, 4}) {
        for (const Weight& size : {kGateUp, kDown})
          print(linear_case(size, rows, stored, options, shape), rows);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kNoGpu = 77, kFailed = 3;
  CLI::App app("Times the CUDA kernels at BAGEL-7B's sizes against the GPU's copy bandwidth");
  std::vector<std::int64_t> rows{8192, 1024};
  at::ScalarType dtype = at::kBFloat16;
  int repeats = 20;
  app.add_option("--rows", rows, "row counts to try")->check(CLI::PositiveNumber);
  app.add_option("--dtype", dtype, "bf16, f16 or f32")
      ->transform(CLI::CheckedTransformer(std::map<std::string, at::ScalarType>{
          {"bf16", at::kBFloat16}, {"f16", at::kHalf}, {"f32", at::kFloat}}));
  app.add_option("--repeats", repeats, "measurements, of which the median counts")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kNoGpu;
  }
  try {
    const c10::InferenceMode inference;
    run(rows, dtype, repeats);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernels_bench: {}\n", error.what());
    return kFailed;
  }
  return 0;
}
