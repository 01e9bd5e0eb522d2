// From resolved runs to pictures and answers: one session per loaded model, found by its family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/runtime/kernel_work.h"
#include "lib/tensor/trace.h"
#include "lib/tensor/types.h"

namespace diptych {

struct StepRecording;  // lib/sampling/step_cache/step_calibration.h

// All steps of one picture, in a profile: a scope of record_launches() (lib/runtime/launches.h).
inline constexpr const char* kDenoiseScope = "denoise";

// Denoise steps of a picture that compute the same guidance branches, and so the same work.
struct StepKindWork {
  std::int64_t contexts = 0;     // branches, those that have read the same counted once
  std::int64_t steps = 0;        // of a picture
  std::vector<KernelWork> work;  // of one: what the decoder's layers have to do
  double floor_seconds = 0;      // of one: its products and attention alone; 0: not measured
  bool operator==(const StepKindWork&) const = default;
};

struct InputRecord {   // of one input picture
  std::string sha256;  // of the decoded pixels, uint8 [H, W, 3]
  std::int64_t width = 0, height = 0;
};

// A picture painted with a step cache, held against the same one painted without. Forwards and
// seconds are of all pictures that were painted together; the uncached ones are painted second,
// when everything is warm.
struct CacheReport {
  double latent_cosine = 1, latent_relative_l2 = 0;  // of the final latent
  std::optional<double> ssim;                        // absent where a side is below 11 pixels
  double psnr = 0;                                   // dB, infinite for equal pictures
  std::int64_t forwards = 0, uncached_forwards = 0;  // branch forwards that were computed
  double seconds = 0, uncached_seconds = 0;          // of denoising
};

// Why a text ends where it does, in the words of OpenAI's API: its end marker, or its limit of
// tokens.
inline constexpr const char *kFinishedItself = "stop", *kFinishedByLimit = "length";

struct Picture {
  std::size_t request = 0;         // index into the requests of the call
  Tensor rgb;                      // uint8 [height, width, 3] on the CPU
  std::uint64_t index = 0;         // 0 .. batch_count - 1
  std::uint64_t seed = 0;          // of every draw, unless the start noise came from a file
  std::string noise_hash;          // first 16 hex digits of the sha-256 of the float32 start noise
  Tensor latent;                   // the final one, float32 [rows, width] on the CPU
  std::string latent_hash;         // likewise of it
  std::int64_t forwards = 0;       // branch forwards of the backbone
  std::string plan;                // of think mode
  std::string plan_finish_reason;  // "" = no plan
  std::vector<InputRecord> inputs;
  std::optional<CacheReport> cache_report;  // where it was asked for
};

struct Answer {
  std::size_t request = 0;
  std::string text;
  std::string finish_reason;
  std::int64_t tokens = 0;
  double seconds = 0;  // of decoding
};

struct Report {
  std::vector<std::pair<std::string, double>> seconds;  // per stage, in order
  double steps_per_second = 0;                          // denoise updates
  double tokens_per_second = 0;                         // of written text
  std::uint64_t peak_bytes = 0;                         // most memory taken from the device
  std::string device, dtype, attention, weights_hash;   // what really ran
  std::string quantization = "none";                    // likewise
  std::string tuning = "default";  // likewise, Tuning::name(): the hash of the choices of kernels
  std::string cfg_mode;            // likewise, "" = nothing was painted
  std::string
      calibration_hash;  // first 16 hex digits of the file's sha-256, "" = no such step cache
  int threads = 0;       // of the CPU's sums, where it computed
  bool strips = false;   // the autoencoder worked in strips (--vae-tiling)
  // "all" where the experts that write texts waited in host memory, too: other kernels take them
  // then. What waits for painting alone changes no bit, and is "none".
  std::string offload = "none";
  bool step_graphs = false;                // denoise steps were CUDA graphs
  bool kept_step_graphs = false;           // that an earlier run() has left, from the first step on
  std::int64_t updates = 0;                // per picture
  std::int64_t tokens = 0;                 // of written text, the end marker among them
  double token_seconds = 0;                // of writing it
  std::vector<std::string> latent_hashes;  // per picture
};

// Called with each result as soon as it is there; seconds and peak_bytes are not final then. A plan
// is shown before its picture is painted.
struct Results {
  std::function<void(const Picture& picture, const Report& report)> picture;
  std::function<void(const Answer& answer, const Report& report)> answer;
  std::function<void(std::size_t request, std::string_view plan, const std::string& finish_reason)>
      plan;
};

// A model that serves requests, opened with the device, dtype, attention and checkpoint of one
// RunConfig; those of the requests are not looked at. Weights are read by load(), or the first
// run().
class Session {
 public:
  virtual ~Session() = default;
  // Throws InputError for a request this model cannot serve: its sizes, pictures, lengths. Costs
  // little; run() does it, too.
  virtual void check(const RunConfig& request) = 0;
  // Reads the weights, laid out so that each of the expected run() calls fits into memory; nothing
  // where they are there already, or no expected run can be. Where several are expected, a run
  // keeps the steps that it has captured for the next one, if memory has room for them. Costs a
  // look at each request, its pictures included. Its failures are of the session, not of a request.
  virtual void load(std::span<const std::vector<RunConfig>> expected, Progress& progress) = 0;
  // A name for the content of the loaded weights; after load(). It may take long to read them all.
  virtual std::string weights_hash() = 0;
  // Whether both can share forwards: equal in all that a packed call has once.
  virtual bool may_share(const RunConfig& a, const RunConfig& b) const = 0;
  // Runs the requests together; several must share pairwise and paint one picture each. Throws
  // Interrupted between steps.
  virtual void run(std::span<const RunConfig> requests, Progress& progress,
                   const Results& results) = 0;
  // Gives up the steps that a run has kept, and their memory: the next one captures its own.
  virtual void forget_steps() = 0;
  // Paints the requests, a picture each, one after another and without a step cache, and records
  // how their steps change: what StepCalibration is fitted to. report().weights_hash is known
  // afterwards. Throws as run().
  virtual StepRecording record_steps(std::span<const RunConfig> requests, Progress& progress) = 0;
  // The steps of a picture that this request paints: what they have to do, and, where `measures`,
  // how long their products and their attention take alone, launched as in the picture but as one
  // CUDA graph without anything between them. Reads as run() does and paints nothing. Throws as
  // run(), and InputError where the weights to multiply with are not all on the device.
  virtual std::vector<StepKindWork> study_steps(const RunConfig& request, bool measures,
                                                Progress& progress) = 0;
  // Decoder layers that each forward goes through: the order of its kernels repeats so often.
  virtual std::int64_t layers() const = 0;
  virtual Report report() const = 0;  // of everything so far
};

}  // namespace diptych
