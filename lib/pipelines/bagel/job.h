// A request as BAGEL reads it, made once; and one run of it, with everything that is drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/image.h"
#include "lib/pipelines/bagel/reading.h"
#include "lib/pipelines/mot/job.h"

namespace diptych {

// What a recorded case has otherwise than a user's request.
struct BagelRecording {
  std::optional<ImageTransforms> transforms;         // of input pictures
  bool is_recorded = false, official_batch = false;  // of MotJob
};

struct BagelJob final : MotJob {
  // Throws as MotCheckpoint::make_job. Both must outlive it.
  BagelJob(const RunConfig& request, const BagelCheckpoint& checkpoint, const Runtime& runtime,
           Log& log, const BagelRecording& recording);

  std::unique_ptr<MotTurn> turn() const override;
  std::unique_ptr<MotTrace> trace(TraceSink& sink) const override;

  const BagelCheckpoint& checkpoint;
  const Runtime& runtime;
  std::vector<BagelImage> images;  // in order; pixels once they are read
  BagelReading reading;            // without the plan
  Tensor recorded_noise;           // of a case: the start noise, float32 [rows, row width]

 private:
  void decode_inputs() override;
  ImageTransforms transforms_;
};

// All draws come from one generator, in the official order: posterior noise of every picture,
// sampled text, start noise.
class BagelTurn final : public MotTurn {
 public:
  explicit BagelTurn(const BagelJob& job) : MotTurn(job), own_(job), images_(job.images) {}

  void seed(std::uint64_t seed) override;
  ImageRows read_image(const ImageSegment& segment, const MotSample& block, const std::string& name,
                       MotTrace* trace) override;
  std::string text_of(const std::vector<std::int64_t>& fed) const override;
  void keep_plan(const GeneratedText& written) override;
  Tensor start_latent(Log& log, MotTrace* trace) override;
  Media decode(const Tensor& latent, const std::string& number, Log& log,
               MotTrace* trace) const override;

 private:
  ImageRows read_latent(BagelImage& image, const MotSample& block, const ImageTrace& trace);

  const BagelJob& own_;
  std::vector<BagelImage> images_;  // encoded and drawn as they are needed
};

// Start noise of one picture: the next draw of its generator -> float32 [rows, row_width].
Tensor draw_noise(LatentSize size, std::int64_t row_width, at::Generator& generator);

}  // namespace diptych
