#include "kernels/decode_attention/decode_attention.h"
#include "kernels/device_vector.cuh"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 8;   // query heads a block serves with each key it reads
constexpr int kParts = 32;  // of the keys; 32 x 4 key heads fill the 132 multiprocessors of an H200
constexpr int kExtra = 2;   // floats of a part beside its sums: largest logit, sum of weights
constexpr std::int64_t kMaxDim = 256;
constexpr std::int64_t kMaxRows = 65535;  // blocks of a grid in y and z
constexpr float kNone = -1e30f;  // below every logit; finite, so that differences stay numbers

// A running softmax of kHeads heads over some keys; a lane holds kCount columns of the sums.
template <int kCount>
struct Running {
  float most[kHeads], weight[kHeads], sum[kHeads][kCount];
};

template <int kCount>
__device__ __forceinline__ void start(Running<kCount>& r) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    r.most[h] = kNone;
    r.weight[h] = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) r.sum[h][i] = 0;
  }
}

struct Place {
  std::int64_t group, first_head, kv_head;  // heads of this block, and the key head they read
  int heads;
};

// Whose keys a row reads; samples are few.
__device__ __forceinline__ std::int64_t sample_of(const DecodeAttentionArgs& args,
                                                  std::int64_t row) {
  std::int64_t sample = 0;
  while (sample + 1 < args.samples && args.query_starts[sample + 1] <= row) ++sample;
  return sample;
}

__device__ __forceinline__ Place place_of(const DecodeAttentionArgs& args) {
  Place p;
  p.group = args.heads / args.kv_heads;
  const std::int64_t slices = (p.group + kHeads - 1) / kHeads;
  p.kv_head = blockIdx.x / slices;
  const std::int64_t within = blockIdx.x % slices * kHeads;
  p.first_head = p.kv_head * p.group + within;
  p.heads = static_cast<int>(min(static_cast<std::int64_t>(kHeads), p.group - within));
  return p;
}

__device__ __forceinline__ float* part_of(const DecodeAttentionArgs& args, std::int64_t row,
                                          std::int64_t head, int part) {
  return args.parts + ((row * args.heads + head) * kParts + part) * (args.head_dim + kExtra);
}

// `lanes` neighbouring lanes share a key, kThreads / lanes keys are read at once.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) attend_part(const DecodeAttentionArgs args, int lanes) {
  extern __shared__ float shared[];
  const Place p = place_of(args);
  const int part = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % lanes, team = thread / lanes, teams = kThreads / lanes;
  const std::int64_t dim = args.head_dim, row = blockIdx.z, sample = sample_of(args, row);
  const std::int64_t keys =
      min(static_cast<std::int64_t>(max(args.key_count[sample], 1)), args.capacity);
  const std::int64_t each = (keys + kParts - 1) / kParts;
  const std::int64_t begin = part * each, end = min(begin + each, keys);

  float q[kHeads][kCount];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const std::int64_t head = p.first_head + min(h, p.heads - 1);
    const Vector<T, kCount> from = load<T, kCount>(
        static_cast<const T*>(args.q) + row * args.q_stride + head * dim + lane * kCount);
#pragma unroll
    for (int i = 0; i < kCount; ++i) q[h][i] = widen(from.at[i]) * args.scale;
  }
  Running<kCount> r;
  start(r);
  const std::int64_t start_at = sample * args.sample_stride + p.kv_head * dim + lane * kCount;
  const T* at = static_cast<const T*>(args.keys) + start_at;
  const T* values = static_cast<const T*>(args.values) + start_at;
  // The same count for all threads: the sums below take whole warps.
  for (std::int64_t first = begin; first < end; first += teams) {
    const std::int64_t key = first + team;
    const bool mine = key < end;
    const std::int64_t offset = (mine ? key : begin) * args.key_stride;
    const Vector<T, kCount> k = load<T, kCount>(at + offset);
    const Vector<T, kCount> v = load<T, kCount>(values + offset);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) dot += q[h][i] * widen(k.at[i]);
      const float whole = sum_lanes(dot, lanes);
      dot = mine ? whole : kNone;
      const float most = fmaxf(r.most[h], dot);
      const float keep = __expf(r.most[h] - most), weight = mine ? __expf(dot - most) : 0.0f;
      r.most[h] = most;
      r.weight[h] = r.weight[h] * keep + weight;
