// What a run gives: media, how each came about, and a report of the whole run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/frame_rate.h"
#include "lib/session/drafting_report.h"
#include "lib/tensor/types.h"

namespace diptych {

struct Picture {
  Tensor rgb;  // uint8 [height, width, 3] on the CPU
};

struct ClipShape {
  std::int64_t frames = 0, height = 0, width = 0;
  FrameRate fps{};
};

// Its frames come when they are asked for: the autoencoder runs chunk by chunk, so that frames are
// encoded while the next ones are decoded, and no more than a chunk is in memory.
struct Clip {
  ClipShape shape;
  // Calls `take` with all frames in their order, some at a time: uint8 [n, height, width, 3] on the
  // CPU, n >= 1. May be called once, before the session runs anything else or ends. What `take`
  // throws ends it and is passed on; it throws Interrupted and NotFinite, too.
  std::function<void(const std::function<void(const Tensor& frames)>& take)> decode;
  // Where ranks may decode the clip together: what one of them that has no use for the frames calls
  // instead, as soon as the others call decode. They wait for each other. May be empty.
  std::function<void()> help_decode{};
};

// Why a text ends where it does, in the words of OpenAI's API: its end marker, or its limit of
// tokens.
inline constexpr const char *kFinishedItself = "stop", *kFinishedByLimit = "length";

struct Text {
  std::string text;
  std::string finish_reason;
  std::int64_t tokens = 0;
  double seconds = 0;                        // of decoding
  std::optional<DraftingReport> drafting{};  // where a second model drafted it
};

// What a task makes. A kind of media joins here and in result_files of the application.
using Media = std::variant<Picture, Clip, Text>;

// Of a rank that has no use for a result: what the others need of it to have theirs.
void help_decode(const Media& media);

struct InputRecord {   // of one input picture or clip
  std::string sha256;  // of a picture's decoded pixels, uint8 [H, W, 3]; of a clip's file
  std::int64_t width = 0, height = 0;
};

struct AddedWeightsRecord {  // of one file whose weights were added to the model's
  std::string sha256, part;  // of the file; which part of the model it went to, "" = it has one
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

struct Result {
  std::size_t request = 0;  // index into the jobs of the run
  std::uint64_t index = 0;  // 0 .. batch_count - 1
  Media media;
  std::vector<InputRecord> inputs;

  // Of what was denoised.
  std::uint64_t seed = 0;          // of every draw, unless the start noise came from a file
  std::string noise_hash;          // first 16 hex digits of the sha-256 of the float32 start noise
  Tensor latent;                   // the final one, float32 [rows, width] on the CPU
  std::string latent_hash;         // likewise of it
  std::int64_t forwards = 0;       // branch forwards of the backbone
  std::string plan;                // of think mode
  std::string plan_finish_reason;  // "" = no plan
  std::optional<CacheReport> cache_report;  // where it was asked for

  const Tensor& rgb() const { return std::get<Picture>(media).rgb; }
  const Clip& clip() const { return std::get<Clip>(media); }
  const Text& text() const { return std::get<Text>(media); }
};

struct Report {
  std::vector<std::pair<std::string, double>> seconds;  // per stage, in order
  double steps_per_second = 0;                          // denoise updates
  double tokens_per_second = 0;                         // of written text
  std::uint64_t peak_bytes = 0;                         // most memory taken from the device
  std::string device, dtype, attention, weights_hash;   // what really ran
  std::string quantization = "none";                    // likewise
  std::string vae_dtype = "float32";                    // likewise, of the autoencoder
  std::string tuning = "default";  // likewise, Tuning::name(): the hash of the choices of kernels
  std::string cfg_mode;            // likewise, "" = nothing was painted
  std::string
      calibration_hash;  // first 16 hex digits of the file's sha-256, "" = no such step cache
  int threads = 0;       // of the CPU's sums, where it computed
  bool strips = false;   // the autoencoder worked in strips (--vae-tiling)
  // "all" where the weights that write texts waited in host memory, too: other kernels take them
  // then. What waits for painting alone changes no bit, and is "none".
  std::string offload = "none";
  std::vector<AddedWeightsRecord> added_weights;  // in the order they were given
  bool step_graphs = false;                       // denoise steps were CUDA graphs
  bool kept_step_graphs = false;           // that an earlier run() has left, from the first step on
  std::int64_t updates = 0;                // per picture or clip
  std::int64_t tokens = 0;                 // of written text, the end marker among them
  double token_seconds = 0;                // of writing it
  std::optional<DraftingReport> drafting;  // of all texts that a second model drafted
  std::vector<std::string> latent_hashes;  // likewise
};

// The seconds of each stage from one report to a later one of the same session, of those that took
// any.
std::vector<std::pair<std::string, double>> stages_between(const Report& before,
                                                           const Report& after);

// Throws RunError naming `what`: a picture of NaN would be black and look like a result. Waits for
// the device.
void require_finite(const Tensor& values, std::string_view what);

// Called with each result as soon as it is there; seconds and peak_bytes are not final then. A plan
// is shown before its picture is painted.
struct Results {
  std::function<void(const Result& result, const Report& report)> result;
  std::function<void(std::size_t request, std::string_view plan, const std::string& finish_reason)>
      plan;
  // A piece of a text that is still being written: whole characters, which stay. Where it is called
  // for a request, all pieces together are the text of its result. May be empty, and not every
  // family calls it.
  std::function<void(std::size_t request, std::string_view piece)> piece{};
};

}  // namespace diptych
