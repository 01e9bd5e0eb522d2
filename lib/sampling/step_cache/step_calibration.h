// What TeaCache knows about a checkpoint: how much a branch's output changes from step to step
// where its input changes by so much. Measured on runs without a cache, fitted, kept in a small
// JSON file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {

struct StepChange {  // relative_change from one step to the next
  double input = 0, output = 0;
  bool operator==(const StepChange&) const = default;
};

// How the steps of some pictures changed, painted without a cache.
struct StepRecording {
  struct Step {
    double change = std::numeric_limits<double>::quiet_NaN();  // input's; NaN of a first step
    std::int64_t contexts = 0;
  };
  std::vector<StepChange> changes;          // of every context: what a calibration is fitted to
  std::vector<std::vector<Step>> pictures;  // their steps in order

  std::int64_t steps() const;  // of all pictures
  // Those that TeaCache would compute, were its inputs the recorded ones; a cached picture's differ
  // a little from them.
  std::int64_t computed_steps(double threshold, const StepCacheCoefficients& coefficients) const;
};

class StepChangeRecorder {
 public:
  void begin_picture();  // needed before each
  void forget();         // what comes next is compared with nothing before: another model
  // input and output as in step_cache.h, kept until the next step. A context's first step, and one
  // behind a gap, gives no change. Waits for the device.
  void record(std::int64_t step, std::int64_t context, const Tensor& input, const Tensor& output);
  const StepRecording& recording() const { return recording_; }

 private:
  struct Rows {
    std::int64_t step = -1;
    Tensor values;
  };
  StepRecording recording_;
  Rows input_;                            // of the last step
  std::map<std::int64_t, Rows> outputs_;  // by context
};

struct StepCalibration {
  // The hash of a checkpoint's files and how they were quantised, "0123abc-4567def, fp8": quantised
  // weights change otherwise from step to step.
  static std::string as_loaded(const std::string& hash, Quantization quantization) {
    return quantization == Quantization::none ? hash
                                              : hash + ", " + std::string(name_of(quantization));
  }
  static constexpr std::size_t kLeastSamples = 20;
  StepCacheCoefficients coefficients{};
  std::string weights_hash;         // as_loaded() of what it was measured on
  std::vector<StepChange> samples;  // what the coefficients were fitted to
  std::string file_hash;            // first 16 hex digits of its sha-256, where it was read

  // The polynomial of degree 4 with the least squared error. Throws InputError where it would be of
  // no use: fewer than kLeastSamples, any that is negative or not finite, inputs that hardly
  // differ, or outputs of which it explains less than half the variance.
  static StepCalibration fit(std::vector<StepChange> samples, std::string weights_hash);
  // The share of the samples' output variance that the polynomial explains, at most 1.
  double explained_variance() const;

  // JSON: {"schema": "diptych.step_calibration", "version": 1, "weights_hash": "...",
  // "coefficients": [degree 4, ..., 0], "samples": [[input, output], ...]}. read() throws
  // InputError naming file and key for anything else, and where explained_variance() is below
  // fit()'s limit. write() is atomic and throws as AtomicFile.
  static StepCalibration read(const std::filesystem::path& path);
  void write(const std::filesystem::path& path) const;
  // Throws InputError naming `path` where it was measured on other weights.
  void require_weights(const std::filesystem::path& path, std::string_view loaded_hash) const;
};

}  // namespace diptych