#pragma unroll
      for (int i = 0; i < kCount; ++i) r.sum[h][i] = r.sum[h][i] * keep + weight * widen(v.at[i]);
    }
  }

  // The teams' sums meet in shared memory: [team][head][dim + kExtra].
  const std::int64_t width = dim + kExtra;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float* mine = shared + (team * kHeads + h) * width;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine[lane * kCount + i] = r.sum[h][i];
    if (lane == 0) {
      mine[dim] = r.most[h];
      mine[dim + 1] = r.weight[h];
    }
  }
  __syncthreads();
  for (int h = 0; h < p.heads; ++h) {
    float most = kNone, total = 0;
    for (int t = 0; t < teams; ++t) most = fmaxf(most, shared[(t * kHeads + h) * width + dim]);
    float* to = part_of(args, row, p.first_head + h, part);
    for (std::int64_t d = thread; d < dim; d += kThreads) {
      float sum = 0;
      for (int t = 0; t < teams; ++t) {
        const float* from = shared + (t * kHeads + h) * width;
        sum += from[d] * __expf(from[dim] - most);
      }
      to[d] = sum;
    }
    for (int t = 0; t < teams; ++t) {
      const float* from = shared + (t * kHeads + h) * width;
      total += from[dim + 1] * __expf(from[dim] - most);
    }
    if (thread == 0) {
      to[dim] = most;
      to[dim + 1] = total;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) join_parts(const DecodeAttentionArgs args) {
  const std::int64_t head = blockIdx.x, row = blockIdx.y, dim = args.head_dim;
  float most = kNone, weight = 0;
  for (int part = 0; part < kParts; ++part) most = fmaxf(most, part_of(args, row, head, part)[dim]);
  for (int part = 0; part < kParts; ++part) {
    const float* from = part_of(args, row, head, part);
    weight += from[dim + 1] * __expf(from[dim] - most);
  }
  for (std::int64_t d = threadIdx.x; d < dim; d += kThreads) {
    float sum = 0;
    for (int part = 0; part < kParts; ++part) {
      const float* from = part_of(args, row, head, part);
      sum += from[d] * __expf(from[dim] - most);
    }
    static_cast<T*>(args.out)[(row * args.heads + head) * dim + d] = round_to<T>(sum / weight);
  }
}

std::int64_t lanes_of(const DecodeAttentionArgs& args) {
  return args.head_dim * element_size(args.dtype) / kVectorBytes;
}

std::int64_t shared_bytes(const DecodeAttentionArgs& args) {
  const std::int64_t teams = kThreads / lanes_of(args);
  return teams * kHeads * (args.head_dim + kExtra) * static_cast<std::int64_t>(sizeof(float));
}

template <typename T, int kCount>
void launch(const DecodeAttentionArgs& args, CUstream_st* stream) {
  const std::int64_t group = args.heads / args.kv_heads;
  const auto rows = static_cast<unsigned>(args.rows);
  const dim3 blocks(static_cast<unsigned>(args.kv_heads * ((group + kHeads - 1) / kHeads)), kParts,
                    rows);
  const auto bytes = static_cast<std::size_t>(shared_bytes(args));  // at most 42 KiB
  attend_part<T, kCount>
      <<<blocks, kThreads, bytes, stream>>>(args, static_cast<int>(lanes_of(args)));
  join_parts<T><<<dim3(static_cast<unsigned>(args.heads), rows), kThreads, 0, stream>>>(args);
}

}  // namespace

std::int64_t decode_attention_scratch(const DecodeAttentionArgs& args) {
  return args.rows * args.heads * kParts * (args.head_dim + kExtra);
}

const char* decode_attention_unsupported(const DecodeAttentionArgs& args) {
  if (args.heads < 1 || args.kv_heads < 1 || args.heads % args.kv_heads != 0) {
    return "heads is not a multiple of kv_heads";
  }
  const std::int64_t lanes = args.head_dim < 1 || args.head_dim > kMaxDim ? 0 : lanes_of(args);
  const bool power = lanes >= 1 && lanes <= kWarp && (lanes & (lanes - 1)) == 0;
  if (!power || lanes * kVectorBytes != args.head_dim * element_size(args.dtype)) {
    return "a head is not 16 bytes times a power of two up to 32";
  }
  if (args.capacity < 1) return "the cache is empty";
  if (args.rows < 1 || args.rows > kMaxRows) return "rows are not 1 to 65535";
  if (args.samples < 1) return "there is no sample";
  if (args.samples > 1 && args.query_starts == nullptr) return "several samples lack query_starts";
  for (const std::int64_t stride : {args.q_stride, args.key_stride, args.sample_stride}) {
    if (!vectors_fit(args.dtype, stride)) return "rows do not begin at multiples of 16 bytes";
  }
  for (const void* pointer : {args.q, args.keys, args.values}) {
    if (!aligned(pointer)) return "q, keys or values do not begin at a multiple of 16 bytes";
  }
  return nullptr;
}

const char* decode_attention(const DecodeAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = decode_attention_unsupported(args)) return reason;
  return launch_typed(args.dtype, true, [&]<typename T, int kCount>() {
    if constexpr (kCount > 1) launch<T, kCount>(args, stream);
  });
}

}  // namespace diptych::kernels
