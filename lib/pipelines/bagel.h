// BAGEL, text to image: a loaded checkpoint and what it does with prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/pipelines/bagel_denoiser.h"
#include "lib/pipelines/pipeline.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/guidance.h"
#include "lib/text/tokenizer.h"

namespace diptych {

struct BagelCheckpoint {
  Bagel model;
  FluxVae vae;  // always float32, as the official applications run it
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t bos = 0, eos = 0;  // <|im_start|>, <|im_end|>: around every text segment
  ImageMarkers markers;           // <|vision_start|>, <|vision_end|>
  Weights model_weights = Weights::dummy(at::kCPU, at::kFloat);  // where it was loaded from
  Weights vae_weights = Weights::dummy(at::kCPU, at::kFloat);

  // A folder in the released layout, or (load_format dummy) random weights of the folder's sizes,
  // of the released 7B sizes where no folder is given. Reads configs, tokenizer and headers, so
  // that a request can be checked before gigabytes move; load() does the rest. Both throw
  // InputError naming file and tensor.
  static BagelCheckpoint open(const std::filesystem::path& folder, bool dummy,
                              const Runtime& runtime);
  void load();
  // A name for the loaded files' content, "<model>-<autoencoder>"; reads them all, slow.
  // A stop requested meanwhile ends it early.
  std::string weights_hash(const std::stop_token& stop) const;
  // [bos] + encode(text) + [eos]. Throws InputError where that is longer than the model's
  // positions.
  TextSegment text_segment(std::string_view text) const;
  // Throws InputError unless width and height are multiples of 16 within the position table.
  LatentSize latent_size(std::int64_t width, std::int64_t height) const;
};

struct PaintRequest {
  std::vector<std::string> prompts;  // one per picture of the packed batch
  std::vector<LatentSize> sizes;     // likewise
  Guidance guidance;
  CfgMode cfg_mode = CfgMode::batched;
  std::int64_t steps = 50;
  double timestep_shift = 3.0;
};

// Start noise of a request: drawn picture by picture in packed order -> [rows of all pictures, 64].
Tensor draw_noise(const PaintRequest& request, std::int64_t row_width, std::uint64_t seed);

// Prompts are read once; every call of paint() starts from another noise.
class BagelPainter {
 public:
  BagelPainter(const BagelCheckpoint& checkpoint, PaintRequest request, const Runtime& runtime);
  // noise float32 [rows, 64] on the CPU -> the final latent [rows, 64], float32, on the device.
  Tensor paint(const Tensor& noise, Progress& progress) const;
  // latent rows -> one image [1, 3, H, W] per prompt, float32, not clamped.
  std::vector<Tensor> decode(const Tensor& latent) const;
  const PaintRequest& request() const { return request_; }
  std::int64_t distinct_contexts() const { return contexts_.distinct(); }
  std::int64_t forwards() const { return denoiser_.forwards(); }
  std::int64_t updates() const { return schedule_.updates(); }

 private:
  Tensor guided_velocity(const Tensor& x, std::int64_t step) const;

  const BagelCheckpoint& checkpoint_;
  const Runtime& runtime_;
  PaintRequest request_;
  FlowSchedule schedule_;
  PrefilledContexts contexts_;
  BagelDenoiser denoiser_;
};

std::vector<std::string> check_bagel_layout(const std::filesystem::path& folder);

Report run_bagel(const RunConfig& config, Log& log, Progress& progress, const PictureFn& picture);

}  // namespace diptych
